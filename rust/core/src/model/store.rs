//! A model as a `StreamStore`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;

use super::argument::{Position, Range};
use super::faults::{Faults, Operation};
use super::keyspace::Keyspace;
use super::operations::Taken;
use super::reader::{self, ModelReader};
use super::{Delivery, Model};
use crate::append::{Append, Replay, Stamp};
use crate::batch::{Origin, RawBatch};
use crate::entry::{EntryId, Slot};
use crate::error::{Error, Result};
use crate::mark::{MarkKey, MarkState, MarkStep};
use crate::order::{Order, SideKeys, Verdict};
use crate::store::{
    Abilities, Bound, ConsumerRow, Due, EntryReader, GroupRow, Look, Page, Parked, Pending, PendingRow, Scanned,
    StartMark, StreamStore, Trimmed,
};

/// One client of a model.
#[derive(Debug)]
pub struct ModelStore {
    model: Arc<Model>,
    /// What the model is made to offer.
    offered: Abilities,
    /// The same, once it was asked.
    found: RwLock<Abilities>,
    /// Streams whose acknowledged entries are deleted.
    pub(super) deleting: RwLock<HashSet<String>>,
    closed: AtomicBool,
    pub(super) faults: Arc<Faults>,
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
            // No reply is ever lost within a process.
            idempotent: false,
            max_value: None,
        };
        Self::with_abilities(model, everything)
    }

    /// A client that finds a server which can do less: what it does not offer, it refuses.
    pub fn with_abilities(model: Arc<Model>, offered: Abilities) -> Self {
        Self {
            model,
            offered,
            found: RwLock::default(),
            deleting: RwLock::default(),
            closed: AtomicBool::new(false),
            faults: Arc::default(),
        }
    }

    /// The same, with faults that somebody asks for.
    #[must_use]
    pub fn with_faults(self, faults: Arc<Faults>) -> Self {
        Self { faults, ..self }
    }

    /// The model it is a client of.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(super) fn run<T>(&self, commands: impl FnOnce(&mut Keyspace) -> Result<T>) -> Result<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ShutDown("the connection"));
        }
        self.model.run(commands)
    }
}

fn taken(entries: Vec<Taken>, hash_keys: bool) -> Result<RawBatch> {
    let deliveries = entries.into_iter().map(|one| Delivery {
        id: one.body.id(),
        body: Some(one.body),
        // One that was handed back has an idle time of -1.
        idle: u64::try_from(one.idle).unwrap_or(0),
        earlier: one.earlier,
    });
    reader::batch(&deliveries.collect::<Vec<_>>(), hash_keys)
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
        Ok(Box::new(ModelReader::new(&self.model, origin, hash_keys, &abilities, &self.faults)))
    }

    async fn unblock(&self, reader: i64) -> Result<()> {
        self.run(|_| Ok(()))?;
        self.model.unblock(reader);
        Ok(())
    }

    async fn scan(&self, origin: &Arc<Origin>, which: &Pending, page: Page<'_>) -> Result<Scanned> {
        let step = self.run(|keyspace| keyspace.scan(origin, which, page))?;
        let raw = taken(step.taken, page.hash_keys)?;
        Ok(Scanned { raw, cursor: step.cursor, deleted: step.deleted, refused: step.refused })
    }

    async fn settle(
        &self,
        origin: &Arc<Origin>,
        acks: &[EntryId],
        orders: &[Order],
        side: SideKeys<'_>,
    ) -> Result<Vec<Verdict>> {
        self.carry_out(origin, acks, orders, side)
    }

    async fn renew(&self, origin: &Arc<Origin>, ids: &[EntryId]) -> Result<Vec<EntryId>> {
        self.run(|keyspace| keyspace.renew(origin, ids))
    }

    async fn release(&self, origin: &Arc<Origin>, entries: &[(EntryId, u32)]) -> Result<usize> {
        let xnack = self.found.read().xnack;
        self.run(|keyspace| keyspace.release(origin, xnack, entries))
    }

    async fn due(&self, origin: &Arc<Origin>, delay_key: &str, look: Look, hash_keys: bool) -> Result<Due> {
        let handed = self.run(|keyspace| keyspace.due(origin, delay_key, look))?;
        Ok(Due {
            moved: handed.moved,
            raw: taken(handed.step.taken, hash_keys)?,
            deleted: handed.step.deleted,
            next: handed.next,
            strange: handed.strange,
            seen: handed.seen,
            passed: handed.passed,
            waiting: handed.waiting,
        })
    }

    async fn unpark(&self, origin: &Origin, delay_key: &str, offset: usize, limit: usize) -> Result<Option<usize>> {
        self.run(|keyspace| keyspace.unpark(origin, delay_key, offset, limit))
    }

    async fn early(&self, origin: &Arc<Origin>, delay_key: &str, claimed: &[Slot]) -> Result<Vec<(EntryId, Parked)>> {
        self.run(|keyspace| keyspace.early(origin, delay_key, claimed))
    }

    fn delete_acked(&self, stream: &str) {
        self.deleting.write().insert(stream.to_owned());
    }

    async fn trim(&self, stream: &str, groups: &[String], bound: Bound, limit: usize) -> Result<Trimmed> {
        self.run(|keyspace| keyspace.trim_step(stream, groups, bound, limit))
    }

    async fn list_groups(&self, stream: &str) -> Result<Option<Vec<GroupRow>>> {
        self.run(|keyspace| keyspace.group_rows(stream))
    }

    async fn list_pending(&self, stream: &str, group: &str, count: usize) -> Result<Vec<PendingRow>> {
        self.run(|keyspace| keyspace.pending_rows(stream, group, count))
    }

    async fn consumers(&self, stream: &str, group: &str, living: &[&str]) -> Result<Vec<ConsumerRow>> {
        self.run(|keyspace| keyspace.consumer_rows(stream, group, living))
    }

    async fn forget_consumers(&self, stream: &str, group: &str, names: &[&str], idle: Duration) -> Result<Vec<String>> {
        self.run(|keyspace| keyspace.forget(stream, group, names, idle))
    }

    async fn start_marks(&self, key: &str, ids: &[EntryId]) -> Result<Vec<Option<String>>> {
        self.run(|keyspace| keyspace.start_marks(key, ids))
    }

    async fn mark_starts(&self, owner: &Origin, key: &str, marks: &[StartMark]) -> Result<Vec<Verdict>> {
        self.run(|keyspace| keyspace.mark_starts(owner, key, marks))
    }

    async fn unmark_starts(&self, origin: &Origin, key: &str, ids: &[EntryId]) -> Result<usize> {
        self.run(|keyspace| keyspace.unmark_starts(origin, key, ids))
    }

    async fn marked_starts(&self, key: &str, cursor: u64, count: usize) -> Result<(Vec<EntryId>, u64)> {
        self.run(|keyspace| keyspace.marked_starts(key, cursor, count))
    }

    async fn mark(&self, step: MarkStep, owner: &str, keys: &[MarkKey]) -> Result<Vec<Result<MarkState>>> {
        self.run(|keyspace| Ok(keys.iter().map(|key| keyspace.mark(step, owner, key)).collect()))
    }

    async fn append(&self, entries: &[Append], _: Option<Stamp>) -> Result<Vec<Result<EntryId>>> {
        match self.faults.check(Operation::Append) {
            Ok(()) => {}
            Err(refused @ Error::Server(_)) => return Ok(vec![Err(refused); entries.len()]),
            Err(lost) => return Err(lost),
        }
        self.run(|keyspace| Ok(entries.iter().map(|entry| keyspace.append(entry)).collect()))
    }

    async fn range(&self, stream: &str, cursor: EntryId, count: usize) -> Result<RawBatch> {
        let bodies = self.run(|keyspace| keyspace.xrange(stream, Range::after(cursor)?, Some(count)))?;
        let entries = bodies.into_iter().map(|body| Delivery { id: body.id(), body: Some(body), idle: 0, earlier: 0 });
        reader::batch(&entries.collect::<Vec<_>>(), false)
    }

    async fn length(&self, stream: &str) -> Result<usize> {
        self.run(|keyspace| keyspace.xlen(stream))
    }

    async fn replay(&self, letters: &str, replays: Vec<Replay>) -> Result<Vec<Result<Option<EntryId>>>> {
        self.run(|keyspace| Ok(replays.iter().map(|replay| keyspace.replay(letters, replay)).collect()))
    }

    async fn append_together(&self, entries: &[Append], _: Option<Stamp>) -> Result<Vec<Result<EntryId>>> {
        let first = entries.first().map_or("", |entry| &entry.stream);
        self.faults.check(Operation::Append).map_err(|error| crate::refused::refused(error, first))?;
        self.run(|keyspace| {
            // All of them are checked before the first is added.
            for entry in entries {
                let checked = keyspace.check_append(entry);
                checked.map_err(|error| crate::refused::refused(error, &entry.stream))?;
            }
            Ok(entries.iter().map(|entry| keyspace.append(entry)).collect())
        })
    }

    async fn remembers(&self, _: &[Append], _: Duration) -> Result<bool> {
        Ok(false)
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
