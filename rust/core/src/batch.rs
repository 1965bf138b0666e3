//! What one read returned: its bytes, a slot per entry, and how far each entry has come.
//!
//! Everything that can be kept per batch is: one buffer, one age, one list to look ids up in. An entry costs
//! one byte of state beside its slot.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::credit::Credits;
use crate::entry::{EntryId, Slot, Span};
use crate::{header, reply};

/// Where entries of a batch come from, and under which name they are held.
#[derive(Debug, PartialEq, Eq)]
pub struct Origin {
    /// The subscription, as the user knows it.
    pub subscription: String,
    /// The stream.
    pub stream: String,
    /// The consumer group.
    pub group: String,
    /// The consumer: the owner of what is pending.
    pub consumer: String,
}

/// Entries as a store gives them, before a subscription takes them in.
#[derive(Debug, Default)]
pub struct RawBatch {
    /// What the slots point into.
    pub bytes: Bytes,
    /// The entries.
    pub slots: Vec<Slot>,
}

impl RawBatch {
    /// Append an entry whose parts are not in one buffer yet; for replies that are not walked in place.
    pub fn push(&mut self, buffer: &mut Vec<u8>, mut slot: Slot, fields: &[(&[u8], &[u8])], hash_keys: bool) {
        let mark = |buffer: &Vec<u8>| u32::try_from(buffer.len()).unwrap_or(u32::MAX - 1);
        slot.fields.start = mark(buffer);
        for (name, value) in fields {
            let mut value_span = Span::NONE;
            for part in [name, value] {
                buffer.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
                value_span.start = mark(buffer);
                buffer.extend_from_slice(part);
                value_span.end = mark(buffer);
                buffer.extend_from_slice(b"\r\n");
            }
            slot.note(name, value, value_span, hash_keys);
        }
        slot.fields.end = mark(buffer);
        slot.field_count = u32::try_from(fields.len()).unwrap_or(u32::MAX);
        self.slots.push(slot);
    }
}

/// How far an entry has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// Waits for a lane.
    Queued = 0,
    /// Its handler runs.
    Running = 1,
    /// Its outcome is given, and not yet answered by the server.
    Settled = 2,
    /// Nothing of it is left to do here: answered, left pending, released.
    Done = 3,
}

/// Set beside the mark once someone else owns the entry.
const LOST: u8 = 0x80;

impl Mark {
    const fn of(byte: u8) -> Self {
        match byte & !LOST {
            0 => Self::Queued,
            1 => Self::Running,
            2 => Self::Settled,
            _ => Self::Done,
        }
    }
}

/// Entries that were read together.
#[derive(Debug)]
pub struct Batch {
    bytes: Bytes,
    slots: Vec<Slot>,
    marks: Box<[AtomicU8]>,
    open: AtomicUsize,
    refreshed_ms: AtomicU64,
    sorted: bool,
    /// Whose room its bytes take up until the last entry is done.
    weighs_on: OnceLock<Arc<Credits>>,
    /// Where the entries come from.
    pub origin: Arc<Origin>,
}

impl Batch {
    /// Take in what was read at `now_ms` of the clock.
    pub fn new(raw: RawBatch, origin: Arc<Origin>, now_ms: u64) -> Arc<Self> {
        let marks = raw.slots.iter().map(|_| AtomicU8::new(Mark::Queued as u8)).collect();
        Arc::new(Self {
            open: AtomicUsize::new(raw.slots.len()),
            sorted: raw.slots.is_sorted_by_key(|slot| slot.id),
            bytes: raw.bytes,
            slots: raw.slots,
            marks,
            refreshed_ms: AtomicU64::new(now_ms),
            weighs_on: OnceLock::new(),
            origin,
        })
    }

    /// Take up room: that of its entries, and that of its bytes until the last of them is done.
    pub fn weigh_on(&self, credits: &Arc<Credits>) {
        if self.weighs_on.set(Arc::clone(credits)).is_ok() {
            credits.take(self.slots.len(), self.bytes.len());
        }
    }

    /// The entries.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// How many entries are not done.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// When its entries were last read or renewed, in milliseconds of the clock.
    pub fn refreshed_ms(&self) -> u64 {
        self.refreshed_ms.load(Ordering::Acquire)
    }

    /// Note a renewal that began at `now_ms`.
    pub fn refresh(&self, now_ms: u64) {
        self.refreshed_ms.store(now_ms, Ordering::Release);
    }

    /// Where an id stands in this batch. New entries come in order; claimed ones by age.
    pub fn position(&self, id: EntryId) -> Option<usize> {
        if self.sorted {
            self.slots.binary_search_by_key(&id, |slot| slot.id).ok()
        } else {
            self.slots.iter().position(|slot| slot.id == id)
        }
    }

    /// How far the entry at `index` has come.
    pub fn mark(&self, index: usize) -> Mark {
        Mark::of(self.marks[index].load(Ordering::Acquire))
    }

    /// A token for each entry.
    pub fn tokens(self: &Arc<Self>) -> impl Iterator<Item = Token> + '_ {
        (0..self.slots.len()).map(|index| Token::new(Arc::clone(self), index))
    }
}

/// One entry of a batch; what a delivery is settled by.
#[derive(Debug, Clone)]
pub struct Token {
    batch: Arc<Batch>,
    index: u32,
}

impl Token {
    /// The token of the entry at `index`.
    pub fn new(batch: Arc<Batch>, index: usize) -> Self {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        Self { batch, index }
    }

    /// The batch it came with.
    pub fn batch(&self) -> &Arc<Batch> {
        &self.batch
    }

    /// Its slot.
    pub fn slot(&self) -> &Slot {
        &self.batch.slots[self.index as usize]
    }

    /// Whether both are of the same delivery.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.batch, &other.batch) && self.index == other.index
    }

    /// Its id.
    pub fn id(&self) -> EntryId {
        self.slot().id
    }

    /// Its body; empty where it has none.
    pub fn payload(&self) -> &[u8] {
        self.slot().payload.of(&self.batch.bytes)
    }

    /// The partition key header, where it has one.
    pub fn key(&self) -> Option<&[u8]> {
        let key = self.slot().key;
        key.is_some().then(|| key.of(&self.batch.bytes))
    }

    /// The group whose retry made this copy.
    pub fn copy_of(&self) -> Option<&[u8]> {
        let group = self.slot().copy_of;
        group.is_some().then(|| group.of(&self.batch.bytes))
    }

    /// All fields, in the order they were added.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let bytes: &[u8] = &self.batch.bytes;
        reply::fields(bytes, self.slot()).map(|(name, value)| (name.of(bytes), value.of(bytes)))
    }

    /// The fields of a copy that a retry in `group` makes: those of the original, with the retry headers written anew and
    /// the id that the first of them had. `attempts`: what is counted of them so far, where they are capped.
    pub fn copied_fields(&self, group: &str, attempts: Option<u32>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let kept = self.fields().filter(|(name, _)| !header::is_rewritten(name));
        let mut fields: Vec<_> = kept.map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(header::ORIGINAL_ID)) {
            fields.push((header::ORIGINAL_ID.to_vec(), self.id().to_string().into_bytes()));
        }
        fields.push((header::RETRY_COUNT.to_vec(), self.delivery_count().to_string().into_bytes()));
        fields.push((header::RETRY_GROUP.to_vec(), group.as_bytes().to_vec()));
        fields.extend(attempts.map(|attempts| (header::ATTEMPTS.to_vec(), attempts.to_string().into_bytes())));
        fields
    }

    /// What a reply to it correlates by: its own `correlation-id`, else its `message-id`, else its id.
    pub fn correlation_id(&self) -> Vec<u8> {
        let header = |wanted: &[u8]| {
            let found = self.fields().filter(|(name, value)| name.eq_ignore_ascii_case(wanted) && !value.is_empty());
            found.last().map(|(_, value)| value.to_vec())
        };
        header(header::CORRELATION_ID)
            .or_else(|| header(header::MESSAGE_ID))
            .unwrap_or_else(|| self.id().to_string().into_bytes())
    }

    /// The entry by itself, in a buffer of its own, as one that was delivered so often before.
    pub(crate) fn copied_alone(&self, earlier: u32, idle_ms: u64, hash_keys: bool) -> RawBatch {
        let (mut raw, mut buffer) = (RawBatch::default(), Vec::new());
        let slot = Slot { idle_ms, earlier, ..Slot::new(self.id()) };
        raw.push(&mut buffer, slot, &self.fields().collect::<Vec<_>>(), hash_keys);
        raw.bytes = buffer.into();
        raw
    }

    /// Deliveries including this one; those of the entries it is a copy of count on.
    pub fn delivery_count(&self) -> u32 {
        let slot = self.slot();
        slot.earlier.saturating_add(slot.retries).saturating_add(1)
    }

    /// Attempts of the entries this one is a copy of; where they were not counted, their deliveries.
    pub fn attempts_before(&self) -> u32 {
        let slot = self.slot();
        if slot.attempts > 0 { slot.attempts } else { slot.retries }
    }

    /// Whether it comes once more: it was delivered before, or is a copy of one that was.
    pub fn comes_again(&self) -> bool {
        let slot = self.slot();
        slot.earlier > 0 || slot.retries > 0
    }

    /// The delivery count that the server keeps for this entry's owner.
    pub fn server_count(&self) -> u32 {
        self.slot().earlier.saturating_add(1)
    }

    fn cell(&self) -> &AtomicU8 {
        &self.batch.marks[self.index as usize]
    }

    /// How far it has come.
    pub fn mark(&self) -> Mark {
        Mark::of(self.cell().load(Ordering::Acquire))
    }

    /// Whether someone else owns it by now.
    pub fn is_lost(&self) -> bool {
        self.cell().load(Ordering::Acquire) & LOST != 0
    }

    /// Queued becomes running. False: it was taken back meanwhile.
    pub fn begin(&self) -> bool {
        self.advance(Mark::Queued, Mark::Running)
    }

    /// Move to `to` if the mark is `from`, keeping the flag. False when it is not.
    pub fn advance(&self, from: Mark, to: Mark) -> bool {
        let moved = self.cell().fetch_update(Ordering::AcqRel, Ordering::Acquire, |byte| {
            (Mark::of(byte) == from).then_some((byte & LOST) | to as u8)
        });
        if moved.is_ok()
            && to == Mark::Done
            && self.batch.open.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(credits) = self.batch.weighs_on.get()
        {
            credits.give_bytes(self.batch.bytes.len());
        }
        moved.is_ok()
    }

    /// Someone else owns it now. False if that was known.
    pub fn lose(&self) -> bool {
        self.cell().fetch_or(LOST, Ordering::AcqRel) & LOST == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::KEYLESS;
    use crate::header;
    use crate::partition::partition;

    fn origin() -> Arc<Origin> {
        let [subscription, stream, group, consumer] = ["s", "payments", "ledger", "c"].map(String::from);
        Arc::new(Origin { subscription, stream, group, consumer })
    }

    fn batch(ids: &[u64]) -> Arc<Batch> {
        let slots = ids.iter().map(|ms| Slot::new(EntryId::new(*ms, 0))).collect();
        Batch::new(RawBatch { slots, ..RawBatch::default() }, origin(), 7)
    }

    fn pushed(fields: &[(&[u8], &[u8])], hash_keys: bool) -> Token {
        let (mut raw, mut buffer) = (RawBatch::default(), Vec::new());
        raw.push(&mut buffer, Slot::new(EntryId::new(1, 0)), &[(b"before", b"it")], hash_keys);
        raw.push(&mut buffer, Slot::new(EntryId::new(2, 0)), fields, hash_keys);
        raw.bytes = buffer.into();
        Token::new(Batch::new(raw, origin(), 0), 1)
    }

    #[test]
    fn a_pushed_entry_reads_as_one_that_was_walked() {
        let fields: [(&[u8], &[u8]); 5] = [
            (b"_payload", b"first"),
            (header::KEY, b"acct-1"),
            (header::RETRY_COUNT, b"3"),
            (header::RETRY_GROUP, b"ledger"),
            (b"_payload", b"\r\n$1\r\n"),
        ];
        let token = pushed(&fields, true);
        assert_eq!(token.fields().collect::<Vec<_>>(), fields);
        assert_eq!((token.payload(), token.key()), (&b"\r\n$1\r\n"[..], Some(&b"acct-1"[..])));
        assert_eq!((token.copy_of(), token.slot().retries), (Some(&b"ledger"[..]), 3));
        assert_eq!(token.slot().partition, partition(b"acct-1"));
        let mut reply = b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n2-0\r\n*10\r\n".to_vec();
        let span = token.slot().fields;
        reply.extend_from_slice(span.of(&token.batch().bytes));
        let mut walked = Vec::new();
        let end = reply::Walker::new(true).walk(&reply, &mut walked);
        assert_eq!((end, walked.len()), (Ok(reply::Progress::Done(reply.len())), 1));
        let read = |slot: &Slot, bytes: &[u8]| {
            [slot.payload, slot.key, slot.copy_of].map(|span| span.is_some().then(|| span.of(bytes).to_vec()))
        };
        assert_eq!(read(&walked[0], &reply), read(token.slot(), &token.batch().bytes));
    }

    #[test]
    fn a_pushed_entry_without_key_or_body_has_none() {
        let token = pushed(&[(b"account", b"a")], true);
        assert_eq!((token.payload(), token.key(), token.copy_of()), (&b""[..], None, None));
        assert_eq!(token.slot().partition, KEYLESS);
        assert_eq!(pushed(&[(header::KEY, b"a")], false).slot().partition, KEYLESS, "nobody asked for it");
        assert_eq!(pushed(&[], true).fields().count(), 0);
    }

    #[test]
    fn a_reply_correlates_by_what_the_entry_brought_or_by_its_id() {
        let (correlation, message): (&[u8], &[u8]) = (b"h:Correlation-Id", b"h:message-id");
        assert_eq!(pushed(&[(message, b"m"), (correlation, b"c")], false).correlation_id(), b"c");
        assert_eq!(pushed(&[(message, b"a"), (message, b"b"), (correlation, b"")], false).correlation_id(), b"b");
        assert_eq!(pushed(&[(b"message-id", b"m")], false).correlation_id(), b"2-0");
    }

    #[test]
    fn deliveries_count_this_one_and_those_of_the_original() {
        let mut slot = Slot::new(EntryId::new(1, 0));
        (slot.earlier, slot.retries) = (2, 3);
        let raw = RawBatch { slots: vec![slot], ..RawBatch::default() };
        let token = Token::new(Batch::new(raw, origin(), 0), 0);
        assert_eq!((token.delivery_count(), token.server_count()), (6, 3));
        slot.set_history(0, i64::MAX);
        slot.retries = u32::MAX;
        let raw = RawBatch { slots: vec![slot], ..RawBatch::default() };
        assert_eq!(Token::new(Batch::new(raw, origin(), 0), 0).delivery_count(), u32::MAX);
    }

    #[test]
    fn an_id_is_found_in_order_or_out_of_it() {
        for ids in [&[1, 2, 5, 9][..], &[9, 1, 5, 2]] {
            let batch = batch(ids);
            for (at, ms) in ids.iter().enumerate() {
                assert_eq!(batch.position(EntryId::new(*ms, 0)), Some(at));
            }
            assert_eq!((batch.position(EntryId::new(3, 0)), batch.position(EntryId::new(5, 1))), (None, None));
        }
    }

    #[test]
    fn an_entry_goes_its_way_once_and_a_finished_batch_is_not_open() {
        let batch = batch(&[1, 2]);
        let [first, second] = &batch.tokens().collect::<Vec<_>>()[..] else { panic!("two entries") };
        assert!(!first.advance(Mark::Running, Mark::Settled), "it has not begun");
        assert!(first.begin() && !first.begin(), "it begins once");
        assert!(first.advance(Mark::Running, Mark::Settled) && !first.advance(Mark::Running, Mark::Settled));
        assert_eq!((batch.open(), batch.mark(0), batch.mark(1)), (2, Mark::Settled, Mark::Queued));
        assert!(first.advance(Mark::Settled, Mark::Done) && !first.advance(Mark::Settled, Mark::Done));
        assert!(second.advance(Mark::Queued, Mark::Done) && !second.begin(), "taken back before it began");
        assert_eq!(batch.open(), 0);
    }

    #[test]
    fn losing_an_entry_is_noted_once_and_hides_no_mark() {
        let token = Token::new(batch(&[1]), 0);
        assert!(token.begin() && !token.is_lost());
        assert!(token.lose() && !token.lose());
        assert_eq!((token.is_lost(), token.mark()), (true, Mark::Running));
        assert!(token.advance(Mark::Running, Mark::Done));
        assert_eq!((token.is_lost(), token.mark()), (true, Mark::Done));
    }

    #[test]
    fn many_threads_begin_an_entry_once_between_them() {
        let batch = batch(&(0..500).collect::<Vec<_>>());
        let begun: usize = std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..4).map(|_| scope.spawn(|| batch.tokens().filter(Token::begin).count())).collect();
            lanes.into_iter().map(|lane| lane.join().unwrap_or_default()).sum()
        });
        assert_eq!(begun, 500);
    }

    #[test]
    fn a_buffer_takes_up_room_until_its_last_entry_is_done() {
        let credits = Arc::new(Credits::new(10));
        let raw = RawBatch { bytes: Bytes::from_static(b"twelve bytes"), slots: batch(&[1, 2]).slots().to_vec() };
        let batch = Batch::new(raw, origin(), 0);
        for _ in 0..2 {
            batch.weigh_on(&credits);
            assert_eq!((credits.used(), credits.bytes()), (2, 12), "weighed once");
        }
        for (token, left) in batch.tokens().zip([12, 0]) {
            assert!(token.advance(Mark::Queued, Mark::Done));
            assert_eq!(credits.bytes(), left);
        }
    }

    #[test]
    fn a_renewal_makes_the_batch_young_again() {
        let batch = batch(&[1]);
        assert_eq!(batch.refreshed_ms(), 7);
        batch.refresh(90);
        assert_eq!(batch.refreshed_ms(), 90);
    }
}
