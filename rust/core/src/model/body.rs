//! What an entry holds, kept in the form that reads hand out: taking it into a batch is one copy.

use std::sync::Arc;

use crate::batch::RawBatch;
use crate::entry::{EntryId, KEYLESS, Slot, Span};
use crate::reply;

/// An entry's id and fields; never changed once it was added.
#[derive(Debug, PartialEq, Eq)]
pub struct Body {
    /// Names and values as the wire has them.
    bytes: Box<[u8]>,
    /// Where they are, counted from the first byte.
    slot: Slot,
}

impl Body {
    /// Write the fields down.
    pub(super) fn new<N: AsRef<[u8]>, V: AsRef<[u8]>>(id: EntryId, fields: &[(N, V)]) -> Arc<Self> {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        let mut raw = RawBatch::default();
        let mut bytes = Vec::new();
        raw.push(&mut bytes, Slot::new(id), &fields, true);
        let slot = raw.slots.pop().unwrap_or(Slot::new(id));
        Arc::new(Self { bytes: bytes.into(), slot })
    }

    /// The entry's id.
    pub fn id(&self) -> EntryId {
        self.slot.id
    }

    /// Names and values, in the order they were added.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        reply::fields(&self.bytes, &self.slot).map(|(name, value)| (name.of(&self.bytes), value.of(&self.bytes)))
    }

    /// Bytes that it takes in a reply, nearly.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + 48
    }

    /// Append it to a batch's bytes. None: they would get past 4 GiB.
    pub(super) fn copy_to(&self, bytes: &mut Vec<u8>, hash_keys: bool) -> Option<Slot> {
        u32::try_from(bytes.len() + self.bytes.len()).ok().filter(|end| *end < u32::MAX)?;
        let base = u32::try_from(bytes.len()).ok()?;
        bytes.extend_from_slice(&self.bytes);
        let moved = |span: Span| {
            if span.is_some() { Span { start: span.start + base, end: span.end + base } } else { span }
        };
        let mut slot = self.slot;
        slot.payload = moved(slot.payload);
        slot.key = moved(slot.key);
        slot.fields = moved(slot.fields);
        slot.copy_of = moved(slot.copy_of);
        if !hash_keys {
            slot.partition = KEYLESS;
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::partition;

    #[test]
    fn keeps_fields_and_finds_what_the_core_looks_for() {
        let body = Body::new(EntryId::new(1, 2), &[("h:redis-partition-key", "k"), ("_payload", ""), ("x", "y")]);
        assert_eq!(body.id(), EntryId::new(1, 2));
        let fields: Vec<_> = body.fields().collect();
        assert_eq!(fields, [(&b"h:redis-partition-key"[..], &b"k"[..]), (b"_payload", b""), (b"x", b"y")]);
        let mut bytes = b"before".to_vec();
        let slot = body.copy_to(&mut bytes, true);
        let slot = slot.unwrap_or(Slot::new(EntryId::ZERO));
        assert_eq!((slot.key.of(&bytes), slot.payload.of(&bytes)), (&b"k"[..], &b""[..]));
        assert!(slot.payload.is_some() && !slot.copy_of.is_some());
        assert_eq!(slot.partition, partition(b"k"));
        assert_eq!(body.copy_to(&mut bytes, false).map(|slot| slot.partition), Some(KEYLESS));
        assert_eq!(reply::fields(&bytes, &slot).count(), 3);
    }
}
