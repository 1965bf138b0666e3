//! `StreamStore` over RESP.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Value, cmd};
use async_trait::async_trait;
use parking_lot::RwLock;

use super::link::Link;
use super::producer::Producer;
use super::socket::SocketReader;
use super::value::{self, integer, items, named};
use super::{Address, probe, scripts};
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
    pub(super) deleting: RwLock<HashSet<String>>,
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
        self.carry_out(origin, acks, orders, side).await
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
