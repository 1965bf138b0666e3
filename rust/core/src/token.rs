//! One entry of a batch: what it reads as, and how far it has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::batch::{Batch, LOST, Mark, RawBatch};
use crate::entry::{EntryId, Slot, Span};
use crate::{header, reply};

/// One entry of a batch; what a delivery is settled by.
#[derive(Debug, Clone)]
pub struct Token {
    batch: Arc<Batch>,
    index: u32,
}

impl Batch {
    /// A token for each entry.
    pub fn tokens(self: &Arc<Self>) -> impl Iterator<Item = Token> + '_ {
        (0..self.slots.len()).map(|index| Token::new(Arc::clone(self), index))
    }
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
        if !self.slot().copy_of.is_some() {
            // As it was taken: for an ordinary entry, whatever its headers say.
            raw.slots.iter_mut().for_each(|slot| slot.copy_of = Span::NONE);
        }
        raw
    }

    /// Deliveries including this one; those of the entries it is a copy of count on.
    pub fn delivery_count(&self) -> u32 {
        let slot = self.slot();
        slot.earlier.saturating_add(slot.retries).saturating_add(1)
    }

    /// Attempts of the entries this one is a copy of.
    pub fn attempts_before(&self) -> u32 {
        self.slot().attempts_before()
    }

    /// Whether it comes once more: it was delivered before, or is a copy of one that was.
    pub fn comes_again(&self) -> bool {
        let slot = self.slot();
        slot.earlier > 0 || slot.attempts_before() > 0
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
