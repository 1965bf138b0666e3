//! Batches and their tokens: what a pushed entry reads as, and the way of each entry, once.

use super::*;
use crate::entry::KEYLESS;
use crate::partition::partition;
use crate::token::Token;
use crate::{header, reply};

fn origin() -> Arc<Origin> {
    let [subscription, stream, group, consumer] = ["s", "payments", "ledger", "c"].map(String::from);
    Arc::new(Origin { subscription, stream, group, consumer })
}

fn batch(ids: &[u64]) -> Arc<Batch> {
    let slots = ids.iter().map(|ms| Slot::new(EntryId::new(*ms, 0))).collect();
    Batch::new(RawBatch { slots, ..RawBatch::default() }, origin(), 7)
}

fn pushed(fields: &[(&[u8], &[u8])], hash_keys: bool) -> Token {
    let (mut raw, mut buffer) = (RawBatch::default(), Vec::new());
    raw.push(&mut buffer, Slot::new(EntryId::new(1, 0)), &[(b"before", b"it")], hash_keys);
    raw.push(&mut buffer, Slot::new(EntryId::new(2, 0)), fields, hash_keys);
    raw.bytes = buffer.into();
    Token::new(Batch::new(raw, origin(), 0), 1)
}

#[test]
fn a_pushed_entry_reads_as_one_that_was_walked() {
    let fields: [(&[u8], &[u8]); 5] = [
        (b"_payload", b"first"),
        (header::KEY, b"acct-1"),
        (header::RETRY_COUNT, b"3"),
        (header::RETRY_GROUP, b"ledger"),
        (b"_payload", b"\r\n$1\r\n"),
    ];
    let token = pushed(&fields, true);
    assert_eq!(token.fields().collect::<Vec<_>>(), fields);
    assert_eq!((token.payload(), token.key()), (&b"\r\n$1\r\n"[..], Some(&b"acct-1"[..])));
    assert_eq!((token.copy_of(), token.slot().retries), (Some(&b"ledger"[..]), 3));
    assert_eq!(token.slot().partition, partition(b"acct-1"));
    let mut reply = b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n2-0\r\n*10\r\n".to_vec();
    let span = token.slot().fields;
    reply.extend_from_slice(span.of(&token.batch().bytes));
    let mut walked = Vec::new();
    let end = reply::Walker::new(true).walk(&reply, &mut walked);
    assert_eq!((end, walked.len()), (Ok(reply::Progress::Done(reply.len())), 1));
    let read = |slot: &Slot, bytes: &[u8]| {
        [slot.payload, slot.key, slot.copy_of].map(|span| span.is_some().then(|| span.of(bytes).to_vec()))
    };
    assert_eq!(read(&walked[0], &reply), read(token.slot(), &token.batch().bytes));
}

#[test]
fn a_pushed_entry_without_key_or_body_has_none() {
    let token = pushed(&[(b"account", b"a")], true);
    assert_eq!((token.payload(), token.key(), token.copy_of()), (&b""[..], None, None));
    assert_eq!(token.slot().partition, KEYLESS);
    assert_eq!(pushed(&[(header::KEY, b"a")], false).slot().partition, KEYLESS, "nobody asked for it");
    assert_eq!(pushed(&[], true).fields().count(), 0);
}

#[test]
fn a_reply_correlates_by_what_the_entry_brought_or_by_its_id() {
    let (correlation, message): (&[u8], &[u8]) = (b"h:Correlation-Id", b"h:message-id");
    assert_eq!(pushed(&[(message, b"m"), (correlation, b"c")], false).correlation_id(), b"c");
    assert_eq!(pushed(&[(message, b"a"), (message, b"b"), (correlation, b"")], false).correlation_id(), b"b");
    assert_eq!(pushed(&[(b"message-id", b"m")], false).correlation_id(), b"2-0");
}

#[test]
fn deliveries_count_this_one_and_those_of_the_original() {
    let mut slot = Slot::new(EntryId::new(1, 0));
    (slot.earlier, slot.retries) = (2, 3);
    let raw = RawBatch { slots: vec![slot], ..RawBatch::default() };
    let token = Token::new(Batch::new(raw, origin(), 0), 0);
    assert_eq!((token.delivery_count(), token.server_count()), (6, 3));
    slot.set_history(0, i64::MAX);
    slot.retries = u32::MAX;
    let raw = RawBatch { slots: vec![slot], ..RawBatch::default() };
    assert_eq!(Token::new(Batch::new(raw, origin(), 0), 0).delivery_count(), u32::MAX);
}

#[test]
fn attempts_count_on_only_in_a_copy() {
    let headers: [(&[u8], &[u8]); 3] =
        [(header::ATTEMPTS, b"3"), (header::RETRY_COUNT, b"5"), (header::RETRY_GROUP, b"ledger")];
    let seen = |headers| {
        let token = pushed(headers, false);
        (token.attempts_before(), token.comes_again())
    };
    assert_eq!(seen(&headers), (3, true));
    assert_eq!(seen(&headers[1..]), (5, true), "where attempts were not counted, deliveries are");
    assert_eq!(seen(&headers[..2]), (0, false), "anybody may write these");
    let nameless: [(&[u8], &[u8]); 2] = [(header::RETRY_GROUP, b""), (header::ATTEMPTS, b"3")];
    assert_eq!(seen(&nameless), (0, false));
    assert_eq!(pushed(&nameless, false).copy_of(), None, "an empty name is no group's");
}

#[test]
fn a_copy_that_was_taken_for_an_ordinary_entry_stays_one() {
    let copy = pushed(&[(header::RETRY_GROUP, b"gone"), (header::ATTEMPTS, b"3")], false);
    assert!(copy.copied_alone(1, 0, false).slots[0].copy_of.is_some());
    let slots = vec![Slot { copy_of: Span::NONE, ..*copy.slot() }];
    let taken = RawBatch { slots, bytes: copy.batch().bytes.clone() };
    let again = Token::new(Batch::new(taken, origin(), 0), 0).copied_alone(1, 0, false);
    assert_eq!((again.slots[0].copy_of, again.slots[0].attempts_before()), (Span::NONE, 0));
}

#[test]
fn an_id_is_found_in_order_or_out_of_it() {
    for ids in [&[1, 2, 5, 9][..], &[9, 1, 5, 2]] {
        let batch = batch(ids);
        for (at, ms) in ids.iter().enumerate() {
            assert_eq!(batch.position(EntryId::new(*ms, 0)), Some(at));
        }
        assert_eq!((batch.position(EntryId::new(3, 0)), batch.position(EntryId::new(5, 1))), (None, None));
    }
}

#[test]
fn an_entry_goes_its_way_once_and_a_finished_batch_is_not_open() {
    let batch = batch(&[1, 2]);
    let [first, second] = &batch.tokens().collect::<Vec<_>>()[..] else { panic!("two entries") };
    assert!(!first.advance(Mark::Running, Mark::Settled), "it has not begun");
    assert!(first.begin() && !first.begin(), "it begins once");
    assert!(first.advance(Mark::Running, Mark::Settled) && !first.advance(Mark::Running, Mark::Settled));
    assert_eq!((batch.open(), batch.mark(0), batch.mark(1)), (2, Mark::Settled, Mark::Queued));
    assert!(first.advance(Mark::Settled, Mark::Done) && !first.advance(Mark::Settled, Mark::Done));
    assert!(second.advance(Mark::Queued, Mark::Done) && !second.begin(), "taken back before it began");
    assert_eq!(batch.open(), 0);
}

#[test]
fn losing_an_entry_is_noted_once_and_hides_no_mark() {
    let token = Token::new(batch(&[1]), 0);
    assert!(token.begin() && !token.is_lost());
    assert!(token.lose() && !token.lose());
    assert_eq!((token.is_lost(), token.mark()), (true, Mark::Running));
    assert!(token.advance(Mark::Running, Mark::Done));
    assert_eq!((token.is_lost(), token.mark()), (true, Mark::Done));
}

#[test]
fn many_threads_begin_an_entry_once_between_them() {
    let batch = batch(&(0..500).collect::<Vec<_>>());
    let begun: usize = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..4).map(|_| scope.spawn(|| batch.tokens().filter(Token::begin).count())).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap_or_default()).sum()
    });
    assert_eq!(begun, 500);
}

#[test]
fn a_buffer_takes_up_room_until_its_last_entry_is_done() {
    let credits = Arc::new(Credits::new(10));
    let raw = RawBatch { bytes: Bytes::from_static(b"twelve bytes"), slots: batch(&[1, 2]).slots().to_vec() };
    let batch = Batch::new(raw, origin(), 0);
    for _ in 0..2 {
        batch.weigh_on(&credits);
        assert_eq!((credits.used(), credits.bytes()), (2, 12), "weighed once");
    }
    for (token, left) in batch.tokens().zip([12, 0]) {
        assert!(token.advance(Mark::Queued, Mark::Done));
        assert_eq!(credits.bytes(), left);
    }
}

#[test]
fn a_renewal_makes_the_batch_young_again() {
    let batch = batch(&[1]);
    assert_eq!(batch.refreshed_ms(), 7);
    batch.refresh(90);
    assert_eq!(batch.refreshed_ms(), 90);
}
