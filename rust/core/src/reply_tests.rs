//! The walker against what servers of every age send, cut at every byte.

use super::*;
use crate::entry::KEYLESS;
use crate::header;
use crate::partition::partition;

/// What a walk came to.
#[derive(Debug, PartialEq)]
struct Walked {
    slots: Vec<Slot>,
    outcome: Outcome,
    end: usize,
}

/// Feed pieces that end where `ends` says. Each promise of more bytes is held against `whole`, where it is known.
fn feed(reply: &[u8], ends: impl Iterator<Item = usize>, whole: usize) -> Result<Walked, Malformed> {
    let (mut walker, mut slots) = (Walker::new(true), Vec::new());
    for end in ends {
        match walker.walk(&reply[..end], &mut slots)? {
            Progress::Done(end) => {
                let outcome = walker.outcome();
                return Ok(Walked { slots, outcome, end });
            }
            Progress::More(short) => {
                assert!(short > 0 && end + short <= whole, "{short} more at byte {end} of {whole}");
            }
        }
    }
    panic!("{:?} is not whole", reply.escape_ascii().to_string());
}

/// Walk a whole reply: at once, byte by byte and cut in two at every byte, always with the same result.
fn walked(reply: &[u8]) -> Result<Walked, Malformed> {
    let length = reply.len();
    let known = feed(reply, std::iter::once(length), usize::MAX);
    let whole = known.as_ref().map_or(usize::MAX, |walked| walked.end);
    assert_eq!(feed(reply, 0..=length, whole), known, "byte by byte");
    for cut in 0..length {
        assert_eq!(feed(reply, [cut, length].into_iter(), whole), known, "cut at byte {cut}");
    }
    known
}

/// The slots of a reply of entries that ends with its last byte.
fn slots(reply: impl AsRef<[u8]>) -> Vec<Slot> {
    let reply = reply.as_ref();
    let walked = walked(reply).unwrap_or_else(|error| panic!("{}: {error}", reply.escape_ascii()));
    assert_eq!((walked.outcome, walked.end), (Outcome::Entries, reply.len()));
    walked.slots
}

/// A RESP3 reply with one entry, `1-0`, whose elements after the id are these bytes.
fn one(elements: usize, rest: impl AsRef<[u8]>) -> Vec<u8> {
    let head = format!("%1\r\n$1\r\ns\r\n*1\r\n*{elements}\r\n$3\r\n1-0\r\n");
    [head.as_bytes(), rest.as_ref()].concat()
}

fn put(reply: &mut Vec<u8>, text: &[u8]) {
    reply.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
    reply.extend_from_slice(text);
    reply.extend_from_slice(b"\r\n");
}

/// The one entry with these fields, and the reply it lies in.
fn entry(fields: &[(&[u8], &[u8])]) -> (Slot, Vec<u8>) {
    let mut rest = format!("*{}\r\n", fields.len() * 2).into_bytes();
    for (name, value) in fields {
        put(&mut rest, name);
        put(&mut rest, value);
    }
    let reply = one(2, rest);
    (slots(&reply)[0], reply)
}

fn pairs<'a>(reply: &'a [u8], slot: &Slot) -> Vec<(&'a [u8], &'a [u8])> {
    fields(reply, slot).map(|(name, value)| (name.of(reply), value.of(reply))).collect()
}

const CLAIMED: &str = "*4\r\n\
    *4\r\n$3\r\n1-0\r\n*2\r\n$1\r\nk\r\n$2\r\nv1\r\n:501\r\n:1\r\n\
    *4\r\n$3\r\n2-0\r\n*2\r\n$8\r\n_payload\r\n$2\r\nv2\r\n:502\r\n:2\r\n\
    *4\r\n$3\r\n4-0\r\n*2\r\n$1\r\nk\r\n$2\r\nv4\r\n:0\r\n:0\r\n\
    *4\r\n$3\r\n5-7\r\n*2\r\n$1\r\nk\r\n$2\r\nv5\r\n:0\r\n:0\r\n";

#[test]
fn claimed_entries_stand_before_new_ones_over_resp2_and_resp3() {
    for outer in ["*1\r\n*2\r\n$1\r\ns\r\n", "%1\r\n$1\r\ns\r\n"] {
        let reply = format!("{outer}{CLAIMED}");
        let slots = slots(&reply);
        let seen: Vec<_> = slots.iter().map(|slot| (slot.id, slot.idle_ms, slot.earlier)).collect();
        let id = EntryId::new;
        assert_eq!(seen, [(id(1, 0), 501, 1), (id(2, 0), 502, 2), (id(4, 0), 0, 0), (id(5, 7), 0, 0)]);
        assert_eq!(pairs(reply.as_bytes(), &slots[3]), [(&b"k"[..], &b"v5"[..])]);
        assert_eq!((slots[1].payload.of(reply.as_bytes()), slots[0].payload), (&b"v2"[..], Span::NONE));
    }
}

#[test]
fn a_plain_read_has_entries_of_two_elements_without_a_history() {
    let entry = |id| format!("*2\r\n$3\r\n{id}\r\n*2\r\n$8\r\n_payload\r\n$3\r\n{id}\r\n");
    let reply = format!("*1\r\n*2\r\n$1\r\ns\r\n*2\r\n{}{}", entry("1-0"), entry("1-1"));
    let slots = slots(&reply);
    let bodies: Vec<_> = slots.iter().map(|slot| slot.payload.of(reply.as_bytes())).collect();
    assert_eq!(bodies, [b"1-0", b"1-1"]);
    assert!(slots.iter().all(|slot| (slot.idle_ms, slot.earlier, slot.partition) == (0, 0, KEYLESS)));
}

#[test]
fn a_read_that_brought_nothing_has_no_entries() {
    let stream = "*1\r\n*2\r\n$1\r\ns\r\n";
    let inner = [format!("{stream}*0\r\n"), format!("{stream}*-1\r\n"), "%1\r\n$1\r\ns\r\n_\r\n".into()];
    let outer = ["*-1\r\n", "_\r\n", "$-1\r\n", "*0\r\n", "%0\r\n"].map(String::from);
    for reply in outer.iter().chain(&inner) {
        assert_eq!(slots(reply), []);
    }
}

#[test]
fn a_deleted_body_is_nil_in_three_ways_and_its_neighbours_are_whole() {
    for nil in ["*-1\r\n", "$-1\r\n", "_\r\n"] {
        let slot = slots(one(4, format!("{nil}:7\r\n:2\r\n")))[0];
        assert!(slot.deleted && (slot.idle_ms, slot.earlier) == (7, 2));
        let whole = "*2\r\n$3\r\n2-0\r\n*2\r\n$8\r\n_payload\r\n$1\r\nb\r\n";
        let gone = format!("*2\r\n$3\r\n1-0\r\n{nil}");
        let reply = format!("%1\r\n$1\r\ns\r\n*3\r\n{gone}{whole}{gone}");
        let slots = slots(&reply);
        assert_eq!(slots.iter().map(|slot| slot.deleted).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(slots[1].payload.of(reply.as_bytes()), b"b");
        assert!(!slots[2].payload.is_some() && slots[2].fields.of(reply.as_bytes()).is_empty());
    }
}

#[test]
fn an_error_is_told_apart_from_entries_and_keeps_its_text() {
    let text = "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option";
    for (reply, text) in [
        (format!("-{text}\r\n"), text),
        (format!("!{}\r\n{text}\r\n", text.len()), text),
        (format!(">1\r\n+x\r\n-{text}\r\n"), text),
        ("-\r\n".into(), ""),
        ("!0\r\n\r\n".into(), ""),
        ("!4\r\na\r\nb\r\n".into(), "a\r\nb"),
        ("-\rERR\r\n".into(), "\rERR"),
    ] {
        let walked = walked(reply.as_bytes()).unwrap_or_else(|error| panic!("{reply:?}: {error}"));
        let Outcome::Error(span) = walked.outcome else { panic!("{reply:?}: {walked:?}") };
        assert_eq!((walked.slots.len(), walked.end, span.of(reply.as_bytes())), (0, reply.len(), text.as_bytes()));
    }
}

#[test]
fn push_frames_in_front_are_stepped_over_whatever_they_hold() {
    for push in [
        ">0\r\n",
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ">2\r\n+message\r\n_\r\n",
        ">9\r\n#t\r\n,1.5\r\n(12345678901234567890\r\n-ERR x\r\n!3\r\na\r\n\r\n=7\r\ntxt:a\r\n\r\n$-1\r\n*-1\r\n:-7\r\n",
        ">2\r\n%2\r\n+a\r\n:1\r\n+b\r\n~2\r\n:1\r\n:2\r\n*2\r\n*0\r\n%0\r\n",
    ] {
        let reply = format!("{push}{push}%1\r\n$1\r\ns\r\n{CLAIMED}");
        let found: Vec<_> = slots(&reply).iter().map(|slot| slot.id.ms).collect();
        assert_eq!(found, [1, 2, 4, 5], "{push:?}");
        assert_eq!(slots(format!("{push}_\r\n")), []);
    }
}

#[test]
fn fields_are_any_bytes_in_order_and_the_last_of_a_name_counts() {
    let all: Vec<u8> = (0..=255).collect();
    let written: [(&[u8], &[u8]); 8] = [
        (b"_payload", b"first"),
        (header::KEY, b"acct-1"),
        (b"", b""),
        (&all, b"\r\n$3\r\n*2\r\n"),
        (b"\xff\xfe", &all),
        (b"_payload", b"\0\r\n"),
        (b"h:Redis-Partition-KEY", b"acct-2"),
        (b"_payload ", b"another field"),
    ];
    let (slot, reply) = entry(&written);
    assert_eq!(pairs(&reply, &slot), written);
    assert_eq!((slot.payload.of(&reply), slot.key.of(&reply)), (&b"\0\r\n"[..], &b"acct-2"[..]));
    assert_eq!(slot.partition, partition(b"acct-2"));
    let (slot, _) = entry(&[(b"_payload", b""), (header::KEY, b"")]);
    assert!(slot.payload.is_some() && slot.key.is_some() && slot.partition == partition(b""), "empty is not missing");
}

#[test]
fn a_foreign_entry_has_fields_and_no_body() {
    let written: [(&[u8], &[u8]); 3] = [(b"id", b"1"), (b"account", b"a"), (b"id", b"2")];
    for written in [&written[..], &[]] {
        let (slot, reply) = entry(written);
        assert_eq!(pairs(&reply, &slot), written);
        assert_eq!((slot.payload, slot.key, slot.partition), (Span::NONE, Span::NONE, KEYLESS));
        assert!(!slot.deleted);
    }
}

#[test]
fn the_partition_is_computed_only_where_it_is_asked_for() {
    let (slot, reply) = entry(&[(b"h:redis-partition-key", b"acct-42")]);
    assert_eq!(slot.partition, partition(b"acct-42"));
    let mut slots = Vec::new();
    assert_eq!(Walker::new(false).walk(&reply, &mut slots), Ok(Progress::Done(reply.len())));
    assert_eq!((slots[0].key, slots[0].partition), (slot.key, KEYLESS));
}

#[test]
fn a_copy_says_how_often_and_for_which_group() {
    for (text, retries) in [
        ("3", 3),
        ("0", 0),
        ("4294967295", u32::MAX),
        ("4294967296", 0),
        ("-1", 0),
        ("three", 0),
        ("", 0),
        ("\u{ff}", 0),
    ] {
        let (slot, reply) = entry(&[(header::RETRY_COUNT, text.as_bytes()), (header::RETRY_GROUP, b"ledger")]);
        assert_eq!((slot.retries, slot.copy_of.of(&reply)), (retries, &b"ledger"[..]), "{text:?}");
    }
}

#[test]
fn ids_reach_to_the_limits_of_64_bits_and_not_past_them() {
    for (text, id) in [
        ("18446744073709551615-18446744073709551615", Some(EntryId::new(u64::MAX, u64::MAX))),
        ("0-1", Some(EntryId::new(0, 1))),
        ("7", Some(EntryId::new(7, 0))),
        ("18446744073709551616-0", None),
        ("0-18446744073709551616", None),
        ("1-2-3", None),
        ("", None),
        ("-1", None),
    ] {
        let reply = format!("%1\r\n$1\r\ns\r\n*1\r\n*2\r\n${}\r\n{text}\r\n*0\r\n", text.len());
        let found = walked(reply.as_bytes()).map(|walked| walked.slots[0].id);
        assert_eq!(found.as_ref().ok(), id.as_ref(), "{text}");
        assert!(id.is_some() || found.is_err_and(|error| error.what == "an entry id that is none"));
    }
}

#[test]
fn counters_may_be_bulk_strings_a_hand_back_has_no_idle_time_and_a_fatal_count_is_tamed() {
    for (counters, idle, earlier) in [
        (":501\r\n:3\r\n", 501, 3),
        ("$3\r\n501\r\n$1\r\n3\r\n", 501, 3),
        (":501\r\n$1\r\n3\r\n", 501, 3),
        (":1795968714201\r\n:2\r\n", 0, 2),
        (":-1\r\n:-1\r\n", 0, 0),
        ("$2\r\n-1\r\n$1\r\n0\r\n", 0, 0),
        (":86400000\r\n:9223372036854775807\r\n", 86_400_000, u32::MAX - 1),
        ("$19\r\n9223372036854775807\r\n$19\r\n9223372036854775807\r\n", 0, u32::MAX - 1),
    ] {
        let slot = slots(one(4, format!("*0\r\n{counters}")))[0];
        assert_eq!((slot.idle_ms, slot.earlier), (idle, earlier), "{counters:?}");
    }
}

#[test]
fn a_walk_ends_where_the_next_reply_begins() {
    let first = format!("%1\r\n$1\r\ns\r\n{CLAIMED}");
    for next in ["_\r\n", "*", "\r\n\r\n", &first] {
        let both = format!("{first}{next}");
        let walked = walked(both.as_bytes()).map(|walked| (walked.slots.len(), walked.end));
        assert_eq!(walked, Ok((4, first.len())));
    }
    let (mut walker, mut slots) = (Walker::new(true), Vec::new());
    for _ in 0..2 {
        assert_eq!(walker.walk(first.as_bytes(), &mut slots), Ok(Progress::Done(first.len())));
        assert_eq!(slots.len(), 4, "walking on after the end adds nothing");
    }
}

#[test]
fn more_entries_than_are_reserved_for_are_all_there() {
    let entries = (0..3 * MAX_RESERVE).map(|number| format!("*2\r\n$7\r\n{number:05}-1\r\n*0\r\n"));
    let reply = format!("%1\r\n$1\r\ns\r\n*{}\r\n{}", entries.len(), entries.collect::<String>());
    let mut slots = Vec::new();
    assert_eq!(Walker::new(false).walk(reply.as_bytes(), &mut slots), Ok(Progress::Done(reply.len())));
    assert!(slots.iter().enumerate().all(|(at, slot)| slot.id == EntryId::new(at as u64, 1)));
    assert_eq!(slots.len(), 3 * MAX_RESERVE);
}

#[path = "reply_refused_tests.rs"]
mod refused;
