//! Members of the sorted set of delayed entries: what the scripts write with `cmsgpack`, byte for byte, so that equal
//! due times keep the same order.

use std::time::Duration;

use super::operations;
use crate::entry::EntryId;

/// The fraction of a parked entry's score says for how long it was parked, in steps of a logarithm.
const STEP: f64 = 75.0;
const STEPS: f64 = 2048.0;

/// What a member is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Member<'a> {
    /// A copy that goes back into the stream.
    Copy(Vec<(&'a [u8], &'a [u8])>),
    /// An entry that stays pending under its own id. One that was delivered once more since has another count.
    Parked { id: EntryId, group: &'a [u8], count: i64 },
    /// Not ours.
    Strange,
}

/// What this member is.
pub(super) fn read(member: &[u8]) -> Member<'_> {
    let parts = unpack(member).unwrap_or_default();
    if parts.len() >= 4 && parts.len().is_multiple_of(2) {
        return Member::Copy(parts[2..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect());
    }
    let [id, group, count] = parts[..] else {
        return Member::Strange;
    };
    let number = std::str::from_utf8(count).ok().and_then(|text| text.parse().ok());
    match (EntryId::parse(id).filter(|_| id.contains(&b'-')), number) {
        (Some(id), Some(count)) => Member::Parked { id, group, count },
        _ => Member::Strange,
    }
}

/// The member of an entry that was parked at this delivery count.
pub(super) fn parked(id: EntryId, group: &str, count: u32) -> Vec<u8> {
    let (id, count) = (id.to_string(), count.to_string());
    pack([id.as_bytes(), group.as_bytes(), count.as_bytes()].into_iter())
}

#[expect(clippy::cast_precision_loss, reason = "scores are floating point numbers on the server too")]
fn ms(delay: Duration) -> f64 {
    delay.as_millis() as f64
}

/// The score of an entry that is parked now.
pub(super) fn score(now: u64, delay: Duration) -> f64 {
    let step = ((ms(delay) + 1.0).ln() * STEP).floor().min(STEPS - 1.0);
    operations::score(now, delay) + step / STEPS
}

/// For how long a parked entry lay, where the server says `idle`. That is less where it was claimed early and parked
/// again.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "milliseconds of some years")]
pub(super) fn lain(score: f64, now: u64, idle: i64) -> i64 {
    let delay = (((score - score.floor()) * STEPS + 0.5) / STEP).exp() - 1.0;
    let since = (operations::score(now, Duration::ZERO) - score.floor() + delay).floor();
    if idle as f64 >= since * 0.98 { idle } else { since as i64 }
}

/// A list of strings, packed.
pub(super) fn pack<'a>(parts: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut packed = Vec::new();
    let length = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    match length(parts.len()) {
        few @ 0..=15 => packed.push(0x90 | few.to_be_bytes()[3]),
        some @ 16..=0xffff => packed.extend([0xdc, some.to_be_bytes()[2], some.to_be_bytes()[3]]),
        many => {
            packed.push(0xdd);
            packed.extend(many.to_be_bytes());
        }
    }
    for part in parts {
        let bytes = length(part.len()).to_be_bytes();
        match part.len() {
            0..=31 => packed.push(0xa0 | bytes[3]),
            32..=0xff => packed.extend([0xd9, bytes[3]]),
            0x100..=0xffff => packed.extend([0xda, bytes[2], bytes[3]]),
            _ => {
                packed.push(0xdb);
                packed.extend(bytes);
            }
        }
        packed.extend_from_slice(part);
    }
    packed
}

/// A big-endian number of so many bytes, taken off the front.
fn number(bytes: &mut &[u8], width: usize) -> Option<usize> {
    let (number, rest) = bytes.split_at_checked(width)?;
    *bytes = rest;
    Some(number.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)))
}

/// The strings of a packed list. None: it is not one.
pub(super) fn unpack(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let count = match number(&mut bytes, 1)? {
        few @ 0x90..=0x9f => few & 0x0f,
        0xdc => number(&mut bytes, 2)?,
        0xdd => number(&mut bytes, 4)?,
        _ => return None,
    };
    let mut parts = Vec::new();
    for _ in 0..count {
        let length = match number(&mut bytes, 1)? {
            short @ 0xa0..=0xbf => short & 0x1f,
            0xd9 => number(&mut bytes, 1)?,
            0xda => number(&mut bytes, 2)?,
            0xdb => number(&mut bytes, 4)?,
            _ => return None,
        };
        let (part, rest) = bytes.split_at_checked(length)?;
        parts.push(part);
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_lengths_of_every_width() {
        let sizes = [0, 31, 32, 255, 256, 65_535, 65_536];
        let parts: Vec<Vec<u8>> = sizes.iter().map(|size| vec![b'x'; *size]).collect();
        let packed = pack(parts.iter().map(Vec::as_slice));
        assert_eq!((packed[0], packed[1], packed[2], &packed[34..37]), (0x97, 0xa0, 0xbf, &[0xd9, 32, b'x'][..]));
        assert_eq!(unpack(&packed), Some(parts.iter().map(Vec::as_slice).collect()));
        for count in [15, 16, 65_535, 65_536] {
            let parts = vec![&b"ab"[..]; count];
            assert_eq!(unpack(&pack(parts.iter().copied())).map(|parts| parts.len()), Some(count));
        }
    }

    #[test]
    fn a_score_tells_when_it_is_due_and_for_how_long_it_was_parked() {
        for delay in [0, 1, 17, 500, 3_000, 86_400_000, 315_360_000_000] {
            let score = score(1_800_000_000_000, Duration::from_millis(delay));
            let due = 1_800_000_000_000 + delay;
            assert!((score.floor() - operations::score(due, Duration::ZERO)).abs() < 0.5, "{delay}: {score}");
            let lain = lain(score, due + 20, 0);
            let expected = i64::try_from(delay).unwrap_or(0) + 20;
            assert!((lain - expected).abs() <= 1 + expected / 100, "{delay}: {lain}");
            assert_eq!(super::lain(score, due + 20, expected), expected);
        }
    }

    #[test]
    fn members_are_told_apart() {
        let id = EntryId::new(7, 1);
        assert_eq!(read(&parked(id, "g", 3)), Member::Parked { id, group: b"g", count: 3 });
        let copy = pack([&b"7-1"[..], b"g", b"name", b"value"].into_iter());
        assert_eq!(read(&copy), Member::Copy(vec![(b"name", b"value")]));
        for strange in [&b"text"[..], b"\x93\xa11\xa1g\xa11", b"\x93\xa37-1\xa1g\xa1x", b"\x92\xa1a\xa1b"] {
            assert_eq!(read(strange), Member::Strange);
        }
    }

    #[test]
    fn refuses_what_is_no_list_of_strings() {
        for bad in [&b""[..], b"\x91", b"\x91\xa2a", b"\x91\x05", b"\xc0", b"\x90rest", b"\xdd\xff\xff\xff\xff"] {
            assert_eq!(unpack(bad), None, "{bad:?}");
        }
    }
}
