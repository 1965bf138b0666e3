//! What a stream server can do, in our words. Redis and Valkey are one implementation.
//!
//! Every operation that must not be torn apart is one method, so that an implementation makes it atomic by its own
//! means: a script on a server, a lock in a process.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::append::{Append, Replay, Stamp};
use crate::batch::{Origin, RawBatch};
use crate::entry::{EntryId, Slot};
use crate::error::{Error, Result};
use crate::mark::{MarkKey, MarkState, MarkStep};
use crate::order::{Order, SideKeys, Verdict};

/// What the connected server can do, found by asking it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent answer of the server")]
pub struct Abilities {
    /// `redis` or `valkey`.
    pub server: String,
    /// As it reports it; for messages only.
    pub version: String,
    /// `XREADGROUP ... CLAIM` (Redis 8.4).
    pub claim: bool,
    /// `XNACK` (Redis 8.8).
    pub xnack: bool,
    /// `XACKDEL` (Redis 8.2).
    pub xackdel: bool,
    /// `MAXSIZE` of reads (Redis 8.10).
    pub max_size: bool,
    /// `IDMP` of `XADD` (Redis 8.6).
    pub idempotent: bool,
    /// The longest value it takes, in bytes; none: it did not say.
    pub max_value: Option<u64>,
}

/// One read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Entries at most.
    pub count: usize,
    /// How long the server may wait for one; none: answer at once.
    pub block: Option<Duration>,
    /// Take over entries that lay pending for so long first.
    pub claim: Option<Duration>,
}

/// A connection of its own for one subscription's reads.
#[async_trait]
pub trait EntryReader: Send {
    /// The answer to the oldest read that was asked for, or to this one, where none is under way. `ahead`: ask for
    /// this as well before the answer is looked at, so that the server need not wait for us.
    /// Cancelling it loses nothing only if the reader is dropped after.
    async fn read(&mut self, want: Want, ahead: Option<Want>) -> Result<RawBatch>;
    /// What `StreamStore::unblock` knows this reader by.
    fn id(&self) -> i64;
}

/// Which pending entries a scan takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pending {
    /// Anyone's, idle for at least so long.
    Idle(Duration),
    /// Those of the reader's own consumer name, however fresh.
    Own {
        /// But for these, which it holds.
        held: HashSet<EntryId>,
        /// Taking them is no delivery: the one that is counted never arrived.
        uncounted: bool,
    },
}

/// Which step of a scan over a pending list is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page<'a> {
    /// Behind which id it begins.
    pub cursor: EntryId,
    /// Entries at most.
    pub count: usize,
    /// Compute partitions.
    pub hash_keys: bool,
    /// The stream that gets a letter for each entry whose body is gone; none: they are acknowledged.
    pub dead_letter: Option<&'a str>,
}

/// One bounded step of a scan over a pending list.
#[derive(Debug, Default)]
pub struct Scanned {
    /// What was taken over.
    pub raw: RawBatch,
    /// Where the next step begins; none: the end was reached.
    pub cursor: Option<EntryId>,
    /// Pending entries whose body is gone; they are off the list now.
    pub deleted: Vec<EntryId>,
    /// How many more of them there were whose letter the server refused, and why; they are still pending.
    pub refused: Option<(usize, Error)>,
}

/// What is to be kept of an entry's starts, if it is still its holder's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartMark {
    /// The entry.
    pub id: EntryId,
    /// The delivery count it must stand at; none: whatever its count.
    pub count: Option<u32>,
    /// The mark; empty: take it away.
    pub text: String,
}

/// One look at the delayed entries that are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Members of the sorted set to look at.
    pub limit: usize,
    /// Parked entries to take over, at most.
    pub room: usize,
    /// Leave entries whose body is gone pending: the scan that finds them writes their letters.
    pub keeps_bodiless: bool,
    /// Members to pass over: an earlier look has seen them, and they stay.
    pub offset: usize,
}

/// Delayed entries that were due.
#[derive(Debug, Default)]
pub struct Due {
    /// Copies that were moved back into their stream.
    pub moved: usize,
    /// Parked entries that were taken over.
    pub raw: RawBatch,
    /// Parked entries whose body is gone; they are off the pending list now.
    pub deleted: Vec<EntryId>,
    /// When the next member is due, from now.
    pub next: Option<Duration>,
    /// Members of the sorted set that are no entries of ours; they were put aside, behind everything.
    pub strange: usize,
    /// Members that were looked at.
    pub seen: usize,
    /// Of these, those that stay where they are.
    pub passed: usize,
    /// Of these, parked entries of the group, which wait for room.
    pub waiting: usize,
}

/// A claimed entry that was parked or kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// It is due, after so many milliseconds.
    Due(u64),
    /// It is not due yet: it was parked again, at the delivery count it had.
    Early,
}

/// What a stream is kept within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Entries that some group has not acknowledged.
    Acked,
    /// So many entries, the newest.
    Length(u64),
    /// Entries that are younger than this.
    Age(Duration),
}

/// One bounded step of trimming. What a group has before it or pending stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// How many entries went.
    pub removed: usize,
    /// Where none could go: how many should; 1 stands for some where that can't be told.
    pub over: u64,
    /// The groups that need them.
    pub holders: Vec<Holder>,
}

/// A group that needs entries which should be trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub group: String,
    /// Its pending entries.
    pub pending: u64,
    /// How many it has before it, where the server can tell.
    pub lag: Option<u64>,
}

/// A group as its stream knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRow {
    /// Its name.
    pub name: String,
    /// Its consumers.
    pub consumers: u64,
    /// Its pending entries.
    pub pending: u64,
    /// How many entries it has before it, where the server can tell.
    pub lag: Option<u64>,
    /// The id up to which it has given out entries.
    pub last: EntryId,
}

/// A pending entry as its group knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRow {
    /// Its id.
    pub id: EntryId,
    /// Whose it is; empty for one that was handed back.
    pub consumer: String,
    /// Since its last delivery; none for one that was handed back.
    pub idle: Option<Duration>,
    /// Deliveries.
    pub deliveries: u64,
}

/// A consumer as its group knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerRow {
    /// Its name.
    pub name: String,
    /// Its pending entries.
    pub pending: u64,
    /// Since it was last heard of. Before Redis 7.2: since it last got something.
    pub idle: Duration,
    /// Since it last got something, where that is told and ever was.
    pub inactive: Option<Duration>,
}

/// A server of streams.
#[async_trait]
pub trait StreamStore: Send + Sync + std::fmt::Debug + 'static {
    /// Connect, and ask what the server can do.
    async fn connect(&self) -> Result<Abilities>;
    /// What it could do when last asked; nothing before `connect`.
    fn abilities(&self) -> Abilities;
    /// The server's time of day, in milliseconds.
    async fn time_ms(&self) -> Result<u64>;
    /// Create a group, and its stream with it. False: it was there.
    async fn create_group(&self, stream: &str, group: &str, start: &str) -> Result<bool>;
    /// The id up to which the group has given out entries; none where there is no such group.
    async fn cursor(&self, stream: &str, group: &str) -> Result<Option<EntryId>>;
    /// Move a group's cursor.
    async fn move_group(&self, stream: &str, group: &str, position: &str) -> Result<()>;
    /// The id last given out in this stream; none where there is no stream.
    async fn last_id(&self, stream: &str) -> Result<Option<EntryId>>;
    /// A connection for reading. `hash_keys`: compute partitions.
    async fn open_reader(&self, origin: &Arc<Origin>, hash_keys: bool) -> Result<Box<dyn EntryReader>>;
    /// End a reader's blocked read early; its reply still comes.
    async fn unblock(&self, reader: i64) -> Result<()>;
    /// Take over pending entries, one page of them.
    async fn scan(&self, origin: &Arc<Origin>, which: &Pending, page: Page<'_>) -> Result<Scanned>;
    /// Acknowledge ids without a check, and carry out owner-checked orders, in one round trip. One verdict per order.
    async fn settle(
        &self,
        origin: &Arc<Origin>,
        acks: &[EntryId],
        orders: &[Order],
        side: SideKeys<'_>,
    ) -> Result<Vec<Verdict>>;
    /// Make entries young again without counting a delivery. Returns those that are another consumer's by now.
    async fn renew(&self, origin: &Arc<Origin>, ids: &[EntryId]) -> Result<Vec<EntryId>>;
    /// Give entries back: claimable at once, at the delivery count they had before. Returns how many were ours.
    async fn release(&self, origin: &Arc<Origin>, entries: &[(EntryId, u32)]) -> Result<usize>;
    /// Move copies that are due back into their stream, and take over parked entries of the group that are.
    async fn due(&self, origin: &Arc<Origin>, delay_key: &str, look: Look, hash_keys: bool) -> Result<Due>;
    /// Remove the parked entries of a group that is not there: one that is made again has none. Looks at `limit` members
    /// behind `offset` of them. Returns how many of these stay; none: there are no more to look at.
    async fn unpark(&self, origin: &Origin, delay_key: &str, offset: usize, limit: usize) -> Result<Option<usize>>;
    /// Which of these entries, just claimed, were parked, or kept by an owner that is gone. Those that are not due are
    /// parked again.
    async fn early(&self, origin: &Arc<Origin>, delay_key: &str, claimed: &[Slot]) -> Result<Vec<(EntryId, Parked)>>;
    /// From now on, what this client acknowledges in this stream is deleted once no group needs it any more.
    fn delete_acked(&self, stream: &str);
    /// Remove entries that no group needs, the oldest first and `limit` at most, until the stream is within its bound.
    /// Nothing is removed while one of `groups` is missing: it may be about to be made again.
    async fn trim(&self, stream: &str, groups: &[String], bound: Bound, limit: usize) -> Result<Trimmed>;
    /// The groups of a stream; none where there is no stream.
    async fn list_groups(&self, stream: &str) -> Result<Option<Vec<GroupRow>>>;
    /// Pending entries of a group, the lowest ids first, `count` at most.
    async fn list_pending(&self, stream: &str, group: &str, count: usize) -> Result<Vec<PendingRow>>;
    /// The consumers of a group as they were, having noted that those of `living` live. Nothing where there is no
    /// stream.
    async fn consumers(&self, stream: &str, group: &str, living: &[&str]) -> Result<Vec<ConsumerRow>>;
    /// Delete those of these consumers that have nothing pending and were not heard of for so long; looked at and
    /// deleted in one step. Returns their names.
    async fn forget_consumers(&self, stream: &str, group: &str, names: &[&str], idle: Duration) -> Result<Vec<String>>;
    /// The marks of starts of these entries, none where there is none.
    async fn start_marks(&self, key: &str, ids: &[EntryId]) -> Result<Vec<Option<String>>>;
    /// Write marks of entries that `owner` holds, in one step. One verdict each: taken and gone ones keep their marks.
    async fn mark_starts(&self, owner: &Origin, key: &str, marks: &[StartMark]) -> Result<Vec<Verdict>>;
    /// Take away the marks of those entries that are not pending any more. Returns how many.
    async fn unmark_starts(&self, origin: &Origin, key: &str, ids: &[EntryId]) -> Result<usize>;
    /// Some of the entries that have marks, about `count`, and where to look for more; 0: that was the end.
    async fn marked_starts(&self, key: &str, cursor: u64, count: usize) -> Result<(Vec<EntryId>, u64)>;
    /// Do the same with several marks, 500 at most. One result each; an outer error: nothing is known of any.
    async fn mark(&self, step: MarkStep, owner: &str, keys: &[MarkKey]) -> Result<Vec<Result<MarkState>>>;
    /// Add entries in one pipeline. One result each; an outer error: none of the replies came. Only a server that is
    /// `idempotent` is given a stamp.
    async fn append(&self, entries: &[Append], stamp: Option<Stamp>) -> Result<Vec<Result<EntryId>>>;
    /// Add all entries at once, or none: nobody sees some of them without the others. An outer error says of none that
    /// it was added.
    async fn append_together(&self, entries: &[Append], stamp: Option<Stamp>) -> Result<Vec<Result<EntryId>>>;
    /// Whether it still knows the numbers of entries that were sent under a stamp so long ago, so that sending them
    /// again adds none twice.
    async fn remembers(&self, entries: &[Append], age: Duration) -> Result<bool>;
    /// Entries of a stream behind `cursor`, `count` at most, oldest first.
    async fn range(&self, stream: &str, cursor: EntryId, count: usize) -> Result<RawBatch>;
    /// How many entries a stream has.
    async fn length(&self, stream: &str) -> Result<usize>;
    /// Add each letter to its stream and delete it where it lay, in one step. One result each; none: it is not there
    /// any more. An outer error: nobody knows which of them went.
    async fn replay(&self, letters: &str, replays: Vec<Replay>) -> Result<Vec<Result<Option<EntryId>>>>;
    /// Close all connections.
    async fn close(&self);
}
