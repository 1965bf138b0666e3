//! RESP values read in place, from bytes that may still be arriving.

use crate::entry::Span;

/// Longest error or status line, and longest push frame, before the peer is held to be no Redis.
pub(crate) const MAX_LINE: usize = 64 * 1024;
/// A reply's offsets are 32 bits wide, the end of its last line included.
const MAX_REPLY: usize = u32::MAX as usize - 3;
/// Digits of the longest length or number. More are past 64 bits, or zeros that could go on for ever.
const MAX_DIGITS: usize = 19;
/// Bytes of the shortest value: a nil.
pub(crate) const SHORTEST: usize = 3;

/// Why a reply could not be walked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Malformed {
    /// What was found or missing.
    pub what: &'static str,
    /// Where, from the reply's first byte.
    pub at: usize,
}

/// One step: parsed, or so many bytes short.
pub(crate) type Step<T> = Result<Option<T>, Malformed>;

/// Where a reading of RESP stands. It moves only over what is whole; `short` says how much is missing of what is not.
pub(crate) struct Cursor<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) pos: usize,
    pub(crate) short: usize,
}

impl Cursor<'_> {
    pub(crate) fn fail<T>(&self, what: &'static str) -> Result<T, Malformed> {
        Err(Malformed { what, at: self.pos })
    }

    /// A type byte and its number, `\r\n` included. The cursor moves only when the line is whole.
    #[inline]
    pub(crate) fn line(&mut self) -> Step<(u8, i64)> {
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
    pub(crate) fn body(&mut self, start: usize, length: i64) -> Step<Span> {
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
    pub(crate) fn bulk(&mut self) -> Step<Span> {
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
    pub(crate) fn counter(&mut self) -> Step<i64> {
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

    pub(crate) fn text_line(&mut self) -> Step<Span> {
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
    pub(crate) fn skip(&mut self) -> Step<()> {
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

    /// Where it stands, as a slot keeps it.
    pub(crate) fn offset(&self) -> Result<u32, Malformed> {
        u32::try_from(self.pos).or_else(|_| self.fail("a reply past 4 GiB"))
    }
}
