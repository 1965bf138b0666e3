//! Walks the raw reply of a group read into slots, in place and as the bytes arrive.
//!
//! It accepts what servers of every age send: an array or a map outside (RESP2, RESP3), entries of two elements
//! or four (`XREADGROUP ... CLAIM`), counters as integers or bulk strings (8.4.0 shipped the latter), nil bodies
//! of deleted entries. It never panics, and allocates by what has arrived, never by what a length promises.

use crate::entry::{EntryId, Slot, Span};
pub use crate::resp::Malformed;
use crate::resp::{Cursor, SHORTEST, Step};

/// Elements that slots are reserved for at once, whatever the header promises.
const MAX_RESERVE: usize = 4096;

/// How far a walk has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// At least this many more bytes are to come.
    More(usize),
    /// The reply is whole; it ends at this byte.
    Done(usize),
}

/// What a whole reply turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Entries, perhaps none: a read that timed out.
    Entries,
    /// The server's error line.
    Error(Span),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Outer,
    Pair,
    Stream,
    Entries,
    Entry,
    Id,
    Fields,
    Name,
    Value,
    Idle,
    Earlier,
    EntryDone,
    Done,
}

/// A resumable walk over one reply.
#[derive(Debug)]
pub struct Walker {
    stage: Stage,
    pos: usize,
    entries_left: usize,
    fields_left: usize,
    four: bool,
    name: Span,
    slot: Slot,
    idle: i64,
    hash_keys: bool,
    outcome: Outcome,
}

impl Walker {
    /// A walk from the first byte of a reply. `hash_keys`: compute the partition of each keyed entry.
    pub fn new(hash_keys: bool) -> Self {
        Self {
            stage: Stage::Outer,
            pos: 0,
            entries_left: 0,
            fields_left: 0,
            four: false,
            name: Span::NONE,
            slot: Slot::new(EntryId::ZERO),
            idle: 0,
            hash_keys,
            outcome: Outcome::Entries,
        }
    }

    /// What the reply was; meaningful once `walk` said `Done`.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Go on with `bytes`, which begin where the reply begins and hold at least what the last call saw.
    pub fn walk(&mut self, bytes: &[u8], slots: &mut Vec<Slot>) -> Result<Progress, Malformed> {
        let mut cursor = Cursor { bytes, pos: self.pos, short: 1 };
        while self.stage != Stage::Done {
            let step = self.step(&mut cursor, slots)?;
            if step.is_none() {
                return Ok(Progress::More(cursor.short.max(1)));
            }
            self.pos = cursor.pos;
        }
        Ok(Progress::Done(self.pos))
    }

    #[inline]
    fn step(&mut self, cursor: &mut Cursor<'_>, slots: &mut Vec<Slot>) -> Step<()> {
        macro_rules! need {
            ($step:expr) => {
                match $step? {
                    Some(value) => value,
                    None => return Ok(None),
                }
            };
        }
        match self.stage {
            Stage::Outer => return self.outer(cursor),
            Stage::Pair => {
                let (kind, length) = need!(cursor.line());
                if (kind, length) != (b'*', 2) {
                    return cursor.fail("a stream that is no pair");
                }
                self.stage = Stage::Stream;
            }
            Stage::Stream => {
                need!(cursor.bulk());
                self.stage = Stage::Entries;
            }
            Stage::Entries => {
                let (kind, length) = need!(cursor.line());
                self.entries_left = match (kind, usize::try_from(length)) {
                    (b'*', Ok(length)) => length,
                    (b'*' | b'_', Err(_)) if length == -1 => 0,
                    _ => return cursor.fail("entries that are no array"),
                };
                slots.reserve(self.entries_left.min(MAX_RESERVE));
                self.stage = Stage::EntryDone;
            }
            Stage::Entry => {
                let (kind, length) = need!(cursor.line());
                self.four = match (kind, length) {
                    (b'*', 2) => false,
                    (b'*', 4) => true,
                    _ => return cursor.fail("an entry of neither two nor four elements"),
                };
                self.stage = Stage::Id;
            }
            Stage::Id => {
                let span = need!(cursor.bulk());
                let Some(id) = EntryId::parse(span.of(cursor.bytes)) else {
                    return cursor.fail("an entry id that is none");
                };
                self.slot = Slot::new(id);
                self.stage = Stage::Fields;
            }
            Stage::Fields => return self.fields(cursor),
            Stage::Name if self.fields_left == 0 => {
                self.slot.fields.end = cursor.offset()?;
                if self.slot.deleted {
                    self.slot.fields.start = self.slot.fields.end;
                }
                self.stage = if self.four { Stage::Idle } else { Stage::EntryDone };
                if !self.four {
                    self.finish_entry(slots, 0, 0);
                }
            }
            Stage::Name => {
                self.name = need!(cursor.bulk());
                self.stage = Stage::Value;
            }
            Stage::Value => {
                let value = need!(cursor.bulk());
                let (name, bytes) = (self.name.of(cursor.bytes), value.of(cursor.bytes));
                self.slot.note(name, bytes, value, self.hash_keys);
                self.fields_left -= 1;
                self.stage = Stage::Name;
            }
            Stage::Idle => {
                self.idle = need!(cursor.counter());
                self.stage = Stage::Earlier;
            }
            Stage::Earlier => {
                let earlier = need!(cursor.counter());
                self.finish_entry(slots, self.idle, earlier);
                self.stage = Stage::EntryDone;
            }
            Stage::EntryDone if self.entries_left == 0 => self.stage = Stage::Done,
            Stage::EntryDone => {
                self.entries_left -= 1;
                self.stage = Stage::Entry;
            }
            Stage::Done => {}
        }
        Ok(Some(()))
    }

    fn fields(&mut self, cursor: &mut Cursor<'_>) -> Step<()> {
        let Some((kind, length)) = cursor.line()? else {
            return Ok(None);
        };
        match (kind, u32::try_from(length)) {
            (b'*', Ok(length)) if length.is_multiple_of(2) => {
                self.slot.field_count = length / 2;
                self.fields_left = self.slot.field_count as usize;
                self.slot.fields.start = cursor.offset()?;
            }
            (b'*' | b'$' | b'_', Err(_)) if length == -1 => {
                self.slot.deleted = true;
                self.fields_left = 0;
            }
            _ => return cursor.fail("fields that are no array of pairs"),
        }
        self.stage = Stage::Name;
        Ok(Some(()))
    }

    fn outer(&mut self, cursor: &mut Cursor<'_>) -> Step<()> {
        match cursor.bytes.get(cursor.pos) {
            None => {
                cursor.short = SHORTEST;
                return Ok(None);
            }
            Some(b'>') => return cursor.skip(),
            Some(b'-') => {
                let Some(text) = cursor.text_line()? else {
                    return Ok(None);
                };
                self.outcome = Outcome::Error(text);
                self.stage = Stage::Done;
                return Ok(Some(()));
            }
            Some(_) => {}
        }
        let start = cursor.pos;
        let Some((kind, length)) = cursor.line()? else {
            return Ok(None);
        };
        self.stage = match (kind, length) {
            (b'*' | b'$' | b'_', -1) | (b'*' | b'%', 0) => Stage::Done,
            (b'*', 1) => Stage::Pair,
            (b'%', 1) => Stage::Stream,
            (b'!', _) => {
                let Some(text) = cursor.body(start, length)? else {
                    return Ok(None);
                };
                self.outcome = Outcome::Error(text);
                Stage::Done
            }
            _ => return cursor.fail("something else than the entries of one stream"),
        };
        Ok(Some(()))
    }

    #[inline]
    fn finish_entry(&mut self, slots: &mut Vec<Slot>, idle: i64, earlier: i64) {
        if self.four {
            self.slot.set_history(idle, earlier);
        }
        slots.push(self.slot);
    }
}

/// The name and value pairs of an entry that was walked before, in the order they were added.
pub fn fields(bytes: &[u8], slot: &Slot) -> impl Iterator<Item = (Span, Span)> {
    let mut cursor = Cursor { bytes, pos: slot.fields.start as usize, short: 0 };
    (0..slot.field_count).map_while(move |_| {
        let name = cursor.bulk().ok().flatten()?;
        let value = cursor.bulk().ok().flatten()?;
        Some((name, value))
    })
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
