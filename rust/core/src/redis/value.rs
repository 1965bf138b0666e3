//! Reading what redis-rs parsed, leniently: servers differ in integers and strings.

use ::redis::Value;

use crate::batch::RawBatch;
use crate::entry::{EntryId, Slot};

pub(super) fn bytes(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.as_bytes(),
        _ => b"",
    }
}

pub(super) fn text(value: &Value) -> String {
    String::from_utf8_lossy(bytes(value)).into_owned()
}

/// Keep what can stand in a message: letters, digits and a little punctuation.
pub(super) fn words(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || " .-_".contains(*c)).take(64).collect()
}

pub(super) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        other => std::str::from_utf8(bytes(other)).ok()?.parse().ok(),
    }
}

pub(super) fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        _ => &[],
    }
}

pub(super) fn id(value: &Value) -> Option<EntryId> {
    EntryId::parse(bytes(value))
}

/// Entries of four elements, as `XREADGROUP CLAIM` and our scan give them.
pub(super) fn entries(value: &Value, hash_keys: bool) -> RawBatch {
    let mut raw = RawBatch::default();
    let mut buffer = Vec::new();
    for entry in items(value) {
        let [entry_id, fields, idle, earlier] = items(entry) else {
            continue;
        };
        let Some(entry_id) = id(entry_id) else {
            continue;
        };
        let mut slot = Slot::new(entry_id);
        slot.set_history(integer(idle).unwrap_or(0), integer(earlier).unwrap_or(0));
        let pairs: Vec<_> = items(fields).chunks_exact(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1]))).collect();
        raw.push(&mut buffer, slot, &pairs, hash_keys);
    }
    raw.bytes = buffer.into();
    raw
}
