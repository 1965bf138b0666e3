//! Walks the raw reply of a group read into slots, in place and as the bytes arrive.
//!
//! It accepts what servers of every age send: an array or a map outside (RESP2, RESP3), entries of two elements
//! or four (`XREADGROUP ... CLAIM`), counters as integers or bulk strings (8.4.0 shipped the latter), nil bodies
//! of deleted entries. It never panics, and allocates by what has arrived, never by what a length promises.

use crate::entry::{EntryId, Slot, Span};
use crate::header::{self, Known};
use crate::partition::partition;

/// Longest error or status line, and longest push frame, before the peer is held to be no Redis.
const MAX_LINE: usize = 64 * 1024;
/// A reply's offsets are 32 bits wide, the end of its last line included.
const MAX_REPLY: usize = u32::MAX as usize - 3;
/// Digits of the longest length or number. More are past 64 bits, or zeros that could go on for ever.
const MAX_DIGITS: usize = 19;
/// Bytes of the shortest value: a nil.
const SHORTEST: usize = 3;
/// Elements that slots are reserved for at once, whatever the header promises.
const MAX_RESERVE: usize = 4096;

/// Why a reply could not be walked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Malformed {
    /// What was found or missing.
    pub what: &'static str,
    /// Where, from the reply's first byte.
    pub at: usize,
}

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

/// One step: parsed, or so many bytes short.
type Step<T> = Result<Option<T>, Malformed>;

struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    short: usize,
}

impl Cursor<'_> {
    fn fail<T>(&self, what: &'static str) -> Result<T, Malformed> {
        Err(Malformed { what, at: self.pos })
    }

    /// A type byte and its number, `\r\n` included. The cursor moves only when the line is whole.
    #[inline]
    fn line(&mut self) -> Step<(u8, i64)> {
        // Nearly every length has one digit or two.
        match *self.bytes.get(self.pos..).unwrap_or_default() {
            [kind, one @ b'0'..=b'9', b'\r', b'\n', ..] if kind != b'_' => {
                self.pos += 4;
                Ok(Some((kind, i64::from(one - b'0'))))
            }
            [kind, ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] if kind != b'_' => {
                self.pos += 5;
                Ok(Some((kind, i64::from((ten - b'0') * 10 + one - b'0'))))
            }
            _ => self.any_line(),
        }
    }

    fn any_line(&mut self) -> Step<(u8, i64)> {
        let rest = self.bytes.get(self.pos..).unwrap_or_default();
        let Some(&kind) = rest.first() else {
            self.short = SHORTEST;
            return Ok(None);
        };
        if kind == b'_' {
            // RESP3's nil has no number.
            if rest.len() < SHORTEST {
                self.short = SHORTEST - rest.len();
                return Ok(None);
            }
            return if &rest[1..3] == b"\r\n" {
                self.pos += 3;
                Ok(Some((kind, -1)))
            } else {
                self.fail("a nil with a value")
            };
        }
        let mut at = 1;
        let negative = rest.get(1) == Some(&b'-');
        if negative {
            at += 1;
        }
        let first = at;
        let mut number = 0u64;
        loop {
            match rest.get(at) {
                None => {
                    self.short = 2;
                    return Ok(None);
                }
                Some(b'0'..=b'9') if at - first == MAX_DIGITS => return self.fail("a number past 64 bits"),
                Some(&byte @ b'0'..=b'9') => {
                    number = number * 10 + u64::from(byte - b'0');
                    at += 1;
                }
                Some(b'\r') if at > first => break,
                Some(_) => return self.fail("a length or number that is none"),
            }
        }
        match rest.get(at + 1) {
            None => {
                self.short = 1;
                Ok(None)
            }
            Some(b'\n') => {
                let Ok(number) = i64::try_from(number) else {
                    return self.fail("a number past 64 bits");
                };
                self.pos += at + 2;
                Ok(Some((kind, if negative { -number } else { number })))
            }
            Some(_) => self.fail("a line without its end"),
        }
    }

    /// The body of a bulk string whose length line was just read from `start`; back to `start` when it is short.
    #[inline]
    fn body(&mut self, start: usize, length: i64) -> Step<Span> {
        let Ok(length) = usize::try_from(length) else {
            return self.fail("a string of negative length");
        };
        let Some(end) = self.pos.checked_add(length).filter(|end| *end <= MAX_REPLY) else {
            return self.fail("a reply past 4 GiB");
        };
        if self.bytes.len() < end + 2 {
            self.short = end + 2 - self.bytes.len();
            self.pos = start;
            return Ok(None);
        }
        if &self.bytes[end..end + 2] != b"\r\n" {
            return self.fail("a string without its end");
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked against MAX_REPLY above")]
        let span = Span { start: self.pos as u32, end: end as u32 };
        self.pos = end + 2;
        Ok(Some(span))
    }

    /// A whole string of below a hundred bytes, as nearly all are. None: anything else, and the cursor has not moved.
    #[inline]
    fn short_bulk(&mut self) -> Option<Span> {
        let (head, length) = match *self.bytes.get(self.pos..)? {
            [b'$', one @ b'0'..=b'9', b'\r', b'\n', ..] => (4, one - b'0'),
            [b'$', ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => (5, (ten - b'0') * 10 + one - b'0'),
            _ => return None,
        };
        let start = self.pos + head;
        let end = start + usize::from(length);
        if end > MAX_REPLY || self.bytes.get(end..end + 2)? != b"\r\n" {
            return None;
        }
        self.pos = end + 2;
        #[expect(clippy::cast_possible_truncation, reason = "checked against MAX_REPLY above")]
        Some(Span { start: start as u32, end: end as u32 })
    }

    #[inline]
    fn bulk(&mut self) -> Step<Span> {
        match self.short_bulk() {
            Some(span) => Ok(Some(span)),
            None => self.any_bulk(),
        }
    }

    fn any_bulk(&mut self) -> Step<Span> {
        let start = self.pos;
        match self.line()? {
            Some((b'$', length)) => self.body(start, length),
            Some(_) => self.fail("something else than a string"),
            None => Ok(None),
        }
    }

    /// A counter: an integer, or a bulk string of one.
    fn counter(&mut self) -> Step<i64> {
        let start = self.pos;
        match self.line()? {
            Some((b':', number)) => Ok(Some(number)),
            Some((b'$', length)) => {
                let Some(span) = self.body(start, length)? else {
                    return Ok(None);
                };
                let text = std::str::from_utf8(span.of(self.bytes)).ok().and_then(|text| text.parse().ok());
                match text {
                    Some(number) => Ok(Some(number)),
                    None => self.fail("a counter that is no number"),
                }
            }
            Some(_) => self.fail("something else than a counter"),
            None => Ok(None),
        }
    }

    fn text_line(&mut self) -> Step<Span> {
        let rest = self.bytes.get(self.pos..).unwrap_or_default();
        let window = &rest[..rest.len().min(MAX_LINE)];
        match memchr::memmem::find(window, b"\r\n") {
            Some(end) => {
                let Ok(start) = u32::try_from(self.pos + 1) else {
                    return self.fail("a reply past 4 GiB");
                };
                #[expect(clippy::cast_possible_truncation, reason = "end is below MAX_LINE")]
                let span = Span { start, end: start + (end as u32).saturating_sub(1) };
                self.pos += end + 2;
                Ok(Some(span))
            }
            None if window.len() == MAX_LINE => self.fail("an endless line"),
            None => {
                self.short = if window.ends_with(b"\r") { 1 } else { 2 };
                Ok(None)
            }
        }
    }

    /// Step over one value of any kind, for push frames that nobody asked for. The cursor moves only when it is whole.
    fn skip(&mut self) -> Step<()> {
        let start = self.pos;
        let mut left = 1usize;
        while left > 0 {
            if self.pos - start > MAX_LINE {
                return self.fail("an endless push frame");
            }
            let line_start = self.pos;
            let whole = match self.bytes.get(self.pos) {
                None => {
                    self.short = SHORTEST;
                    None
                }
                Some(b'+' | b'-' | b'(' | b',' | b'#') => self.text_line()?.map(|_| 0),
                Some(_) => match self.line()? {
                    None => None,
                    Some((b'$' | b'=' | b'!', length)) if length >= 0 => self.body(line_start, length)?.map(|_| 0),
                    Some((b'*' | b'>' | b'~', length)) => Some(usize::try_from(length).unwrap_or(0)),
                    Some((b'%', length)) => Some(usize::try_from(length).unwrap_or(0).saturating_mul(2)),
                    Some((b':' | b'_' | b'$', _)) => Some(0),
                    Some(_) => return self.fail("an unknown type"),
                },
            };
            let Some(more) = whole else {
                self.pos = start;
                return Ok(None);
            };
            left = (left - 1).saturating_add(more);
        }
        Ok(Some(()))
    }
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
                self.slot.fields.end = offset(cursor)?;
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
                self.note(cursor.bytes, value);
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
                self.slot.fields.start = offset(cursor)?;
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
    fn note(&mut self, bytes: &[u8], value: Span) {
        match header::known(self.name.of(bytes)) {
            None => {}
            Some(Known::Payload) => self.slot.payload = value,
            Some(Known::Key) => {
                self.slot.key = value;
                if self.hash_keys {
                    self.slot.partition = partition(value.of(bytes));
                }
            }
            Some(Known::RetryCount) => {
                let text = std::str::from_utf8(value.of(bytes)).ok();
                self.slot.retries = text.and_then(|text| text.parse().ok()).unwrap_or(0);
            }
            Some(Known::RetryGroup) => self.slot.copy_of = value,
        }
    }

    #[inline]
    fn finish_entry(&mut self, slots: &mut Vec<Slot>, idle: i64, earlier: i64) {
        if self.four {
            self.slot.set_history(idle, earlier);
        }
        slots.push(self.slot);
    }
}

fn offset(cursor: &Cursor<'_>) -> Result<u32, Malformed> {
    u32::try_from(cursor.pos).or_else(|_| cursor.fail("a reply past 4 GiB"))
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
