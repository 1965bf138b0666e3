//! What a stream server can do, in our words. Redis and Valkey are one implementation.
//!
//! Every operation that must not be torn apart is one method, so that an implementation makes it atomic by its own
//! means: a script on a server, a lock in a process.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::batch::{Origin, RawBatch};
use crate::entry::{EntryId, Slot};
use crate::error::{Error, Result};
use crate::letter::Letter;
use crate::mark::{MarkKey, MarkState, MarkStep};
use crate::token::Token;

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

/// What to do with one entry, after checking that it is still its holder's.
#[derive(Debug)]
pub struct Order {
    /// The entry.
    pub token: Token,
    /// Who must own it for the order to be carried out.
    pub owner: Arc<Origin>,
    /// The delivery count it stands at, as far as this process knows.
    pub count: u32,
    /// Its owner's name may be another process's too: only what stands at this count is moved. Otherwise its own process
    /// may have claimed it once more: what is parked is set back to this count. `Keep` always goes by it, acks never do.
    pub exact: bool,
    /// What to do.
    pub action: Action,
    /// Attempts so far, which a copy carries on; none where they are not capped.
    pub attempts: Option<u32>,
}

/// How an owner-checked order ends an entry's delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Off the pending list.
    Ack,
    /// A copy at the stream's end, and off the pending list, in one step.
    Copy,
    /// Into the sorted set of delayed entries, and off the pending list, in one step.
    Delay(Duration),
    /// It stays pending, and counts as delivered once more, to its owner.
    Again {
        /// It was sent before, and nobody knows whether it was carried out: if so, it counts once.
        resent: bool,
    },
    /// It stays pending under its own id; its due time goes into the sorted set of delayed entries.
    Park {
        /// From now.
        delay: Duration,
        /// It was sent before, and nobody knows whether it was carried out: if so, its due time stays.
        resent: bool,
    },
    /// It stays pending, with its owner, who runs it again after so long. Its due time goes into the sorted set of
    /// delayed entries, for whoever claims it should the owner be gone by then; it is not handed over from there.
    /// `Again` removes it. What an earlier order has put there stays.
    Keep(Duration),
    /// A reply to a stream's end, and off the pending list, in one step.
    Reply(Arc<Append>),
    /// A letter in its place, and off the pending list, in one step.
    Bury(Arc<Letter>),
}

/// Fields of the largest entry that is copied: a server's script can take no more, since Lua's stack ends near 8,000
/// strings.
pub(crate) const MAX_COPY: usize = 3500;

/// The fields of a copy, unless they are too many.
pub(crate) fn copyable(fields: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    if fields.len() > MAX_COPY {
        return Err(Error::Server(format!("an entry of {} fields is too large to be copied", fields.len())));
    }
    Ok(fields)
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Carried out.
    Done,
    /// It was not on the pending list any more. For acks also: the group is gone.
    Gone,
    /// Someone else owns it.
    Taken,
    /// The server refused it; the entry is still pending, unless its group is what is missing.
    Refused(Error),
}

/// What is kept beside a stream for one of its groups, as far as settling touches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideKeys<'a> {
    /// The sorted set of delayed entries.
    pub delay_key: &'a str,
    /// The hash of the marks of starts, and the entries whose marks go once they are pending no more.
    pub marks: Option<(&'a str, &'a [EntryId])>,
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

/// One entry to add.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Append {
    /// The stream.
    pub stream: Arc<str>,
    /// Name and value pairs. What entries have in common is shared.
    pub fields: Vec<(Bytes, Bytes)>,
    /// Trim the stream on the way.
    pub trim: Option<Trim>,
}

/// How `Append` trims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trim {
    /// `MAXLEN` or `MINID`.
    pub strategy: &'static str,
    /// The length or the id.
    pub threshold: String,
    /// Whether whole nodes only are trimmed, which is much cheaper.
    pub approximate: bool,
}

/// A letter that goes back into a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Its id among the letters.
    pub id: EntryId,
    /// The stream it goes into.
    pub to: String,
    /// With these fields.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The numbers that make it harmless to send entries twice: what was added under its number before is not added again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Goes up whenever a reply was lost, so that no later entry makes the server forget those that were under way.
    pub generation: u32,
    /// The number of the first entry; the others follow.
    pub first: u64,
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
