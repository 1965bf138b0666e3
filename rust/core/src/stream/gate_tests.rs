//! The gate over the model of a server, by a clock that stands until it is moved.

use std::time::Duration;

use super::admit::admit;
use super::gate_bench::{Bench, MARKS, rest};
use super::starts;
use crate::batch::Mark;
use crate::model::{AddId, GroupRead};
use crate::settle::Outcome;
use crate::source::Source;
use crate::subscription::Settled;
use crate::token::Token;

fn mark(number: usize, text: &str) -> (usize, String) {
    (number, text.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_few_at_a_time_are_marked_and_the_next_when_they_start() {
    let bench = Bench::new(3, 2, &["a", "b", "c", "d", "e"]).await;
    bench.claim().await;
    assert_eq!(bench.marks(), [mark(0, "1b?"), mark(1, "1b?")]);
    let mut running = bench.started().await;
    assert_eq!((bench.numbers(&running), bench.marks().len()), (vec![0, 1], 4));
    bench.settle(&running[..1], Outcome::Ack).await;
    bench.settle(&running[1..], Outcome::Leave).await;
    assert_eq!(bench.marks(), [mark(1, "1?"), mark(2, "1b?"), mark(3, "1b?")]);
    running = bench.started().await;
    running.extend(bench.started().await);
    assert_eq!(bench.numbers(&running), [2, 3, 4]);
    bench.settle(&running, Outcome::Drop).await;
    assert_eq!(bench.marks(), [mark(1, "1?")]);
    assert_eq!(bench.subscription.credits.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn more_are_marked_ahead_of_quick_lanes_where_waiting_does_no_harm() {
    let keys: Vec<_> = (0..400).map(|number| number.to_string()).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    for mark in ["1", "2?", "3"] {
        let bench = Bench::new(4, 2, &keys).await;
        (0..400).for_each(|number| bench.put(number, mark));
        bench.claim().await;
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(bench.started().await.len(), expected);
        }
        // These take longer: fewer are marked from now on.
        let ahead = bench.queued();
        assert_eq!(ahead.len(), 64);
        assert!(ahead[..4].iter().all(Token::begin));
        bench.source.moved_on();
        rest().await;
        assert_eq!(bench.queued().len(), 64);
        assert!(ahead[4..20].iter().all(Token::begin));
        bench.source.moved_on();
        rest().await;
        assert_eq!(bench.queued().len(), 48);
    }
    // Nothing is known of these, they may end the process; or this is their last attempt, and a start may be missing.
    for mark in [None, Some("2b"), Some("3?")] {
        let bench = Bench::new(4, 2, &keys[..20]).await;
        (0..20).for_each(|number| mark.into_iter().for_each(|mark| bench.put(number, mark)));
        bench.claim().await;
        for _ in 0..10 {
            assert_eq!(bench.started().await.len(), 2, "{mark:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_on_its_way_and_keeps_its_order() {
    let bench = Bench::new(3, 4, &["a", "a", "a", "b"]).await;
    bench.claim().await;
    assert_eq!(bench.marks(), [mark(0, "1b?"), mark(3, "1b?")]);
    let running = bench.started().await;
    assert_eq!(bench.numbers(&running), [0, 3]);
    assert_eq!(bench.numbers(&bench.started().await), [1]);
    assert_eq!(bench.numbers(&bench.started().await), [2]);
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_back_has_the_mark_it_had_before() {
    let bench = Bench::new(3, 2, &["a", "b", "c"]).await;
    bench.put(1, "1");
    bench.claim().await;
    assert_eq!(bench.marks(), [mark(0, "1b?"), mark(1, "2b")]);
    let tokens = bench.subscription.withdraw(bench.source.withheld());
    assert_eq!(tokens.len(), 3);
    assert_eq!(bench.subscription.release(tokens).await, Ok(3));
    assert_eq!((bench.marks(), bench.started().await.len()), (vec![mark(1, "1")], 0));
    assert_eq!(bench.subscription.credits.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_has_not_passed_has_no_start_that_could_end() {
    let bench = Bench::new(3, 1, &["a", "b"]).await;
    bench.put(1, "2");
    bench.claim().await;
    let tokens = bench.subscription.held.tokens();
    let Some(gate) = &bench.source.gate else { panic!("no gate") };
    let ended: Vec<_> = gate.ended(tokens.iter()).iter().map(|(token, _)| token.id()).collect();
    assert_eq!(ended, bench.ids[..1], "the second one waits, and keeps the mark it has");
}

#[tokio::test(start_paused = true)]
async fn what_is_used_up_is_settled_without_a_start() {
    let bench = Bench::new(3, 2, &["a", "b", "c", "d"]).await;
    for (number, text) in [(0, "3"), (1, "3a?"), (2, "3b?"), (3, "3b")] {
        bench.put(number, text);
    }
    bench.claim().await;
    bench.subscription.settler.flush().await;
    // The last one has a start more, alone: others ran beside its third, and none of its starts went unmarked.
    assert_eq!(bench.numbers(&bench.started().await), [3]);
    assert_eq!(bench.marks(), [mark(3, "4a")]);
    assert_eq!(bench.subscription.stats.exhausted.get(), 3);
    assert!(bench.log.0.lock().iter().any(|line| line.contains("3 entries have used up their 3 attempts")));
}

#[tokio::test(start_paused = true)]
async fn a_suspect_waits_for_the_others_and_they_for_it_but_not_for_ever() {
    let bench = Bench::new(3, 4, &["a", "b", "c", "d"]).await;
    bench.put(0, "2b?");
    bench.put(1, "2a?");
    bench.claim().await;
    let others = bench.started().await;
    assert_eq!(bench.numbers(&others), [2, 3]);
    assert!(bench.started().await.is_empty());
    bench.settle(&others, Outcome::Ack).await;
    let alone = bench.started().await;
    assert_eq!((bench.numbers(&alone), bench.marks()), (vec![0], vec![mark(0, "3a?"), mark(1, "2a?")]));
    let id = bench.model.run(|keyspace| keyspace.xadd("s", AddId::Auto, &[("_payload", "x")], None));
    let read = bench.model.run(|keyspace| keyspace.xreadgroup(&GroupRead::new("s", "g", "gone")).map(drop));
    assert!(id.is_ok() && read.is_ok());
    bench.claim().await;
    assert!(bench.started().await.is_empty(), "it would run beside the one that has to be alone");
    for _ in 0..6 {
        bench.subscription.clock.advance(Duration::from_secs(1));
        rest().await;
    }
    let late = bench.started().await;
    assert_eq!(late.iter().map(Token::id).collect::<Vec<_>>(), id.into_iter().collect::<Vec<_>>());
    bench.settle(&late, Outcome::Ack).await;
    bench.settle(&alone, Outcome::Leave).await;
    assert_eq!(bench.numbers(&bench.started().await), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_suspect_waits_until_the_outcomes_of_others_are_answered_or_noted() {
    let bench = Bench::new(3, 4, &["a", "b", "c"]).await;
    bench.put(1, "2b?");
    bench.put(2, "2b?");
    bench.claim().await;
    let other = bench.started().await;
    assert_eq!(bench.numbers(&other), [0]);
    // Its handler has ended, and its ack is on its way: should the process die now, its mark says that it was started.
    assert!(other[0].advance(Mark::Running, Mark::Settled));
    assert!(bench.started().await.is_empty());
    bench.subscription.complete(&other);
    let first = bench.started().await;
    assert_eq!(bench.numbers(&first), [1]);
    assert!(first[0].advance(Mark::Running, Mark::Settled));
    assert!(bench.started().await.is_empty(), "the next one is alone as well");
    let Some(gate) = &bench.source.gate else { panic!("no gate") };
    let ended = gate.ended(first.iter());
    assert!(starts::note_ends(&bench.source, &bench.subscription, gate, &ended).await.is_ok());
    assert_eq!(bench.numbers(&bench.started().await), [2], "its end is known, as of one that is kept for its delay");
}

#[tokio::test(start_paused = true)]
async fn what_someone_else_took_over_is_not_let_through() {
    let bench = Bench::new(3, 1, &["a", "b"]).await;
    bench.claim().await;
    bench.model.run(|keyspace| {
        assert!(keyspace.xclaim("s", "g", "thief", &crate::model::Claim::default(), &bench.ids[1..]).is_ok());
    });
    let running = bench.started().await;
    assert_eq!((bench.numbers(&running), bench.started().await.len()), (vec![0], 0));
    assert_eq!(bench.marks(), [mark(0, "1b?")]);
    assert_eq!((bench.subscription.credits.used(), bench.subscription.stats.lost.get()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn marks_that_are_refused_stop_nothing() {
    let bench = Bench::new(3, 2, &["a", "b", "c"]).await;
    bench.model.run(|keyspace| keyspace.set(MARKS, b"text"));
    bench.claim().await;
    let mut running = bench.started().await;
    running.extend(bench.started().await);
    assert_eq!(bench.numbers(&running), [0, 1, 2]);
    bench.settle(&running[..1], Outcome::Leave).await;
    bench.settle(&running[1..], Outcome::Ack).await;
    assert!(running.iter().all(|token| token.mark() == Mark::Done));
    assert!(bench.log.0.lock().iter().any(|line| line.contains("refused to count attempts")));
}

#[tokio::test(start_paused = true)]
async fn stale_marks_are_found_and_those_of_pending_entries_stay() {
    let bench = Bench::new(3, 1, &["a", "b"]).await;
    bench.put(0, "1");
    bench.put(1, "1");
    assert!(bench.model.run(|keyspace| keyspace.hset(MARKS, b"no id", b"1")).is_ok());
    assert_eq!(bench.model.run(|keyspace| keyspace.xack("s", "g", &bench.ids[..1])), Ok(1));
    rest().await;
    assert_eq!(bench.marks().len(), 3);
    // It dozes: on a clock that stands, until the clock is moved.
    bench.subscription.clock.advance(Duration::from_secs(10));
    rest().await;
    assert_eq!(bench.marks(), [mark(1, "1"), mark(usize::MAX, "1")]);
}

#[tokio::test(start_paused = true)]
async fn with_a_cap_of_one_fresh_entries_are_marked_as_well() {
    let bench = Bench::new(1, 2, &[]).await;
    let id = bench.model.run(|keyspace| keyspace.xadd("s", AddId::Auto, &[("_payload", "x")], None));
    let Ok(mut reader) = bench.source.store.open_reader(&bench.subscription.origin, true).await else {
        panic!("no reader")
    };
    let want = crate::store::Want { count: 10, block: None, claim: None };
    let Ok(raw) = reader.read(want, None).await else { panic!("not read") };
    assert!(id.is_ok() && admit(&bench.source, &bench.subscription, raw, 0).await.is_ok());
    let running = bench.started().await;
    assert_eq!((running.len(), bench.marks()), (1, vec![mark(usize::MAX, "1b")]));
    bench.settle(&running, Outcome::Ack).await;
    assert!(bench.marks().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_let_through_behind_the_head_of_its_key_does_not_keep_that_from_passing() {
    for workers in [1, 2] {
        let bench = Bench::new(5, workers, &["a", "a", "a"]).await;
        bench.claim().await;
        let running = bench.started().await;
        assert_eq!((bench.numbers(&running), bench.marks()), (vec![0], vec![mark(0, "1b?"), mark(1, "1b?")]));
        // The lanes would not start the second one before this one is back.
        assert_eq!(bench.subscription.keep(&running[0], Duration::from_secs(1)), Settled::Taken);
        bench.subscription.clock.advance(Duration::from_secs(1));
        rest().await;
        let arrivals = std::iter::from_fn(|| bench.subscription.inbox.pop());
        let arrived: Vec<_> = arrivals.flat_map(|arrival| arrival.tokens()).collect();
        assert_eq!(bench.numbers(&arrived), [1, 0]);
        assert_eq!(bench.marks(), [mark(0, "2b?"), mark(1, "1b?")]);
    }
}
