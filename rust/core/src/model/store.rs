//! A model as a `StreamStore`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::RwLock;

use super::argument::{AddId, Position};
use super::entries::TrimTo;
use super::keyspace::Keyspace;
use super::reader::{self, ModelReader};
use super::{Delivery, Model};
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::store::{Abilities, Action, Append, EntryReader, Order, Pending, Promoted, Scanned, StreamStore, Verdict};

/// Orders that are checked before the first of them is carried out.
const CHECKED: usize = 500;

/// One client of a model.
#[derive(Debug)]
pub struct ModelStore {
    model: Arc<Model>,
    /// What the model is made to offer.
    offered: Abilities,
    /// The same, once it was asked.
    found: RwLock<Abilities>,
    closed: AtomicBool,
}

impl ModelStore {
    /// A client that finds what Redis 8.10 can do.
    pub fn new(model: Arc<Model>) -> Self {
        let everything = Abilities {
            server: "redis".into(),
            version: "8.10 (in this process)".into(),
            claim: true,
            xnack: true,
            xackdel: true,
            max_size: true,
        };
        Self::with_abilities(model, everything)
    }

    /// A client that finds a server which can do less: what it does not offer, it refuses.
    pub fn with_abilities(model: Arc<Model>, offered: Abilities) -> Self {
        Self { model, offered, found: RwLock::default(), closed: AtomicBool::new(false) }
    }

    /// The model it is a client of.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    fn run<T>(&self, commands: impl FnOnce(&mut Keyspace) -> Result<T>) -> Result<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ShutDown("the connection"));
        }
        self.model.run(commands)
    }
}

/// The checked acks among the orders, by owner.
fn by_owner(orders: &[Order]) -> Vec<(Arc<Origin>, Vec<usize>)> {
    let mut owners: Vec<(Arc<Origin>, Vec<usize>)> = Vec::new();
    for (at, order) in orders.iter().enumerate().filter(|(_, order)| order.action == Action::Ack) {
        let known = owners.iter_mut().find(|(owner, held)| **owner == *order.owner && held.len() < CHECKED);
        match known {
            Some((_, held)) => held.push(at),
            None => owners.push((Arc::clone(&order.owner), vec![at])),
        }
    }
    owners
}

fn append(keyspace: &mut Keyspace, entry: &Append) -> Result<EntryId> {
    let trim = entry.trim.as_ref().map(TrimTo::parse).transpose()?;
    keyspace.xadd(&entry.stream, AddId::Auto, &entry.fields, trim)
}

#[async_trait]
impl StreamStore for ModelStore {
    async fn connect(&self) -> Result<Abilities> {
        self.run(|_| Ok(()))?;
        *self.found.write() = self.offered.clone();
        Ok(self.offered.clone())
    }

    fn abilities(&self) -> Abilities {
        self.found.read().clone()
    }

    async fn time_ms(&self) -> Result<u64> {
        self.run(|keyspace| Ok(keyspace.now()))
    }

    async fn create_group(&self, stream: &str, group: &str, start: &str) -> Result<bool> {
        let created = self.run(|keyspace| {
            keyspace.stream(stream)?;
            keyspace.xgroup_create(stream, group, Position::parse(start)?, true, None)
        });
        match created {
            Ok(()) => Ok(true),
            Err(Error::Server(text)) if text.starts_with("BUSYGROUP") => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn cursor(&self, stream: &str, group: &str) -> Result<Option<EntryId>> {
        self.run(|keyspace| Ok(keyspace.group(stream, group)?.map(|(_, group)| group.last)))
    }

    async fn move_group(&self, stream: &str, group: &str, position: &str) -> Result<()> {
        self.run(|keyspace| {
            if keyspace.group(stream, group)?.is_none() {
                return keyspace.xgroup_setid(stream, group, Position::End, None);
            }
            keyspace.xgroup_setid(stream, group, Position::parse_any(position)?, None)
        })
    }

    async fn last_id(&self, stream: &str) -> Result<Option<EntryId>> {
        self.run(|keyspace| Ok(keyspace.stream(stream)?.map(|stream| stream.entries.last)))
    }

    async fn open_reader(&self, origin: &Arc<Origin>, hash_keys: bool) -> Result<Box<dyn EntryReader>> {
        let mut abilities = self.offered.clone();
        abilities.max_size &= self.found.read().max_size;
        self.run(|_| Ok(()))?;
        Ok(Box::new(ModelReader::new(&self.model, origin, hash_keys, &abilities)))
    }

    async fn unblock(&self, reader: i64) -> Result<()> {
        self.run(|_| Ok(()))?;
        self.model.unblock(reader);
        Ok(())
    }

    async fn scan(
        &self,
        origin: &Arc<Origin>,
        which: &Pending,
        cursor: EntryId,
        count: usize,
        hash_keys: bool,
    ) -> Result<Scanned> {
        let step = self.run(|keyspace| keyspace.scan(origin, which, cursor, count))?;
        let taken = step.taken.into_iter().map(|one| Delivery {
            id: one.body.id(),
            body: Some(one.body),
            // One that was handed back has an idle time of -1.
            idle: u64::try_from(one.idle).unwrap_or(0),
            earlier: one.earlier,
        });
        let raw = reader::batch(&taken.collect::<Vec<_>>(), hash_keys)?;
        Ok(Scanned { raw, cursor: step.cursor, deleted: step.deleted })
    }

    async fn settle(
        &self,
        origin: &Arc<Origin>,
        acks: &[EntryId],
        orders: &[Order],
        delay_key: &str,
    ) -> Result<Vec<Verdict>> {
        self.run(|keyspace| {
            // A key of another type by now holds none of our entries either.
            let _ = keyspace.xack(&origin.stream, &origin.group, acks);
            let mut verdicts = vec![Verdict::Gone; orders.len()];
            for (owner, held) in by_owner(orders) {
                let checked: Vec<_> = held.iter().map(|at| &orders[*at]).collect();
                for (at, verdict) in held.iter().zip(keyspace.checked_acks(&owner, &checked)) {
                    verdicts[*at] = verdict;
                }
            }
            for (at, order) in orders.iter().enumerate().filter(|(_, order)| order.action != Action::Ack) {
                verdicts[at] = keyspace.retry(order, delay_key);
            }
            Ok(verdicts)
        })
    }

    async fn renew(&self, origin: &Arc<Origin>, ids: &[EntryId]) -> Result<Vec<EntryId>> {
        self.run(|keyspace| keyspace.renew(origin, ids))
    }

    async fn release(&self, origin: &Arc<Origin>, entries: &[(EntryId, u32)]) -> Result<usize> {
        let xnack = self.found.read().xnack;
        self.run(|keyspace| keyspace.release(origin, xnack, entries))
    }

    async fn promote(&self, stream: &str, delay_key: &str, limit: usize) -> Result<Promoted> {
        self.run(|keyspace| keyspace.promote(stream, delay_key, limit))
    }

    async fn append(&self, entries: &[Append]) -> Result<Vec<Result<EntryId>>> {
        self.run(|keyspace| Ok(entries.iter().map(|entry| append(keyspace, entry)).collect()))
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
