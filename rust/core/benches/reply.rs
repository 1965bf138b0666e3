//! What it costs to walk the reply of a group read: ns per entry, from the bytes of a reply to its slots.
//!
//! `cargo bench -p ruststream-core --bench reply`; a name picks some (`-- walk/claim`).

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use ruststream_core::entry::Slot;
use ruststream_core::reply::{Progress, Walker, fields};

/// Entries of a usual reply.
const ENTRIES: usize = 500;
/// What one read of the socket brings.
const PIECE: usize = 16 * 1024;
const PAYLOAD: &str = r#"{"id":1234567,"account":"acct-1042","amount_cents":129900,"currency":"EUR"}"#;

/// Which server and command a reply comes from.
#[derive(Clone, Copy)]
enum Form {
    /// A plain read over RESP2: pairs outside, entries of two elements.
    Resp2,
    /// A plain read over RESP3: a map outside.
    Resp3,
    /// A read with CLAIM over RESP3: entries of four elements.
    Claim,
}

const FORMS: [(&str, Form); 3] = [("resp2", Form::Resp2), ("resp3", Form::Resp3), ("claim", Form::Claim)];

fn bulk(reply: &mut String, text: &str) {
    let _ = write!(reply, "${}\r\n{text}\r\n", text.len());
}

/// A reply of as many entries, each with the fields that `fields` gives for its number.
fn reply(form: Form, entries: usize, fields: impl Fn(usize) -> Vec<(String, String)>) -> Vec<u8> {
    let mut reply = String::from(match form {
        Form::Resp2 => "*1\r\n*2\r\n",
        Form::Resp3 | Form::Claim => "%1\r\n",
    });
    bulk(&mut reply, "payments");
    let _ = write!(reply, "*{entries}\r\n");
    for number in 0..entries {
        reply += if matches!(form, Form::Claim) { "*4\r\n" } else { "*2\r\n" };
        bulk(&mut reply, &format!("1795968714201-{number}"));
        let fields = fields(number);
        let _ = write!(reply, "*{}\r\n", fields.len() * 2);
        for (name, value) in fields {
            bulk(&mut reply, &name);
            bulk(&mut reply, &value);
        }
        if matches!(form, Form::Claim) {
            reply += ":0\r\n:0\r\n";
        }
    }
    reply.into_bytes()
}

/// A payment as `publish(..., key=)` writes it, without its content type.
fn payment(number: usize) -> Vec<(String, String)> {
    let key = format!("acct-{}", number * 7919 % 4096);
    vec![("_payload".into(), PAYLOAD.into()), ("h:redis-partition-key".into(), key)]
}

/// Walk as the socket does: a new walker and new slots for each reply. `piece`: bytes that arrive at once.
fn walk(reply: &[u8], hash_keys: bool, piece: usize) -> Vec<Slot> {
    let mut slots = Vec::new();
    let mut walker = Walker::new(hash_keys);
    let mut end = 0;
    loop {
        end = (end + piece).min(reply.len());
        match walker.walk(&reply[..end], &mut slots) {
            Ok(Progress::Done(_)) => return slots,
            Ok(Progress::More(_)) if end < reply.len() => {}
            other => panic!("a bench reply that is none: {other:?}"),
        }
    }
}

fn usual_replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("walk");
    group.throughput(Throughput::Elements(ENTRIES as u64));
    for (name, form) in FORMS {
        let bytes = reply(form, ENTRIES, payment);
        for (hashing, hash_keys) in [("plain", false), ("hashed", true)] {
            group.bench_with_input(BenchmarkId::new(name, hashing), &bytes, |bencher, bytes| {
                bencher.iter(|| walk(black_box(bytes), hash_keys, usize::MAX / 2));
            });
        }
        group.bench_with_input(BenchmarkId::new(name, "hashed, 16 KB pieces"), &bytes, |bencher, bytes| {
            bencher.iter(|| walk(black_box(bytes), true, PIECE));
        });
    }
    group.finish();
}

fn large_entries(criterion: &mut Criterion) {
    let megabyte = reply(Form::Resp3, 1, |_| vec![("_payload".into(), "x".repeat(1 << 20))]);
    let wide = reply(Form::Resp3, 1, |_| (0..5000).map(|n| (format!("field-{n}"), format!("{n}"))).collect());
    let mut group = criterion.benchmark_group("one entry");
    for (name, bytes, parts) in [("1 MB", &megabyte, 1), ("5,000 fields", &wide, 5000)] {
        group.throughput(Throughput::Elements(parts));
        for (arrival, piece) in [("at once", usize::MAX / 2), ("16 KB pieces", PIECE)] {
            group.bench_with_input(BenchmarkId::new(name, arrival), bytes, |bencher, bytes| {
                bencher.iter(|| walk(black_box(bytes), true, piece));
            });
        }
    }
    group.finish();
}

/// Going through the fields again, as the headers of a delivery do when they are first asked for.
fn field_lists(criterion: &mut Criterion) {
    let bytes = reply(Form::Resp3, ENTRIES, payment);
    let slots = walk(&bytes, false, usize::MAX / 2);
    let mut group = criterion.benchmark_group("fields");
    group.throughput(Throughput::Elements(ENTRIES as u64));
    group.bench_function("payload and key", |bencher| {
        bencher.iter(|| slots.iter().map(|slot| fields(black_box(&bytes), slot).count()).sum::<usize>());
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    usual_replies(&mut criterion);
    large_entries(&mut criterion);
    field_lists(&mut criterion);
    criterion.final_summary();
}
