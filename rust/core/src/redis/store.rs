//! `StreamStore` over RESP.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Pipeline, Script, Value, cmd};
use async_trait::async_trait;
use parking_lot::RwLock;

use super::link::Link;
use super::producer::{Producer, with_entry};
use super::socket::SocketReader;
use super::value::{self, integer, items, named};
use super::{Address, bound, letters, probe, scripts, starts};
use crate::batch::{Origin, RawBatch};
use crate::entry::{EntryId, Slot};
use crate::error::{Error, Result};
use crate::mark::{MarkKey, MarkState, MarkStep};
use crate::store::{
    Abilities, Action, Append, Bound, ConsumerRow, Due, EntryReader, GroupRow, Look, MAX_COPY, Order, Page, Parked,
    Pending, PendingRow, Replay, Scanned, SideKeys, Stamp, StartMark, StreamStore, Trimmed, Verdict, copyable,
};

/// Ids per plain `XACK`.
const ACKS: usize = 1000;

/// A Redis or Valkey server.
#[derive(Debug)]
pub struct RedisStore {
    address: Address,
    /// Settling, renewing, scanning.
    pub(super) work: Link,
    /// Publishing: large pipelines of the user's must not delay an ack.
    publish: Link,
    abilities: RwLock<Abilities>,
    /// Streams whose acknowledged entries are deleted.
    deleting: RwLock<HashSet<String>>,
    producer: Producer,
}

impl RedisStore {
    /// A store that has not connected yet.
    pub fn new(address: Address) -> Self {
        Self {
            work: Link::new(address.clone(), true),
            publish: Link::new(address.clone(), false),
            address,
            abilities: RwLock::default(),
            deleting: RwLock::default(),
            producer: Producer::new(),
        }
    }
}

pub(super) fn with_id(command: &mut Cmd, id: EntryId) {
    id.with_text(|text| {
        command.arg(text);
    });
}

/// The delivery count that an entry must stand at; empty: whatever its count.
pub(super) fn with_count(command: &mut Cmd, count: Option<u32>) {
    match count {
        Some(count) => command.arg(count),
        None => command.arg(""),
    };
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

/// Orders of one owner that go out in one command, and where their verdicts go.
struct Together {
    owner: Arc<Origin>,
    kind: Kind,
    orders: Vec<usize>,
}

/// Orders that a command carries many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ack,
    Again { resent: bool, exact: bool },
    Park { resent: bool, exact: bool },
    Keep,
}

const fn kind(order: &Order) -> Option<Kind> {
    let exact = order.exact;
    match &order.action {
        Action::Ack => Some(Kind::Ack),
        Action::Again { resent } => Some(Kind::Again { resent: *resent, exact }),
        Action::Park { resent, .. } => Some(Kind::Park { resent: *resent, exact }),
        Action::Keep(_) => Some(Kind::Keep),
        Action::Copy | Action::Delay(_) | Action::Reply(_) | Action::Bury(_) => None,
    }
}

fn together(orders: &[Order]) -> Vec<Together> {
    let mut groups: Vec<Together> = Vec::new();
    for (at, order) in orders.iter().enumerate() {
        let Some(kind) = kind(order) else {
            continue;
        };
        // The one that was begun last is the one that may have room.
        let known = groups.iter_mut().rev().find(|group| group.kind == kind && *group.owner == *order.owner);
        match known {
            Some(group) if group.orders.len() < ACKS / 2 => group.orders.push(at),
            _ => groups.push(Together { owner: Arc::clone(&order.owner), kind, orders: vec![at] }),
        }
    }
    groups.sort_by_key(|group| group.kind);
    groups
}

fn together_command(group: &Together, orders: &[Order], delay_key: &str) -> Cmd {
    let Together { owner, kind, orders: held } = group;
    let mut command = match kind {
        Kind::Ack => scripts::call(&scripts::ACK, &[&owner.stream]),
        Kind::Again { .. } => scripts::call(&scripts::AGAIN, &[&owner.stream, delay_key]),
        Kind::Park { .. } => scripts::call(&scripts::PARK, &[&owner.stream, delay_key]),
        Kind::Keep => scripts::call(&scripts::KEEP, &[&owner.stream, delay_key]),
    };
    command.arg(&owner.group).arg(&owner.consumer);
    if let Kind::Park { resent, exact } | Kind::Again { resent, exact } = kind {
        command.arg(u8::from(*resent)).arg(u8::from(*exact));
    }
    for order in held.iter().filter_map(|at| orders.get(*at)) {
        with_id(&mut command, order.token.id());
        if *kind != Kind::Ack {
            command.arg(order.count);
        }
        if let Action::Park { delay, .. } | Action::Keep(delay) = order.action {
            command.arg(milliseconds(delay));
        }
    }
    command
}

fn milliseconds(delay: Duration) -> i64 {
    i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)
}

/// The call of a script that carries one order out, as far as all of these begin: who must own it, and at which count.
/// `key` is the one beside the stream.
pub(super) fn order_command(script: &Script, order: &Order, key: &str) -> Cmd {
    let owner = &order.owner;
    let mut command = scripts::call(script, &[&owner.stream, key]);
    command.arg(&owner.group).arg(&owner.consumer);
    with_id(&mut command, order.token.id());
    with_count(&mut command, order.exact.then_some(order.count));
    command
}

fn retry_command(order: &Order, delay_key: &str) -> Result<Cmd> {
    let fields = copyable(order.token.copied_fields(&order.owner.group, order.attempts))?;
    let mut command = order_command(&scripts::RETRY, order, delay_key);
    let delay = match order.action {
        Action::Delay(delay) => milliseconds(delay),
        Action::Copy
        | Action::Ack
        | Action::Again { .. }
        | Action::Park { .. }
        | Action::Keep(_)
        | Action::Reply(_)
        | Action::Bury(_) => -1,
    };
    command.arg(delay).arg(u8::from(order.token.copy_of().is_some()));
    for (name, value) in &fields {
        command.arg(name).arg(value);
    }
    Ok(command)
}

fn reply_command(order: &Order, reply: &Append) -> Result<Cmd> {
    if reply.fields.len() > MAX_COPY {
        let fields = reply.fields.len();
        return Err(Error::Server(format!("a reply of {fields} fields is too large to be sent with the ack")));
    }
    let mut command = order_command(&scripts::REPLY, order, &reply.stream);
    with_entry(&mut command, reply);
    Ok(command)
}

pub(super) fn verdict(reply: &Value) -> Verdict {
    match integer(reply) {
        Some(1) => Verdict::Done,
        Some(0) => Verdict::Gone,
        _ => Verdict::Taken,
    }
}

/// Without the group nothing is pending any more: there is nothing left to acknowledge.
fn unacked(kind: Kind, error: &Error) -> Verdict {
    match error {
        Error::NoGroup(_) if kind == Kind::Ack => Verdict::Gone,
        error => Verdict::Refused(error.clone()),
    }
}

#[async_trait]
impl StreamStore for RedisStore {
    async fn connect(&self) -> Result<Abilities> {
        let found = probe::abilities(&self.work).await?;
        self.producer.serves(probe::run_id(&self.work).await?);
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

    async fn scan(&self, origin: &Arc<Origin>, which: &Pending, page: Page<'_>) -> Result<Scanned> {
        match which {
            Pending::Idle(min_idle) => self.scan_idle(origin, *min_idle, page).await,
            Pending::Own { held, uncounted } => self.take_own(origin, held, *uncounted, page).await,
        }
    }

    async fn settle(
        &self,
        origin: &Arc<Origin>,
        acks: &[EntryId],
        orders: &[Order],
        side: SideKeys<'_>,
    ) -> Result<Vec<Verdict>> {
        let SideKeys { delay_key, marks } = side;
        let mut pipeline = Pipeline::new();
        let deletes = self.deleting.read().contains(&origin.stream);
        if deletes {
            bound::push_acks(&mut pipeline, &origin.stream, &origin.group, acks);
        } else {
            push_acks(&mut pipeline, origin, acks);
        }
        let plain = pipeline.len();
        let together = together(orders);
        for group in &together {
            pipeline.add_command(together_command(group, orders, delay_key));
        }
        let mut verdicts = vec![Verdict::Gone; orders.len()];
        let mut moved = Vec::new();
        for (at, order) in orders.iter().enumerate() {
            let command = match &order.action {
                Action::Ack | Action::Again { .. } | Action::Park { .. } | Action::Keep(_) => continue,
                Action::Reply(reply) => reply_command(order, reply),
                Action::Copy | Action::Delay(_) => retry_command(order, delay_key),
                Action::Bury(letter) => letters::bury(order, letter),
            };
            match command {
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
        if let Some((key, ids)) = marks {
            // After what settles them. A mark that stays is found later, and its reply says nothing of interest.
            starts::push_unmarks(&mut pipeline, origin, key, (ids, acks));
        }
        if deletes {
            // What is lost between a script and this is swept up by the trimmer; the replies say nothing of interest.
            bound::push_deletes(&mut pipeline, &origin.stream, orders);
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
        for (group, reply) in together.iter().zip(replies.by_ref()) {
            let answers = reply.map(|reply| items(&reply).iter().map(verdict).collect::<Vec<_>>());
            for (nth, at) in group.orders.iter().enumerate() {
                verdicts[*at] = match &answers {
                    Ok(answers) => answers.get(nth).cloned().unwrap_or(Verdict::Taken),
                    Err(error) => unacked(group.kind, error),
                };
            }
        }
        for (at, reply) in moved.into_iter().zip(replies) {
            verdicts[at] = reply.map_or_else(Verdict::Refused, |reply| verdict(&reply));
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

    async fn due(&self, origin: &Arc<Origin>, delay_key: &str, look: Look, hash_keys: bool) -> Result<Due> {
        let mut command = scripts::call(&scripts::DUE, &[delay_key, &origin.stream]);
        command.arg(&origin.group).arg(&origin.consumer).arg(look.limit).arg(look.room).arg(look.offset);
        command.arg(u8::from(look.keeps_bodiless));
        let reply = self.work.query(&command).await?;
        let [counts @ .., entries, deleted] = items(&reply) else {
            return Err(Error::Protocol("delayed entries were not answered with eight elements".into()));
        };
        let number = |at: usize| counts.get(at).and_then(integer).and_then(|n| u64::try_from(n).ok());
        let count = |at: usize| number(at).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        Ok(Due {
            moved: count(0),
            raw: value::entries(entries, hash_keys),
            deleted: items(deleted).iter().filter_map(value::id).collect(),
            next: number(1).map(Duration::from_millis),
            strange: count(2),
            seen: count(3),
            passed: count(4),
            waiting: count(5),
        })
    }

    async fn unpark(&self, origin: &Origin, delay_key: &str, offset: usize, limit: usize) -> Result<Option<usize>> {
        let mut command = scripts::call(&scripts::UNPARK, &[delay_key, &origin.stream]);
        command.arg(&origin.group).arg(offset).arg(limit);
        let reply = self.work.query(&command).await?;
        Ok(integer(&reply).and_then(|stay| usize::try_from(stay).ok()))
    }

    async fn early(&self, origin: &Arc<Origin>, delay_key: &str, claimed: &[Slot]) -> Result<Vec<(EntryId, Parked)>> {
        let mut command = scripts::call(&scripts::EARLY, &[&origin.stream, delay_key]);
        command.arg(&origin.group).arg(&origin.consumer);
        for slot in claimed {
            with_id(&mut command, slot.id);
            command.arg(slot.earlier).arg(slot.idle_ms);
        }
        let reply = self.work.query(&command).await?;
        let parked = |row: &Value| {
            let [id, lain] = items(row) else {
                return None;
            };
            let lain = u64::try_from(integer(lain)?).map_or(Parked::Early, Parked::Due);
            Some((value::id(id)?, lain))
        };
        Ok(items(&reply).iter().filter_map(parked).collect())
    }

    fn delete_acked(&self, stream: &str) {
        self.deleting.write().insert(stream.to_owned());
    }

    async fn trim(&self, stream: &str, groups: &[String], bound: Bound, limit: usize) -> Result<Trimmed> {
        self.trim_step(stream, groups, bound, limit).await
    }

    async fn list_groups(&self, stream: &str) -> Result<Option<Vec<GroupRow>>> {
        self.group_rows(stream).await
    }

    async fn list_pending(&self, stream: &str, group: &str, count: usize) -> Result<Vec<PendingRow>> {
        self.pending_rows(stream, group, count).await
    }

    async fn consumers(&self, stream: &str, group: &str, living: &[&str]) -> Result<Vec<ConsumerRow>> {
        self.consumer_rows(stream, group, living).await
    }

    async fn forget_consumers(&self, stream: &str, group: &str, names: &[&str], idle: Duration) -> Result<Vec<String>> {
        self.forget(stream, group, names, idle).await
    }

    async fn start_marks(&self, key: &str, ids: &[EntryId]) -> Result<Vec<Option<String>>> {
        self.get_marks(key, ids).await
    }

    async fn mark_starts(&self, owner: &Origin, key: &str, marks: &[StartMark]) -> Result<Vec<Verdict>> {
        self.put_marks(owner, key, marks).await
    }

    async fn unmark_starts(&self, origin: &Origin, key: &str, ids: &[EntryId]) -> Result<usize> {
        self.remove_marks(origin, key, ids).await
    }

    async fn marked_starts(&self, key: &str, cursor: u64, count: usize) -> Result<(Vec<EntryId>, u64)> {
        self.list_marks(key, cursor, count).await
    }

    async fn mark(&self, step: MarkStep, owner: &str, keys: &[MarkKey]) -> Result<Vec<Result<MarkState>>> {
        self.mark_step(step, owner, keys).await
    }

    async fn append(&self, entries: &[Append], stamp: Option<Stamp>) -> Result<Vec<Result<EntryId>>> {
        self.producer.append(&self.publish, entries, stamp).await
    }

    async fn append_together(&self, entries: &[Append], stamp: Option<Stamp>) -> Result<Vec<Result<EntryId>>> {
        self.producer.append_together(&self.publish, entries, stamp).await
    }

    async fn remembers(&self, entries: &[Append], age: Duration) -> Result<bool> {
        self.producer.remembers(&self.publish, entries, age).await
    }

    async fn range(&self, stream: &str, cursor: EntryId, count: usize) -> Result<RawBatch> {
        self.entries_after(stream, cursor, count).await
    }

    async fn length(&self, stream: &str) -> Result<usize> {
        self.length_of(stream).await
    }

    async fn replay(&self, letters: &str, replays: Vec<Replay>) -> Result<Vec<Result<Option<EntryId>>>> {
        self.put_back(letters, &replays).await
    }

    async fn close(&self) {
        self.work.close().await;
        self.publish.close().await;
    }
}
