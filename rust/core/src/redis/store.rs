//! `StreamStore` over RESP.

use std::sync::Arc;

use ::redis::{Cmd, Pipeline, Value, cmd};
use async_trait::async_trait;
use parking_lot::RwLock;

use super::link::Link;
use super::socket::SocketReader;
use super::value::{self, integer, items};
use super::{Address, probe, scripts};
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::store::{Abilities, Action, Append, EntryReader, Order, Pending, Promoted, Scanned, StreamStore, Verdict};

/// Ids per plain `XACK`.
const ACKS: usize = 1000;
/// Fields a script can put into one command; Lua's stack ends near 8,000 strings.
const MAX_COPY: usize = 3500;

/// A Redis or Valkey server.
#[derive(Debug)]
pub struct RedisStore {
    address: Address,
    /// Settling, renewing, scanning.
    pub(super) work: Link,
    /// Publishing: large pipelines of the user's must not delay an ack.
    publish: Link,
    abilities: RwLock<Abilities>,
}

impl RedisStore {
    /// A store that has not connected yet.
    pub fn new(address: Address) -> Self {
        Self {
            work: Link::new(address.clone(), true),
            publish: Link::new(address.clone(), false),
            address,
            abilities: RwLock::default(),
        }
    }
}

pub(super) fn with_id(command: &mut Cmd, id: EntryId) {
    id.with_text(|text| {
        command.arg(text);
    });
}

/// Plain acks, a command per thousand.
fn push_acks(pipeline: &mut Pipeline, origin: &Origin, acks: &[EntryId]) {
    for chunk in acks.chunks(ACKS) {
        let mut command = cmd("XACK");
        command.arg(&origin.stream).arg(&origin.group);
        for id in chunk {
            with_id(&mut command, *id);
        }
        pipeline.add_command(command);
    }
}

/// The checked acks of one owner, and where their verdicts go.
struct Checked {
    owner: Arc<Origin>,
    orders: Vec<usize>,
}

fn group_acks(orders: &[Order]) -> Vec<Checked> {
    let mut groups: Vec<Checked> = Vec::new();
    for (at, order) in orders.iter().enumerate().filter(|(_, order)| order.action == Action::Ack) {
        let known = groups.iter_mut().find(|group| *group.owner == *order.owner && group.orders.len() < ACKS / 2);
        match known {
            Some(group) => group.orders.push(at),
            None => groups.push(Checked { owner: Arc::clone(&order.owner), orders: vec![at] }),
        }
    }
    groups
}

fn retry_command(order: &Order, delay_key: &str) -> Result<Cmd> {
    let owner = &order.owner;
    let fields = order.token.copied_fields(&owner.group);
    if fields.len() > MAX_COPY {
        let fields = fields.len();
        return Err(Error::Server(format!("an entry of {fields} fields is too large to be copied for a retry")));
    }
    let mut command = scripts::call(&scripts::RETRY, &[&owner.stream, delay_key]);
    command.arg(&owner.group).arg(&owner.consumer);
    with_id(&mut command, order.token.id());
    let delay = match order.action {
        Action::Delay(delay) => i64::try_from(delay.as_millis()).unwrap_or(i64::MAX),
        Action::Copy | Action::Ack => -1,
    };
    command.arg(order.count).arg(delay).arg(u8::from(order.token.copy_of().is_some()));
    for (name, value) in &fields {
        command.arg(name).arg(value);
    }
    Ok(command)
}

fn verdict(reply: &Value) -> Verdict {
    match integer(reply) {
        Some(1) => Verdict::Done,
        Some(0) => Verdict::Gone,
        _ => Verdict::Taken,
    }
}

/// A missing group means that nothing is pending any more: there is nothing left to settle.
fn refused(error: Error) -> Verdict {
    match error {
        Error::NoGroup(_) => Verdict::Gone,
        error => Verdict::Refused(error),
    }
}

#[async_trait]
impl StreamStore for RedisStore {
    async fn connect(&self) -> Result<Abilities> {
        let found = probe::abilities(&self.work).await?;
        *self.abilities.write() = found.clone();
        Ok(found)
    }

    fn abilities(&self) -> Abilities {
        self.abilities.read().clone()
    }

    async fn time_ms(&self) -> Result<u64> {
        let reply = self.work.query(&cmd("TIME")).await?;
        let number = |at: usize| items(&reply).get(at).and_then(integer).and_then(|n| u64::try_from(n).ok());
        match (number(0), number(1)) {
            (Some(seconds), Some(micros)) => Ok(seconds * 1000 + micros / 1000),
            _ => Err(Error::Protocol("TIME was not answered with two numbers".into())),
        }
    }

    async fn create_group(&self, stream: &str, group: &str, start: &str) -> Result<bool> {
        let mut command = cmd("XGROUP");
        command.arg("CREATE").arg(stream).arg(group).arg(start).arg("MKSTREAM");
        match self.work.query(&command).await {
            Ok(_) => Ok(true),
            Err(Error::Server(text)) if text.starts_with("BUSYGROUP") => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn cursor(&self, stream: &str, group: &str) -> Result<Option<EntryId>> {
        match self.work.query(cmd("XINFO").arg("GROUPS").arg(stream)).await {
            Ok(reply) => {
                let found = items(&reply).iter().find(|entry| named(entry, "name") == group.as_bytes());
                Ok(found.and_then(|entry| EntryId::parse(named(entry, "last-delivered-id"))))
            }
            Err(Error::Server(text)) if text.contains("no such key") => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn move_group(&self, stream: &str, group: &str, position: &str) -> Result<()> {
        let mut command = cmd("XGROUP");
        command.arg("SETID").arg(stream).arg(group).arg(position);
        self.work.query(&command).await.map(drop)
    }

    async fn last_id(&self, stream: &str) -> Result<Option<EntryId>> {
        match self.work.query(cmd("XINFO").arg("STREAM").arg(stream)).await {
            Ok(reply) => Ok(EntryId::parse(named(&reply, "last-generated-id"))),
            Err(Error::Server(text)) if text.contains("no such key") => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn open_reader(&self, origin: &Arc<Origin>, hash_keys: bool) -> Result<Box<dyn EntryReader>> {
        let max_size = self.abilities.read().max_size;
        Ok(Box::new(SocketReader::open(&self.address, origin, hash_keys, max_size).await?))
    }

    async fn unblock(&self, reader: i64) -> Result<()> {
        let mut command = cmd("CLIENT");
        command.arg("UNBLOCK").arg(reader);
        self.work.query(&command).await.map(drop)
    }

    async fn scan(
        &self,
        origin: &Arc<Origin>,
        which: &Pending,
        cursor: EntryId,
        count: usize,
        hash_keys: bool,
    ) -> Result<Scanned> {
        match which {
            Pending::Idle(min_idle) => self.scan_idle(origin, *min_idle, cursor, count, hash_keys).await,
            Pending::Own { held, uncounted } => self.take_own(origin, held, *uncounted, cursor, count, hash_keys).await,
        }
    }

    async fn settle(
        &self,
        origin: &Arc<Origin>,
        acks: &[EntryId],
        orders: &[Order],
        delay_key: &str,
    ) -> Result<Vec<Verdict>> {
        let mut pipeline = Pipeline::new();
        push_acks(&mut pipeline, origin, acks);
        let plain = pipeline.len();
        let checked = group_acks(orders);
        for group in &checked {
            let mut command = scripts::call(&scripts::ACK, &[&group.owner.stream]);
            command.arg(&group.owner.group).arg(&group.owner.consumer);
            for order in group.orders.iter().filter_map(|at| orders.get(*at)) {
                with_id(&mut command, order.token.id());
                command.arg(order.count);
            }
            pipeline.add_command(command);
        }
        let mut verdicts = vec![Verdict::Gone; orders.len()];
        let mut moved = Vec::new();
        for (at, order) in orders.iter().enumerate().filter(|(_, order)| order.action != Action::Ack) {
            match retry_command(order, delay_key) {
                Ok(command) => {
                    pipeline.add_command(command);
                    moved.push(at);
                }
                Err(error) => verdicts[at] = Verdict::Refused(error),
            }
        }
        if pipeline.is_empty() {
            return Ok(verdicts);
        }
        let mut replies = self.work.pipeline(&pipeline).await?.into_iter();
        for reply in replies.by_ref().take(plain) {
            match reply {
                // A key of another type by now holds none of our entries either.
                Ok(_) | Err(Error::NoGroup(_)) => {}
                Err(Error::Server(text)) if text.starts_with("WRONGTYPE") => {}
                Err(error) => return Err(error),
            }
        }
        for (group, reply) in checked.iter().zip(replies.by_ref()) {
            let answers = reply.map(|reply| items(&reply).iter().map(verdict).collect::<Vec<_>>());
            for (nth, at) in group.orders.iter().enumerate() {
                verdicts[*at] = match &answers {
                    Ok(answers) => answers.get(nth).cloned().unwrap_or(Verdict::Taken),
                    Err(error) => refused(error.clone()),
                };
            }
        }
        for (at, reply) in moved.into_iter().zip(replies) {
            verdicts[at] = reply.map_or_else(refused, |reply| verdict(&reply));
        }
        Ok(verdicts)
    }

    async fn renew(&self, origin: &Arc<Origin>, ids: &[EntryId]) -> Result<Vec<EntryId>> {
        let mut command = scripts::call(&scripts::RENEW, &[&origin.stream]);
        command.arg(&origin.group).arg(&origin.consumer);
        for id in ids {
            with_id(&mut command, *id);
        }
        let reply = self.work.query(&command).await?;
        Ok(items(&reply).iter().filter_map(value::id).collect())
    }

    async fn release(&self, origin: &Arc<Origin>, entries: &[(EntryId, u32)]) -> Result<usize> {
        let xnack = u8::from(self.abilities.read().xnack);
        let mut command = scripts::call(&scripts::RELEASE, &[&origin.stream]);
        command.arg(&origin.group).arg(&origin.consumer).arg(xnack);
        for (id, earlier) in entries {
            with_id(&mut command, *id);
            command.arg(*earlier);
        }
        let reply = self.work.query(&command).await?;
        Ok(integer(&reply).and_then(|n| usize::try_from(n).ok()).unwrap_or(0))
    }

    async fn promote(&self, stream: &str, delay_key: &str, limit: usize) -> Result<Promoted> {
        let mut command = scripts::call(&scripts::PROMOTE, &[delay_key, stream]);
        command.arg(limit);
        let reply = self.work.query(&command).await?;
        let number = |at: usize| items(&reply).get(at).and_then(integer).and_then(|n| u64::try_from(n).ok());
        Ok(Promoted {
            moved: number(0).and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
            next: number(1).map(std::time::Duration::from_millis),
            strange: number(2).and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
        })
    }

    async fn append(&self, entries: &[Append]) -> Result<Vec<Result<EntryId>>> {
        let mut pipeline = Pipeline::with_capacity(entries.len());
        for entry in entries {
            let mut command = cmd("XADD");
            command.arg(&*entry.stream);
            if let Some(trim) = &entry.trim {
                command.arg(trim.strategy).arg(if trim.approximate { "~" } else { "=" }).arg(&trim.threshold);
            }
            command.arg("*");
            for (name, value) in &entry.fields {
                command.arg(name).arg(value);
            }
            pipeline.add_command(command);
        }
        let replies = self.publish.pipeline(&pipeline).await?;
        let id = |reply: Value| value::id(&reply).ok_or_else(|| Error::Protocol("XADD answered no id".into()));
        Ok(replies.into_iter().map(|reply| reply.and_then(id)).collect())
    }

    async fn close(&self) {
        self.work.close().await;
        self.publish.close().await;
    }
}

/// The value of a name in a reply that is a map, or an array of names and values.
fn named<'a>(reply: &'a Value, name: &str) -> &'a [u8] {
    if let Value::Map(pairs) = reply {
        let pair = pairs.iter().find(|(key, _)| value::bytes(key) == name.as_bytes());
        return pair.map(|(_, found)| value::bytes(found)).unwrap_or_default();
    }
    let mut pairs = items(reply).chunks_exact(2);
    pairs.find(|pair| value::bytes(&pair[0]) == name.as_bytes()).map(|pair| value::bytes(&pair[1])).unwrap_or_default()
}
