use super::*;

const fn at(ms: u64, seq: u64) -> EntryId {
    EntryId::new(ms, seq)
}

fn filled(count: u64) -> Entries {
    let mut entries = Entries::default();
    for seq in 1..=count {
        assert_eq!(entries.append(0, AddId::Exact(at(1, seq)), &[("f", "1")]), Ok(at(1, seq)));
    }
    entries
}

const fn exactly(keep: Keep) -> TrimTo {
    TrimTo { keep, approximate: false }
}

#[test]
fn ids_follow_the_clock_and_never_go_back() {
    let mut entries = Entries::default();
    let mut add = |now, id| entries.append(now, id, &[("f", "v")]);
    assert_eq!(add(5, AddId::Auto), Ok(at(5, 0)));
    assert_eq!(add(5, AddId::Auto), Ok(at(5, 1)));
    assert_eq!(add(3, AddId::Auto), Ok(at(5, 2)));
    assert_eq!(add(9, AddId::Ms(5)), Ok(at(5, 3)));
    assert_eq!(add(9, AddId::Ms(7)), Ok(at(7, 0)));
    assert!(add(9, AddId::Ms(5)).is_err_and(|error| error.to_string().contains("equal or smaller")));
    assert!(add(9, AddId::Exact(at(7, 0))).is_err());
    assert_eq!(add(9, AddId::Exact(at(u64::MAX, u64::MAX))), Ok(at(u64::MAX, u64::MAX)));
    assert!(add(9, AddId::Auto).is_err_and(|error| error.to_string().contains("exhausted")));
    assert_eq!(entries.added, 6);
}

#[test]
fn trims_to_a_length_and_to_an_id() {
    let mut entries = filled(250);
    assert_eq!(entries.trim(exactly(Keep::Newest(250))), 0);
    assert_eq!(entries.trim(exactly(Keep::Newest(120))), 130);
    assert_eq!((entries.len(), entries.first()), (120, at(1, 131)));
    assert_eq!(entries.trim(exactly(Keep::From(at(1, 150)))), 19);
    assert_eq!(entries.trim(exactly(Keep::From(at(2, 0)))), 101);
    assert_eq!((entries.len(), entries.first(), entries.last, entries.added), (0, EntryId::ZERO, at(1, 250), 250));
    assert_eq!(entries.max_deleted, EntryId::ZERO);
}

#[test]
fn an_approximate_trim_takes_whole_nodes_only() {
    let mut entries = filled(250);
    let mut trim = |keep| entries.trim(TrimTo { keep, approximate: true });
    assert_eq!(trim(Keep::Newest(151)), 0);
    assert_eq!(trim(Keep::Newest(150)), 100);
    assert_eq!(trim(Keep::From(at(1, 200))), 0);
    assert_eq!(trim(Keep::From(at(1, 201))), 100);
    assert_eq!(entries.len(), 50);
}

#[test]
fn a_hole_makes_the_lag_unknown() {
    let mut entries = filled(5);
    assert_eq!(entries.lag(EntryId::ZERO, Some(0)), Some(5));
    assert_eq!(entries.lag(at(1, 2), Some(2)), Some(3));
    assert!(entries.delete(at(1, 3)) && !entries.delete(at(1, 3)));
    assert_eq!(entries.lag(at(1, 2), Some(2)), None);
    assert_eq!(entries.lag(at(1, 4), Some(4)), Some(1));
    assert_eq!(entries.lag(at(1, 5), None), Some(0));
    assert!(entries.delete(at(1, 1)) && entries.delete(at(1, 2)));
    assert_eq!((entries.first(), entries.lag(EntryId::ZERO, None)), (at(1, 4), Some(2)));
}

#[test]
fn a_range_turned_round_is_empty() {
    let entries = filled(3);
    assert_eq!(entries.range(Range { start: at(2, 0), end: at(1, 0) }).count(), 0);
    let ids: Vec<_> = entries.range(Range::from(at(1, 2))).map(|body| body.id()).collect();
    assert_eq!(ids, [at(1, 2), at(1, 3)]);
}
