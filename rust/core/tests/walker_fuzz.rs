//! Random replies: walked they equal what was written, in whatever pieces they come; mutated they never break the walk.
//!
//! `WALKER_FUZZ_SEED` and `WALKER_FUZZ_COUNT` choose the mutated inputs. A failure names the seed that gives its input
//! again with a count of 1.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use fastrand::Rng;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use ruststream_core::entry::{EntryId, KEYLESS, Slot, Span};
use ruststream_core::header;
use ruststream_core::partition::partition;
use ruststream_core::reply::{Malformed, Outcome, Progress, Walker, fields};

type Pair = (Vec<u8>, Vec<u8>);

#[derive(Debug, Clone)]
struct Entry {
    id: EntryId,
    /// None: the body is gone.
    fields: Option<Vec<Pair>>,
    idle: i64,
    earlier: i64,
}

/// What a server has to say, and which of its ways of saying it.
#[derive(Debug, Clone)]
struct Reply {
    map: bool,
    claim: bool,
    bulk_counters: bool,
    nil: &'static str,
    pushes: Vec<&'static str>,
    entries: Vec<Entry>,
}

const NILS: [&str; 3] = ["*-1\r\n", "$-1\r\n", "_\r\n"];
const PUSHES: [&str; 4] = [
    ">0\r\n",
    ">2\r\n+invalidate\r\n_\r\n",
    ">2\r\n%1\r\n:1\r\n#t\r\n,1.5\r\n",
    ">3\r\n~1\r\n$2\r\n\r\n\r\n!1\r\nx\r\n(12\r\n",
];

fn put(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
    bytes.extend_from_slice(text);
    bytes.extend_from_slice(b"\r\n");
}

impl Reply {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.pushes.concat().into_bytes();
        bytes.extend_from_slice(if self.map { b"%1\r\n" } else { b"*1\r\n*2\r\n" });
        put(&mut bytes, b"payments");
        bytes.extend_from_slice(format!("*{}\r\n", self.entries.len()).as_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(if self.claim { b"*4\r\n" } else { b"*2\r\n" });
            put(&mut bytes, entry.id.to_string().as_bytes());
            match &entry.fields {
                None => bytes.extend_from_slice(self.nil.as_bytes()),
                Some(fields) => {
                    bytes.extend_from_slice(format!("*{}\r\n", fields.len() * 2).as_bytes());
                    fields.iter().flat_map(|(name, value)| [name, value]).for_each(|text| put(&mut bytes, text));
                }
            }
            for counter in [entry.idle, entry.earlier].iter().filter(|_| self.claim) {
                if self.bulk_counters {
                    put(&mut bytes, counter.to_string().as_bytes());
                } else {
                    bytes.extend_from_slice(format!(":{counter}\r\n").as_bytes());
                }
            }
        }
        bytes
    }

    /// Hold the slots against what was written.
    fn check(&self, bytes: &[u8], slots: &[Slot]) {
        assert_eq!(slots.len(), self.entries.len());
        for (slot, entry) in slots.iter().zip(&self.entries) {
            let written = entry.fields.clone().unwrap_or_default();
            let last = |is_it: &dyn Fn(&[u8]) -> bool| {
                written.iter().rev().find(|(name, _)| is_it(name)).map(|(_, value)| value.as_slice())
            };
            let header = |wanted: &[u8]| last(&|name| name.starts_with(b"h:") && name.eq_ignore_ascii_case(wanted));
            let of = |span: Span| span.is_some().then(|| span.of(bytes));
            let found: Vec<Pair> =
                fields(bytes, slot).map(|(name, value)| (name.of(bytes).to_vec(), value.of(bytes).to_vec())).collect();
            assert_eq!((slot.id, slot.deleted), (entry.id, entry.fields.is_none()));
            assert_eq!(found, written);
            assert_eq!((of(slot.payload), of(slot.key)), (last(&|name| name == b"_payload"), header(header::KEY)));
            assert_eq!(slot.partition, header(header::KEY).map_or(KEYLESS, partition));
            let retries = header(header::RETRY_COUNT).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            let is_group = |name: &[u8]| name.eq_ignore_ascii_case(header::RETRY_GROUP);
            let group = written.iter().rev().find(|(name, value)| is_group(name) && !value.is_empty());
            assert_eq!(slot.retries, retries.unwrap_or(0));
            assert_eq!(of(slot.copy_of), group.map(|(_, value)| value.as_slice()));
            let handed_back = !(0..=315_360_000_000).contains(&entry.idle);
            let idle = if handed_back || !self.claim { 0 } else { entry.idle };
            let earlier = u32::try_from(entry.earlier.max(0)).unwrap_or(u32::MAX - 1);
            assert_eq!(i64::try_from(slot.idle_ms), Ok(idle));
            assert_eq!(slot.earlier, if self.claim { earlier } else { 0 });
        }
    }
}

fn a_field() -> impl Strategy<Value = Pair> {
    let known = [header::PAYLOAD, header::KEY, b"h:Redis-PARTITION-key", header::RETRY_COUNT, header::RETRY_GROUP];
    let name = prop_oneof![
        3 => select(known.to_vec()).prop_map(<[u8]>::to_vec),
        2 => vec(any::<u8>(), 0..12),
        1 => "(h:)?[a-z_-]{0,26}".prop_map(String::into_bytes),
    ];
    let value = prop_oneof![
        2 => vec(any::<u8>(), 0..40),
        1 => "[0-9]{1,11}".prop_map(String::into_bytes),
        1 => "[\r\n$*:_0-9-]{0,20}".prop_map(String::into_bytes),
    ];
    (name, value)
}

fn an_entry() -> impl Strategy<Value = Entry> {
    let id = prop_oneof![
        (any::<u64>(), any::<u64>()),
        (0..100u64, 0..3u64),
        Just((u64::MAX, u64::MAX)),
        (1_795_968_714_201..1_795_968_999_999u64, 0..9u64),
    ];
    let counter = || prop_oneof![-1..9i64, 0..400_000_000_000i64, -i64::MAX..i64::MAX, Just(i64::MAX)];
    let body = proptest::option::weighted(0.9, vec(a_field(), 0..6));
    (id, body, counter(), counter()).prop_map(|((ms, seq), fields, idle, earlier)| {
        let id = EntryId::new(ms, seq);
        Entry { id, fields, idle, earlier }
    })
}

fn a_reply() -> impl Strategy<Value = Reply> {
    let pushes = vec(select(PUSHES.to_vec()), 0..3);
    (any::<[bool; 3]>(), select(NILS.to_vec()), pushes, vec(an_entry(), 0..8)).prop_map(
        |([map, claim, bulk_counters], nil, pushes, entries)| Reply { map, claim, bulk_counters, nil, pushes, entries },
    )
}

/// All that a walk came to.
#[derive(Debug, PartialEq)]
struct Walked {
    end: Result<Progress, Malformed>,
    slots: Vec<Slot>,
    outcome: Outcome,
}

/// Walk pieces of these sizes, the last one repeated. `whole`: where the reply ends, if it does.
fn walk(bytes: &[u8], hash_keys: bool, sizes: &[usize], whole: Option<usize>) -> Walked {
    let (mut walker, mut slots) = (Walker::new(hash_keys), Vec::new());
    let (mut end, mut pieces) = (0, 0);
    loop {
        end = (end + sizes[pieces.min(sizes.len() - 1)].max(1)).min(bytes.len());
        pieces += 1;
        let progress = walker.walk(&bytes[..end], &mut slots);
        if let Ok(Progress::More(short)) = progress {
            let kept = whole.is_none_or(|whole| end + short <= whole);
            assert!(short > 0 && kept, "{short} more after byte {end}, the reply ends at {whole:?}");
            if end < bytes.len() {
                continue;
            }
        }
        return Walked { end: progress, slots, outcome: walker.outcome() };
    }
}

proptest! {
    #[test]
    fn a_reply_is_walked_into_what_was_written_in_whatever_pieces_it_comes(
        reply in a_reply(),
        sizes in vec(1..60usize, 1..40),
        next in vec(any::<u8>(), 0..9),
    ) {
        let written = reply.bytes();
        let bytes = [&written[..], &next].concat();
        let walked = walk(&bytes, true, &sizes, Some(written.len()));
        prop_assert_eq!((&walked.end, walked.outcome), (&Ok(Progress::Done(written.len())), Outcome::Entries));
        reply.check(&bytes, &walked.slots);
        prop_assert_eq!(walk(&bytes, true, &[bytes.len()], None), walked);
    }

    #[test]
    fn any_bytes_at_all_are_refused_or_waited_on(bytes in vec(any::<u8>(), 0..60), sizes in vec(1..9usize, 1..9)) {
        let walked = walk(&bytes, true, &sizes, None);
        prop_assert_eq!(walk(&bytes, true, &[bytes.len()], None), walked);
    }
}

/// Replies of all shapes to start from, the same ones every time.
fn pool() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let mut drawn = || a_reply().new_tree(&mut runner).map(|tree| tree.current().bytes());
    let mut pool: Vec<_> = (0..400).filter_map(|_| drawn().ok()).collect();
    let others = ["-ERR x\r\n", "!5\r\nERR x\r\n", "*0\r\n", "%0\r\n"];
    pool.extend(others.iter().chain(&NILS).map(|text| text.as_bytes().to_vec()));
    pool
}

const NUMBERS: [&str; 8] =
    ["0", "-", "-1", "4294967290", "4294967296", "9223372036854775807", "9999999999999999999", "00000000000000000001"];
const TOKENS: [&str; 15] = [
    "\r\n",
    "\r",
    "\n",
    "$",
    "*",
    ":",
    "_\r\n",
    "*-1\r\n",
    "$-1\r\n",
    "$0\r\n\r\n",
    "*0\r\n",
    ">1\r\n",
    "!3\r\nERR\r\n",
    "-ERR\r\n",
    "%1\r\n",
];

/// Replace the number of a line that begins with a type byte.
fn edit_number(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let from = rng.usize(..=bytes.len());
    let Some(kind) = bytes[from..].iter().position(|byte| b"$*:%>!".contains(byte)) else { return };
    let start = from + kind + 1;
    let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
    let number = match rng.u8(..4) {
        0 => NUMBERS[rng.usize(..NUMBERS.len())].to_owned(),
        1 => rng.i64(..).to_string(),
        _ => rng.i64(-2..40).to_string(),
    };
    bytes.splice(start..start + digits, number.into_bytes());
}

fn mutated(rng: &mut Rng, pool: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = pool[rng.usize(..pool.len())].clone();
    for _ in 0..rng.u8(1..5) {
        let at = rng.usize(..=bytes.len());
        let to = rng.usize(at..=bytes.len()).min(at + 40);
        match rng.u16(..8000) {
            0 => drop(bytes.splice(..0, format!(">99999\r\n{}", ":1\r\n".repeat(17_000)).into_bytes())),
            1 => drop(bytes.splice(..0, format!(">1\r\n+{}", "x".repeat(66_000)).into_bytes())),
            2..1600 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            1600..2000 if at < bytes.len() => bytes[at] = rng.u8(..),
            2000..4400 => edit_number(rng, &mut bytes),
            4400..5200 => drop(bytes.drain(at..to)),
            5200..5800 => bytes.truncate(at),
            5800..7000 => drop(bytes.splice(at..at, TOKENS[rng.usize(..TOKENS.len())].bytes())),
            7000..7500 => bytes.extend_from_within(at..to),
            _ => {
                let other = &pool[rng.usize(..pool.len())];
                let from = rng.usize(..=other.len());
                bytes.splice(at..to, other[from..].iter().copied());
            }
        }
    }
    bytes
}

/// Walk one input at once and in pieces, and look at all that came of it.
fn check(rng: &mut Rng, bytes: &[u8]) -> Walked {
    let hash_keys = rng.bool();
    let walked = walk(bytes, hash_keys, &[bytes.len()], None);
    let end = match walked.end {
        Ok(Progress::Done(end)) => Some(end),
        _ => None,
    };
    let largest = if bytes.len() > 10_000 { 4000 } else { rng.usize(1..60) };
    let sizes: Vec<_> = (0..16).map(|_| rng.usize(1..=largest)).chain([largest]).collect();
    assert_eq!(walk(bytes, hash_keys, &sizes, end), walked, "the pieces made a difference");
    assert!(walked.end.as_ref().err().is_none_or(|error| error.at <= bytes.len()));
    // A length that lies is worth one reservation; past it slots grow by twice at most, as any vector.
    assert!(walked.slots.capacity() <= 4096.max(walked.slots.len() * 2), "{} reserved", walked.slots.capacity());
    let end = u32::try_from(end.unwrap_or(bytes.len())).unwrap_or(u32::MAX);
    for slot in &walked.slots {
        let within =
            |span: Span| slot.fields.start <= span.start && span.start <= span.end && span.end <= slot.fields.end;
        assert!(slot.fields.start <= slot.fields.end && slot.fields.end <= end, "{slot:?}");
        assert!(
            [slot.payload, slot.key, slot.copy_of].iter().all(|span| *span == Span::NONE || within(*span)),
            "{slot:?}"
        );
        let found: Vec<_> = fields(bytes, slot).collect();
        assert_eq!(found.len(), slot.field_count as usize, "{slot:?}");
        assert!(found.iter().all(|(name, value)| within(*name) && within(*value) && name.end < value.start));
    }
    if let Outcome::Error(text) = walked.outcome {
        assert!(text.start <= text.end && text.end < end);
    }
    walked
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn a_mutated_reply_never_breaks_the_walk() {
    let count = setting("WALKER_FUZZ_COUNT", if cfg!(debug_assertions) { 200_000 } else { 4_000_000 });
    let first = setting("WALKER_FUZZ_SEED", 1);
    let current = Arc::new(AtomicU64::new(first));
    let (alive, watch) = channel();
    let walking = std::thread::spawn({
        let current = Arc::clone(&current);
        move || {
            let pool = pool();
            let (mut refused, mut ends) = (BTreeSet::new(), [0u64; 3]);
            for number in 0..count {
                let seed = first.wrapping_add(number);
                current.store(seed, Ordering::Relaxed);
                let mut rng = Rng::with_seed(seed);
                let bytes = mutated(&mut rng, &pool);
                match check(&mut rng, &bytes).end {
                    Ok(Progress::Done(_)) => ends[0] += 1,
                    Ok(Progress::More(_)) => ends[1] += 1,
                    Err(error) => {
                        refused.insert(error.what);
                        ends[2] += 1;
                    }
                }
                if number % 1024 == 0 && alive.send(()).is_err() {
                    break;
                }
            }
            (refused, ends)
        }
    });
    let again = || format!("WALKER_FUZZ_SEED={} WALKER_FUZZ_COUNT=1", current.load(Ordering::Relaxed));
    loop {
        match watch.recv_timeout(Duration::from_secs(30)) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => panic!("the walk does not end; again with {}", again()),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let Ok((refused, ends)) = walking.join() else { panic!("again with {}", again()) };
    if count >= 50_000 {
        // The inputs are worth nothing unless they come to every end, and to every way of being refused.
        assert!(ends.iter().all(|end| *end > count / 20), "whole, cut short, refused: {ends:?}");
        assert_eq!(refused.len(), 19, "{refused:?}");
    }
}
