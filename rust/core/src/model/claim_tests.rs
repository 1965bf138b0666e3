use super::*;
use crate::model::argument::{AddId, Position};
use crate::model::read::GroupRead;

const fn id(ms: u64) -> EntryId {
    EntryId::new(ms, 0)
}

/// Entries 1 to `count`, pending under `a` since 1,000; it is 2,000 now.
fn pending(count: u64) -> Keyspace {
    let mut keyspace = Keyspace::default();
    keyspace.set_now(1_000);
    assert!(keyspace.xgroup_create("s", "g", Position::End, true, None).is_ok());
    for ms in 1..=count {
        assert!(keyspace.xadd("s", AddId::Exact(id(ms)), &[("f", "v")], None).is_ok());
    }
    assert!(keyspace.xreadgroup(&GroupRead::new("s", "g", "a")).is_ok_and(|read| read.is_some()));
    keyspace.set_now(2_000);
    keyspace
}

fn claim(keyspace: &mut Keyspace, claim: Claim, ids: &[u64]) -> Vec<u64> {
    let ids: Vec<_> = ids.iter().map(|ms| id(*ms)).collect();
    let claimed = keyspace.xclaim("s", "g", "b", &claim, &ids).unwrap_or_default();
    claimed.iter().map(|body| body.id().ms).collect()
}

/// Owner, delivery time and count of a pending entry.
fn nack(keyspace: &Keyspace, ms: u64) -> Option<(String, u64, i64)> {
    let (_, group) = keyspace.group("s", "g").ok().flatten()?;
    group.get(id(ms)).map(|nack| (group.owner(nack).to_owned(), nack.delivered(), nack.count))
}

#[test]
fn a_claim_takes_over_what_is_old_enough() {
    let mut keyspace = pending(2);
    assert_eq!(claim(&mut keyspace, Claim { min_idle: 1_001, ..Claim::default() }, &[1, 2]), [0u64; 0]);
    assert_eq!(claim(&mut keyspace, Claim { min_idle: 1_000, ..Claim::default() }, &[2, 9]), [2]);
    assert_eq!(nack(&keyspace, 2), Some(("b".into(), 2_000, 2)));
    assert_eq!(nack(&keyspace, 1), Some(("a".into(), 1_000, 1)));
}

#[test]
fn a_claim_sets_time_and_count_as_told() {
    let mut keyspace = pending(1);
    for (delivered, count, just_id, time, counted) in [
        (Delivered::Now, None, true, 2_000, 1),
        (Delivered::Ago(300), None, false, 1_700, 2),
        (Delivered::Ago(-5), Some(9), false, 2_000, 9),
        (Delivered::Ago(9_999), Some(-1), true, 2_000, 9),
        (Delivered::At(0), Some(0), true, 0, 0),
        (Delivered::At(-7), None, true, 2_000, 0),
        (Delivered::At(9_999), Some(i64::MAX), false, 2_000, i64::MAX),
        (Delivered::At(1_234), None, false, 1_234, i64::MAX),
    ] {
        let options = Claim { delivered, count, just_id, ..Claim::default() };
        assert_eq!(claim(&mut keyspace, options, &[1]), [1]);
        assert_eq!(nack(&keyspace, 1), Some(("b".into(), time, counted)), "{options:?}");
    }
}

#[test]
fn only_force_claims_what_is_not_pending() {
    let mut keyspace = pending(1);
    assert_eq!(keyspace.xack("s", "g", &[id(1)]), Ok(1));
    assert_eq!(claim(&mut keyspace, Claim::default(), &[1]), [0u64; 0]);
    let force = Claim { force: true, min_idle: 500, ..Claim::default() };
    assert_eq!(claim(&mut keyspace, force, &[1, 7]), [1]);
    assert_eq!((nack(&keyspace, 1), nack(&keyspace, 7)), (Some(("b".into(), 2_000, 2)), None));
}

#[test]
fn a_claim_clears_what_has_no_body() {
    let mut keyspace = pending(1);
    assert_eq!(keyspace.xdel("s", &[id(1)]), Ok(1));
    assert_eq!(claim(&mut keyspace, Claim { min_idle: 9_999, ..Claim::default() }, &[1]), [0u64; 0]);
    assert_eq!(nack(&keyspace, 1), None);
    let missing = keyspace.xclaim("s", "x", "b", &Claim::default(), &[]);
    assert_eq!(missing, Err(refusal::no_group("s", "x")));
}

#[test]
fn an_autoclaim_goes_on_where_it_stopped_and_names_what_has_no_body() {
    let mut keyspace = pending(5);
    assert_eq!(keyspace.xdel("s", &[id(2)]), Ok(1));
    let mut step = |start, count| {
        let step = keyspace.xautoclaim("s", "g", "b", 1_000, id(start), count, false).ok()?;
        let ids = |ids: Vec<EntryId>| ids.iter().map(|id| id.ms).collect::<Vec<_>>();
        Some((step.cursor.ms, ids(step.bodies.iter().map(|body| body.id()).collect()), ids(step.deleted)))
    };
    assert_eq!(step(0, 2), Some((3, vec![1], vec![2])));
    assert_eq!(step(3, 2), Some((5, vec![3, 4], vec![])));
    assert_eq!(step(5, 9), Some((0, vec![5], vec![])));
    assert_eq!(step(0, 9), Some((0, vec![], vec![])));
    assert_eq!(nack(&keyspace, 5), Some(("b".into(), 2_000, 2)));
    assert_eq!(nack(&keyspace, 2), None);
    assert!(keyspace.xautoclaim("s", "g", "b", 0, EntryId::ZERO, 0, false).is_err());
}

#[test]
fn an_autoclaim_looks_at_ten_for_each_it_may_take() {
    let mut keyspace = pending(25);
    let young = Claim { just_id: true, ..Claim::default() };
    assert_eq!(claim(&mut keyspace, young, &(1..=20).collect::<Vec<_>>()).len(), 20);
    let step = keyspace.xautoclaim("s", "g", "c", 500, EntryId::ZERO, 2, true);
    assert_eq!(step.map(|step| (step.cursor, step.bodies.len())), Ok((id(21), 0)));
}
