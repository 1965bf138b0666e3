//! Entries that their holder keeps: their due times are found by whoever has them next, and by no timer before.

use std::sync::Arc;

use super::*;
use crate::batch::{Batch, RawBatch};
use crate::model::argument::Position;
use crate::model::read::GroupRead;

const KEY: &str = "delayed";
const ALL: Look = Look { limit: 100, room: 100, keeps_bodiless: false, offset: 0 };

fn origin(consumer: &str) -> Arc<Origin> {
    let [subscription, stream, group, consumer] = ["test", "s", "g", consumer].map(str::to_owned);
    Arc::new(Origin { subscription, stream, group, consumer })
}

fn order(consumer: &str, id: EntryId, count: u32, action: Action) -> Order {
    let raw = RawBatch { slots: vec![Slot { earlier: count - 1, ..Slot::new(id) }], ..RawBatch::default() };
    let token = crate::token::Token::new(Batch::new(raw, origin(consumer), 0), 0);
    Order { token, owner: origin(consumer), count, exact: true, action, attempts: None }
}

/// One entry, pending under `a` and kept there for so long. It is 1,000 now.
fn kept(after: u64) -> (Keyspace, EntryId) {
    let mut keyspace = Keyspace::default();
    keyspace.set_now(1_000);
    assert!(keyspace.xgroup_create("s", "g", Position::End, true, None).is_ok());
    let Ok(id) = keyspace.xadd("s", AddId::Auto, &[("f", "v")], None) else { panic!("not added") };
    assert!(keyspace.xreadgroup(&GroupRead::new("s", "g", "a")).is_ok_and(|read| read.is_some()));
    let keep = order("a", id, 1, Action::Keep(Duration::from_millis(after)));
    assert_eq!(keyspace.keep(&origin("a"), &[&keep], KEY), [Verdict::Done]);
    (keyspace, id)
}

fn handed(keyspace: &mut Keyspace, consumer: &str) -> Vec<u32> {
    let handed = keyspace.due(&origin(consumer), KEY, ALL).unwrap_or_default();
    handed.step.taken.iter().map(|taken| u32::try_from(taken.earlier).unwrap_or(0)).collect()
}

/// Claim it as another consumer, and look whether it was due.
fn claimed(keyspace: &mut Keyspace, id: EntryId, earlier: u32) -> Option<Parked> {
    assert!(keyspace.xclaim("s", "g", "b", &Claim::default(), &[id]).is_ok_and(|claimed| claimed.len() == 1));
    let found = keyspace.early(&origin("b"), KEY, &[Slot { earlier, ..Slot::new(id) }]).unwrap_or_default();
    found.first().map(|(_, parked)| *parked)
}

#[test]
fn what_its_holder_keeps_is_handed_to_nobody() {
    let (mut keyspace, id) = kept(500);
    for now in [1_000, 1_500, 9_000] {
        keyspace.set_now(now);
        assert_eq!(
            (handed(&mut keyspace, "a"), handed(&mut keyspace, "b"), keyspace.zcard(KEY)),
            (vec![], vec![], Ok(1))
        );
    }
    let again = order("a", id, 1, Action::Again { resent: false });
    assert_eq!(keyspace.count_again(&origin("a"), &again, false, KEY), Verdict::Done);
    assert_eq!(keyspace.zcard(KEY), Ok(0));
}

#[test]
fn who_claims_it_before_it_is_due_parks_it_until_then() {
    for raised in [1, 3] {
        let (mut keyspace, id) = kept(500);
        keyspace.set_now(1_300);
        for _ in 1..raised {
            // A claimer that died before it looked.
            assert!(keyspace.xclaim("s", "g", "c", &Claim::default(), &[id]).is_ok());
        }
        assert_eq!(claimed(&mut keyspace, id, raised), Some(Parked::Early));
        keyspace.set_now(1_499);
        assert_eq!(handed(&mut keyspace, "c"), []);
        keyspace.set_now(1_500);
        assert_eq!((handed(&mut keyspace, "c"), keyspace.zcard(KEY)), (vec![raised], Ok(0)));
    }
}

#[test]
fn who_claims_it_after_it_was_due_has_it() {
    let (mut keyspace, id) = kept(500);
    keyspace.set_now(1_500);
    assert!(matches!(claimed(&mut keyspace, id, 1), Some(Parked::Due(495..=505))));
    assert_eq!(keyspace.zcard(KEY), Ok(0));
}

#[test]
fn a_stop_parks_what_was_kept() {
    // Also when the first sending of it was lost on the way there.
    for resent in [false, true] {
        let (mut keyspace, id) = kept(500);
        let park = order("a", id, 1, Action::Park { delay: Duration::from_millis(400), resent });
        assert_eq!(keyspace.park(&origin("a"), &[&park], KEY), [Verdict::Done]);
        // One that was sent before and comes late must not take it from the timers.
        let keep = order("a", id, 1, Action::Keep(Duration::from_millis(500)));
        assert_eq!(keyspace.keep(&origin("a"), &[&keep], KEY), [Verdict::Done]);
        keyspace.set_now(1_400);
        assert_eq!(handed(&mut keyspace, "b"), [1]);
    }
}

#[test]
fn nothing_is_noted_for_who_does_not_hold_it() {
    let (mut keyspace, id) = kept(500);
    assert_eq!(keyspace.zrem(KEY, &delayed::parked(id, "g", 1)), Ok(true));
    let keep = |owner, count| order(owner, id, count, Action::Keep(Duration::from_secs(1)));
    for (owner, count) in [("b", 1), ("a", 2)] {
        assert_eq!(keyspace.keep(&origin(owner), &[&keep(owner, count)], KEY), [Verdict::Taken]);
    }
    assert!(keyspace.xack("s", "g", &[id]).is_ok());
    assert_eq!(keyspace.keep(&origin("a"), &[&keep("a", 1)], KEY), [Verdict::Gone]);
    assert_eq!(keyspace.zcard(KEY), Ok(0));
}

#[test]
fn what_is_left_of_a_kept_entry_goes_when_it_was_due() {
    for acked in [true, false] {
        let (mut keyspace, id) = kept(500);
        if acked {
            assert!(keyspace.xack("s", "g", &[id]).is_ok());
        } else {
            assert!(keyspace.xclaim("s", "g", "foreign", &Claim::default(), &[id]).is_ok());
        }
        for (now, left) in [(1_499, 1), (1_500, 0)] {
            keyspace.set_now(now);
            assert_eq!((handed(&mut keyspace, "b"), keyspace.zcard(KEY)), (vec![], Ok(left)));
        }
    }
}

#[test]
fn strange_members_before_zero_are_put_aside() {
    let (mut keyspace, _) = kept(500);
    assert_eq!(keyspace.zadd(KEY, -7.0, b"text"), Ok(true));
    let handed = keyspace.due(&origin("a"), KEY, ALL).unwrap_or_default();
    assert_eq!((handed.strange, keyspace.zscore(KEY, b"text")), (1, Ok(Some(f64::INFINITY))));
}
