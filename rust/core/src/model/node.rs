//! How entries are packed on the server. Nothing but approximate trimming shows it: that takes whole nodes only.

use crate::entry::EntryId;

/// `stream-node-max-entries`, as the server has it by default.
const MAX_ENTRIES: usize = 100;
/// `stream-node-max-bytes`, as the server has it by default.
const MAX_BYTES: usize = 4096;
/// Header and end mark of an empty list of packed elements.
const EMPTY: usize = 7;

/// Entries that are packed together. The first one's field names are left out of those that have the same.
#[derive(Debug)]
pub(super) struct Node {
    first: EntryId,
    names: Vec<Box<[u8]>>,
    bytes: usize,
    /// Entries added, the deleted ones included.
    total: usize,
    /// Entries that are there.
    pub(super) live: usize,
    /// The last entry added, be it deleted.
    pub(super) last: EntryId,
}

/// Bytes of a packed number, with the length behind it.
fn number(value: i128) -> usize {
    1 + match value {
        0..=127 => 1,
        -4096..=4095 => 2,
        -32_768..=32_767 => 3,
        -8_388_608..=8_388_607 => 4,
        -2_147_483_648..=2_147_483_647 => 5,
        _ => 9,
    }
}

/// Bytes of a packed string; one that reads as a number is packed as such.
fn string(text: &[u8]) -> usize {
    let canonical = std::str::from_utf8(text).ok().filter(|text| text.len() <= 20);
    let value = canonical.and_then(|text| text.parse::<i64>().ok().filter(|value| value.to_string() == text));
    if let Some(value) = value {
        return number(value.into());
    }
    let packed = text.len()
        + match text.len() {
            ..64 => 1,
            64..4096 => 2,
            _ => 5,
        };
    packed
        + match packed {
            ..128 => 1,
            128..16_383 => 2,
            16_383..2_097_151 => 3,
            2_097_151..268_435_455 => 4,
            _ => 5,
        }
}

fn count(items: usize) -> usize {
    number(i128::try_from(items).unwrap_or(i128::MAX))
}

impl Node {
    /// A node for an entry that is added next.
    pub(super) fn new(id: EntryId, fields: &[(&[u8], &[u8])]) -> Self {
        let names: usize = fields.iter().map(|(name, _)| string(name)).sum();
        Self {
            first: id,
            names: fields.iter().map(|(name, _)| (*name).into()).collect(),
            // How many are there, how many deleted, the names, and an end mark.
            bytes: EMPTY + number(1) + number(0) + count(fields.len()) + names + number(0),
            total: 0,
            live: 0,
            last: id,
        }
    }

    /// Whether it has room for an entry of these fields.
    pub(super) fn has_room(&self, fields: &[(&[u8], &[u8])]) -> bool {
        let length: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.bytes + length < MAX_BYTES && self.total < MAX_ENTRIES
    }

    /// Take an entry in.
    pub(super) fn add(&mut self, id: EntryId, fields: &[(&[u8], &[u8])]) {
        let same = self.names.len() == fields.len()
            && self.names.iter().zip(fields).all(|(name, (other, _))| name.as_ref() == *other);
        let since = |later: u64, earlier: u64| i128::from(later.wrapping_sub(earlier).cast_signed());
        let mut bytes = number(0) + number(since(id.ms, self.first.ms)) + number(since(id.seq, self.first.seq));
        let mut parts = fields.len() + 3;
        if !same {
            bytes += count(fields.len()) + fields.iter().map(|(name, _)| string(name)).sum::<usize>();
            parts += fields.len() + 1;
        }
        bytes += fields.iter().map(|(_, value)| string(value)).sum::<usize>() + count(parts);
        self.bytes += bytes;
        self.total += 1;
        self.live += 1;
        self.last = id;
    }

    /// Whether an entry with this id was put here or behind.
    pub(super) fn begins_by(&self, id: EntryId) -> bool {
        self.first <= id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_by_their_size() {
        let sizes = [0, 127, 128, -1, 4095, 4096, 40_000, 9_000_000, 1 << 40].map(number);
        assert_eq!(sizes, [2, 2, 3, 3, 3, 4, 5, 6, 10]);
        assert_eq!((string(b"12"), string(b"012"), string(b"-0"), string(b"")), (2, 5, 4, 2));
        assert_eq!((string(&[b'x'; 63]), string(&[b'x'; 64]), string(&[b'x'; 200])), (65, 67, 204));
    }

    #[test]
    fn a_node_is_full_by_entries_or_by_bytes() {
        let small: [(&[u8], &[u8]); 1] = [(b"f", b"1")];
        let mut node = Node::new(EntryId::new(1, 0), &small);
        for seq in 0..100 {
            assert!(node.has_room(&small));
            node.add(EntryId::new(1, seq), &small);
        }
        assert!(!node.has_room(&small));
        let value = [b'x'; 2000];
        let large: [(&[u8], &[u8]); 1] = [(b"f", &value)];
        let mut node = Node::new(EntryId::new(1, 0), &large);
        node.add(EntryId::new(1, 0), &large);
        assert!(node.has_room(&large));
        node.add(EntryId::new(1, 1), &large);
        assert!(!node.has_room(&large) && node.has_room(&small));
    }
}
