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

/// The value of a name in a reply that is a map, or an array of names and values.
pub(super) fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a Value> {
    if let Value::Map(pairs) = reply {
        return pairs.iter().find(|(key, _)| bytes(key) == name.as_bytes()).map(|(_, found)| found);
    }
    items(reply).chunks_exact(2).find(|pair| bytes(&pair[0]) == name.as_bytes()).map(|pair| &pair[1])
}

/// The same as bytes; empty where there is none.
pub(super) fn named<'a>(reply: &'a Value, name: &str) -> &'a [u8] {
    field(reply, name).map(bytes).unwrap_or_default()
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
        raw.push(&mut buffer, slot, &pairs(fields), hash_keys);
    }
    raw.bytes = buffer.into();
    raw
}

/// Entries of two elements, as `XRANGE` gives them.
pub(super) fn plain_entries(value: &Value) -> RawBatch {
    let mut raw = RawBatch::default();
    let mut buffer = Vec::new();
    for entry in items(value) {
        let [entry_id, fields] = items(entry) else {
            continue;
        };
        if let Some(entry_id) = id(entry_id) {
            raw.push(&mut buffer, Slot::new(entry_id), &pairs(fields), false);
        }
    }
    raw.bytes = buffer.into();
    raw
}

fn pairs(fields: &Value) -> Vec<(&[u8], &[u8])> {
    items(fields).chunks_exact(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::KEYLESS;
    use crate::partition::partition;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn entry(entry_id: &str, fields: Value, idle: Value, earlier: Value) -> Value {
        Value::Array(vec![bulk(entry_id), fields, idle, earlier])
    }

    #[test]
    fn text_and_numbers_are_read_from_strings_of_any_kind() {
        let verbatim = Value::VerbatimString { format: ::redis::VerbatimFormat::Text, text: "12".into() };
        for value in [bulk("12"), Value::SimpleString("12".into()), verbatim] {
            assert_eq!((bytes(&value), text(&value), integer(&value)), (&b"12"[..], "12".to_owned(), Some(12)));
        }
        assert_eq!((integer(&Value::Int(-7)), integer(&bulk("-7"))), (Some(-7), Some(-7)));
        for value in
            [Value::Nil, Value::Okay, bulk(""), bulk("1.5"), Value::BulkString(vec![0xff]), Value::Array(vec![])]
        {
            assert_eq!(integer(&value), None, "{value:?}");
        }
        assert_eq!(
            (bytes(&Value::Nil), text(&Value::BulkString(vec![b'a', 0xff]))),
            (&b""[..], "a\u{fffd}".to_owned())
        );
    }

    #[test]
    fn lists_are_arrays_or_sets_and_nothing_else() {
        let two = vec![Value::Int(1), Value::Nil];
        assert_eq!(items(&Value::Array(two.clone())), two);
        assert_eq!(items(&Value::Set(two.clone())), two);
        assert_eq!((items(&Value::Nil), items(&bulk("ab"))), (&[][..], &[][..]));
    }

    #[test]
    fn ids_are_read_from_text_alone() {
        assert_eq!(id(&bulk("5-1")), Some(EntryId::new(5, 1)));
        assert_eq!((id(&bulk("")), id(&Value::Nil), id(&Value::Int(5))), (None, None, None));
    }

    #[test]
    fn what_a_server_calls_itself_is_cut_down_to_words() {
        assert_eq!(words("valkey 9.1.2-rc1_x"), "valkey 9.1.2-rc1_x");
        assert_eq!(words("redis\r\n\x1b[31m{evil}\u{e9}"), "redis31mevil");
        assert_eq!(words(&"x".repeat(200)).len(), 64);
    }

    #[test]
    fn claimed_entries_become_slots_into_one_buffer() {
        let fields = |key: &str| {
            Value::Array(["_payload", "body", "h:redis-partition-key", key].into_iter().map(bulk).collect())
        };
        let reply = Value::Array(vec![
            entry("1-0", fields("acct-1"), Value::Int(500), Value::Int(2)),
            entry("2-0", Value::Array(vec![]), bulk("-1"), bulk("9223372036854775807")),
            entry("3-0", fields("acct-2"), Value::Int(1_795_968_714_201), Value::Int(0)),
        ]);
        let raw = entries(&reply, true);
        let seen: Vec<_> = raw.slots.iter().map(|slot| (slot.id.ms, slot.idle_ms, slot.earlier)).collect();
        assert_eq!(seen, [(1, 500, 2), (2, 0, u32::MAX - 1), (3, 0, 0)]);
        let keys: Vec<_> = raw.slots.iter().map(|slot| slot.key.of(&raw.bytes)).collect();
        assert_eq!(keys, [&b"acct-1"[..], b"", b"acct-2"]);
        let partitions: Vec<_> = raw.slots.iter().map(|slot| slot.partition).collect();
        assert_eq!(partitions, [partition(b"acct-1"), KEYLESS, partition(b"acct-2")]);
        assert!(raw.slots.iter().all(|slot| slot.field_count == 0 || slot.payload.of(&raw.bytes) == b"body"));
    }

    #[test]
    fn plain_entries_have_no_history() {
        let fields = Value::Array(["_payload", "body"].into_iter().map(bulk).collect());
        let row = |entry_id: &str| Value::Array(vec![bulk(entry_id), fields.clone()]);
        let raw = plain_entries(&Value::Array(vec![row("1-0"), Value::Nil, row("x"), row("2-1")]));
        let seen: Vec<_> = raw.slots.iter().map(|slot| (slot.id, slot.earlier, slot.payload.of(&raw.bytes))).collect();
        assert_eq!(seen, [(EntryId::new(1, 0), 0, &b"body"[..]), (EntryId::new(2, 1), 0, b"body")]);
    }

    #[test]
    fn what_is_no_entry_is_left_out() {
        let good = entry("1-0", Value::Array(vec![]), Value::Int(0), Value::Int(1));
        let two = Value::Array(vec![bulk("2-0"), Value::Array(vec![])]);
        let no_id = entry("x", Value::Array(vec![]), Value::Int(0), Value::Int(1));
        let raw = entries(&Value::Array(vec![Value::Nil, two, good, no_id, Value::Int(1)]), true);
        assert_eq!(raw.slots.iter().map(|slot| slot.id.ms).collect::<Vec<_>>(), [1]);
        assert!(entries(&Value::Nil, true).slots.is_empty());
    }
}
