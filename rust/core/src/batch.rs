//! What one read returned: its bytes, a slot per entry, and how far each entry has come.
//!
//! Everything that can be kept per batch is: one buffer, one age, one list to look ids up in. An entry costs
//! one byte of state beside its slot.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::credit::Credits;
use crate::entry::{EntryId, Slot, Span};

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
pub(crate) const LOST: u8 = 0x80;

impl Mark {
    pub(crate) const fn of(byte: u8) -> Self {
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
    pub(crate) bytes: Bytes,
    pub(crate) slots: Vec<Slot>,
    pub(crate) marks: Box<[AtomicU8]>,
    pub(crate) open: AtomicUsize,
    refreshed_ms: AtomicU64,
    sorted: bool,
    /// Whose room its bytes take up until the last entry is done.
    pub(crate) weighs_on: OnceLock<Arc<Credits>>,
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
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
