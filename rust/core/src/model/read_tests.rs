use super::*;
use crate::error::Error;
use crate::model::argument::{AddId, Position};

const fn id(ms: u64) -> EntryId {
    EntryId::new(ms, 0)
}

/// Entries 1 to `count`, and a group at the beginning.
fn filled(count: u64) -> Keyspace {
    let mut keyspace = Keyspace::default();
    keyspace.set_now(1_000);
    for ms in 1..=count {
        assert_eq!(keyspace.xadd("s", AddId::Exact(id(ms)), &[("n", ms.to_string())], None), Ok(id(ms)));
    }
    let start = Position::After(EntryId::ZERO);
    assert_eq!(keyspace.xgroup_create("s", "g", start, true, None), Ok(()));
    keyspace
}

fn read(keyspace: &mut Keyspace, consumer: &str, change: impl FnOnce(&mut GroupRead)) -> Vec<(u64, u64, i64)> {
    let mut read = GroupRead::new("s", "g", consumer);
    change(&mut read);
    let deliveries = keyspace.xreadgroup(&read).ok().flatten().unwrap_or_default();
    deliveries.iter().map(|delivery| (delivery.id.ms, delivery.idle, delivery.earlier)).collect()
}

#[test]
fn new_entries_come_once_and_in_order() {
    let mut keyspace = filled(3);
    assert_eq!(read(&mut keyspace, "a", |read| read.count = 2), [(1, 0, 0), (2, 0, 0)]);
    assert_eq!(read(&mut keyspace, "b", |_| ()), [(3, 0, 0)]);
    assert_eq!(keyspace.xreadgroup(&GroupRead::new("s", "g", "a")), Ok(None));
    let group = keyspace.group("s", "g").ok().flatten().map(|(_, group)| (group.last, group.read, group.len()));
    assert_eq!(group, Some((id(3), Some(3), 3)));
}

#[test]
fn aged_entries_come_first_the_oldest_before_the_rest_and_share_the_count() {
    let mut keyspace = filled(6);
    read(&mut keyspace, "a", |read| read.count = 2);
    keyspace.set_now(1_010);
    read(&mut keyspace, "a", |read| read.count = 1);
    keyspace.set_now(1_100);
    let claimed = read(&mut keyspace, "b", |read| (read.count, read.claim) = (4, Some(90)));
    assert_eq!(claimed, [(1, 100, 1), (2, 100, 1), (3, 90, 1), (4, 0, 0)]);
    let own = read(&mut keyspace, "b", |read| (read.claim, read.count) = (Some(0), 2));
    assert_eq!(own, [(1, 0, 2), (2, 0, 2)]);
    let young = read(&mut keyspace, "a", |read| read.claim = Some(1));
    assert_eq!(young, [(5, 0, 0), (6, 0, 0)]);
}

#[test]
fn a_body_that_is_gone_is_passed_over_by_claims_and_shown_empty_to_its_owner() {
    let mut keyspace = filled(2);
    read(&mut keyspace, "a", |_| ());
    assert_eq!(keyspace.xdel("s", &[id(1)]), Ok(1));
    keyspace.set_now(2_000);
    assert_eq!(read(&mut keyspace, "b", |read| read.claim = Some(500)), [(2, 1_000, 1)]);
    let mut own = GroupRead::new("s", "g", "a");
    own.from = From::Own(EntryId::ZERO);
    let shown = keyspace.xreadgroup(&own).ok().flatten().unwrap_or_default();
    assert_eq!(shown, [Delivery { id: id(1), body: None, idle: 0, earlier: 0 }]);
    let kept = keyspace.group("s", "g").ok().flatten().and_then(|(_, group)| group.get(id(1)).copied());
    assert_eq!(kept.map(|nack| (nack.count, nack.delivered())), Some((1, 1_000)));
    assert_eq!(keyspace.oldest_delivery("s", "g"), Some(2_000));
}

#[test]
fn reading_ones_own_counts_and_makes_young_again() {
    let mut keyspace = filled(3);
    read(&mut keyspace, "a", |_| ());
    keyspace.set_now(5_000);
    assert_eq!(read(&mut keyspace, "a", |read| read.from = From::Own(id(1))).len(), 2);
    let group = keyspace.group("s", "g").ok().flatten().map(|(_, group)| group);
    let ages: Vec<_> = group.map(|group| group.by_age().map(|(id, age)| (id.ms, age)).collect()).unwrap_or_default();
    assert_eq!(ages, [(1, 1_000), (2, 5_000), (3, 5_000)]);
    assert_eq!(read(&mut keyspace, "a", |read| read.claim = Some(0)), [(1, 4_000, 1), (2, 0, 2), (3, 0, 2)]);
}

#[test]
fn a_read_without_acks_leaves_nothing_pending() {
    let mut keyspace = filled(2);
    assert_eq!(read(&mut keyspace, "a", |read| read.no_ack = true).len(), 2);
    let pending = keyspace.group("s", "g").ok().flatten().map(|(_, group)| group.len());
    assert_eq!(pending, Some(0));
}

#[test]
fn a_size_limit_still_gives_one_entry() {
    let mut keyspace = filled(3);
    assert_eq!(read(&mut keyspace, "a", |read| read.max_size = Some(1)), [(1, 0, 0)]);
    assert_eq!(read(&mut keyspace, "a", |read| read.max_size = Some(1 << 20)).len(), 2);
}

#[test]
fn a_missing_group_and_another_type_are_refused() {
    let mut keyspace = filled(1);
    let missing = keyspace.xreadgroup(&GroupRead::new("s", "other", "a"));
    assert!(matches!(missing, Err(Error::NoGroup(text)) if text.ends_with("in XREADGROUP with GROUP option")));
    keyspace.set("s", b"");
    assert_eq!(keyspace.xreadgroup(&GroupRead::new("s", "g", "a")), Err(refusal::wrong_type()));
}
