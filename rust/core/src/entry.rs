//! Entry ids, and where one entry's parts lie within the bytes of the reply that brought it.

use std::fmt;

use crate::header::{Known, known};
use crate::partition::partition;

/// A stream entry's id: milliseconds by the server's clock, and a sequence within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// Milliseconds since the epoch.
    pub ms: u64,
    /// Sequence within the millisecond.
    pub seq: u64,
}

impl EntryId {
    /// The smallest id; no entry has it.
    pub const ZERO: Self = Self { ms: 0, seq: 0 };

    /// An id from its two numbers.
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// Read `ms-seq` or a bare `ms`. None for anything else, numbers past 64 bits included.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut numbers = [0u64; 2];
        let mut which = 0;
        let mut digits = 0;
        for &byte in text {
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    numbers[which] = numbers[which].checked_mul(10)?.checked_add(digit)?;
                    digits += 1;
                }
                b'-' if which == 0 && digits > 0 => {
                    which = 1;
                    digits = 0;
                }
                _ => return None,
            }
        }
        (digits > 0).then_some(Self::new(numbers[0], numbers[1]))
    }

    /// The greatest id below this one; `0-0` stays.
    #[must_use]
    pub const fn previous(self) -> Self {
        match (self.ms, self.seq) {
            (0, 0) => self,
            (ms, 0) => Self::new(ms - 1, u64::MAX),
            (ms, seq) => Self::new(ms, seq - 1),
        }
    }

    /// The smallest id above this one; the greatest of all stays.
    #[must_use]
    pub const fn next(self) -> Self {
        match (self.ms, self.seq) {
            (u64::MAX, u64::MAX) => self,
            (ms, u64::MAX) => Self::new(ms + 1, 0),
            (ms, seq) => Self::new(ms, seq + 1),
        }
    }

    /// Write Redis's own form into a buffer on the stack and hand it to `with`: 40 bytes at most.
    pub fn with_text<T>(self, with: impl FnOnce(&[u8]) -> T) -> T {
        let (mut ms, mut seq) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (ms, seq) = (ms.format(self.ms), seq.format(self.seq));
        let mut text = [0u8; 41];
        text[..ms.len()].copy_from_slice(ms.as_bytes());
        text[ms.len()] = b'-';
        let end = ms.len() + 1 + seq.len();
        text[ms.len() + 1..end].copy_from_slice(seq.as_bytes());
        with(&text[..end])
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// A range of a batch's bytes. Replies are refused past 4 GiB, so 32 bits are enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// Nothing there: distinct from an empty value.
    pub const NONE: Self = Self { start: u32::MAX, end: u32::MAX };

    /// Whether there is a value, be it empty.
    pub const fn is_some(self) -> bool {
        self.start != u32::MAX
    }

    /// The bytes, empty where there are none.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// The partition of an entry without a key.
pub const KEYLESS: u16 = u16::MAX;

/// A pending entry idle for longer than this was handed back: `XNACK`, and our release below Redis 8.8, leave
/// a delivery time of zero, so that its idle time reads as the age of the epoch. Ten years, in milliseconds.
const HANDED_BACK_MS: u64 = 315_360_000_000;

/// One entry of a batch: numbers and offsets, no bytes of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The entry's id.
    pub id: EntryId,
    /// The `_payload` field's value.
    pub payload: Span,
    /// The partition key header's value.
    pub key: Span,
    /// The raw name and value strings, in the order they were added; they end where the next entry begins.
    pub fields: Span,
    /// How many name and value pairs there are.
    pub field_count: u32,
    /// Milliseconds it lay pending before this delivery.
    pub idle_ms: u64,
    /// Deliveries before this one.
    pub earlier: u32,
    /// The retry count header: deliveries of the entries this one is a copy of.
    pub retries: u32,
    /// The attempts header: how often handlers of the entries this one is a copy of were started; 0 where none counted.
    pub attempts: u32,
    /// The partition of its key, or `KEYLESS`.
    pub partition: u16,
    /// The body is gone: it was deleted or trimmed while it was pending.
    pub deleted: bool,
    /// The group whose retry made this copy; none for an ordinary entry.
    pub copy_of: Span,
}

impl Slot {
    /// A slot with an id and nothing else yet.
    pub const fn new(id: EntryId) -> Self {
        Self {
            id,
            payload: Span::NONE,
            key: Span::NONE,
            fields: Span { start: 0, end: 0 },
            field_count: 0,
            idle_ms: 0,
            earlier: 0,
            retries: 0,
            attempts: 0,
            partition: KEYLESS,
            deleted: false,
            copy_of: Span::NONE,
        }
    }

    /// Note a field: what the core itself needs to know of an entry. `value` is what `span` refers to.
    #[inline]
    pub fn note(&mut self, name: &[u8], value: &[u8], span: Span, hash_keys: bool) {
        match known(name) {
            None => {}
            Some(Known::Payload) => self.payload = span,
            Some(Known::Key) => {
                self.key = span;
                if hash_keys {
                    self.partition = partition(value);
                }
            }
            Some(Known::RetryCount) => self.retries = number(value),
            Some(Known::Attempts) => self.attempts = number(value),
            // Without a name it says nothing: no group is called that.
            Some(Known::RetryGroup) if value.is_empty() => {}
            Some(Known::RetryGroup) => self.copy_of = span,
        }
    }

    /// Attempts of the entries this one is a copy of; where they were not counted, their deliveries. Anybody may write
    /// such headers: without the mark of a copy they count nothing.
    pub const fn attempts_before(&self) -> u32 {
        match (self.copy_of.is_some(), self.attempts) {
            (false, _) => 0,
            (true, 0) => self.retries,
            (true, attempts) => attempts,
        }
    }

    /// Note what the server says of a pending entry, taming what it says of one that was handed back.
    pub fn set_history(&mut self, idle_ms: i64, earlier: i64) {
        let idle = u64::try_from(idle_ms).unwrap_or(0);
        self.idle_ms = if idle > HANDED_BACK_MS { 0 } else { idle };
        // FATAL of XNACK sets the count to i64::MAX.
        self.earlier = u32::try_from(earlier.max(0)).unwrap_or(u32::MAX - 1);
    }
}

fn number(value: &[u8]) -> u32 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_what_redis_writes_and_nothing_else() {
        assert_eq!(EntryId::parse(b"1526919030474-55"), Some(EntryId::new(1_526_919_030_474, 55)));
        assert_eq!(EntryId::parse(b"7"), Some(EntryId::new(7, 0)));
        for bad in ["", "-", "1-", "-1", "1-2-3", "1.5", "a", "18446744073709551616-0", " 1-1"] {
            assert_eq!(EntryId::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn neighbours_borrow_and_carry() {
        assert_eq!(EntryId::new(5, 0).previous(), EntryId::new(4, u64::MAX));
        assert_eq!(EntryId::ZERO.previous(), EntryId::ZERO);
        assert_eq!(EntryId::new(4, u64::MAX).next(), EntryId::new(5, 0));
    }

    #[test]
    fn a_handed_back_entry_has_no_idle_time() {
        let mut slot = Slot::new(EntryId::ZERO);
        slot.set_history(1_795_968_714_201, i64::MAX);
        assert_eq!((slot.idle_ms, slot.earlier), (0, u32::MAX - 1));
        slot.set_history(-1, -1);
        assert_eq!((slot.idle_ms, slot.earlier), (0, 0));
    }

    proptest! {
        #[test]
        fn text_and_back(ms: u64, seq: u64) {
            let id = EntryId::new(ms, seq);
            prop_assert_eq!(id.with_text(EntryId::parse), Some(id));
            let display = id.to_string();
            prop_assert_eq!(EntryId::parse(display.as_bytes()), Some(id));
        }

        #[test]
        fn next_undoes_previous(ms: u64, seq: u64) {
            let id = EntryId::new(ms, seq);
            if id != EntryId::ZERO {
                prop_assert_eq!(id.previous().next(), id);
            }
        }
    }
}
