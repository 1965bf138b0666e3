//! Lanes that take, finish, keep and put back: each entry once, each key in its order and in one hand.

use super::*;
use proptest::prelude::*;

#[test]
fn a_partition_is_in_one_lane_at_a_time() {
    let mut lanes = Lanes::default();
    lanes.push(3, false, "a1");
    lanes.push(3, false, "a2");
    lanes.push(4, false, "b1");
    assert_eq!(lanes.take(), Some((3, "a1")));
    assert_eq!(lanes.take(), Some((4, "b1")));
    assert_eq!(lanes.take(), None);
    lanes.finish(4);
    assert_eq!(lanes.take(), None);
    lanes.finish(3);
    assert_eq!(lanes.take(), Some((3, "a2")));
    assert!(lanes.is_empty());
}

#[test]
fn keyless_and_keyed_take_turns() {
    let mut lanes = Lanes::default();
    for item in 0..3 {
        lanes.push(item, false, "keyed");
        lanes.push(KEYLESS, false, "keyless");
    }
    let order: Vec<_> = std::iter::from_fn(|| lanes.take()).map(|(_, item)| item).collect();
    assert_eq!(order, ["keyed", "keyless", "keyed", "keyless", "keyed", "keyless"]);
}

#[test]
fn clearing_leaves_the_running_partition_usable() {
    let mut lanes = Lanes::default();
    lanes.push(1, false, 1);
    lanes.push(1, false, 2);
    lanes.push(2, false, 3);
    assert_eq!(lanes.take(), Some((1, 1)));
    assert_eq!(lanes.clear(), vec![2, 3]);
    lanes.push(1, false, 4);
    assert_eq!(lanes.take(), None);
    lanes.finish(1);
    assert_eq!(lanes.take(), Some((1, 4)));
    lanes.push(2, false, 5);
    assert_eq!(lanes.take(), Some((2, 5)));
}

#[test]
fn a_crowd_that_comes_again_does_not_stand_before_what_is_fresh() {
    let mut lanes = Lanes::default();
    for number in 0..100 {
        lanes.push(KEYLESS, true, "again");
        lanes.push(number, true, "again");
    }
    lanes.push(KEYLESS, false, "fresh");
    lanes.push(500, false, "fresh");
    let order: Vec<_> = std::iter::from_fn(|| lanes.take()).map(|(_, item)| item).collect();
    assert!(order.iter().rposition(|item| *item == "fresh").is_some_and(|last| last < 4), "{order:?}");
    assert_eq!(order.len(), 202);
}

#[test]
fn many_are_taken_partition_by_partition_and_in_order() {
    let mut lanes = Lanes::default();
    for number in 0..4 {
        lanes.push(1, number == 1, (1, number));
        lanes.push(2, false, (2, number));
    }
    lanes.push(KEYLESS, false, (0, 0));
    let take = |lanes: &mut Lanes<_>, most| {
        let (mut items, mut partitions) = (Vec::new(), Vec::new());
        let ready = lanes.ready_up_to(most);
        lanes.take_many(most, &mut items, &mut partitions);
        assert_eq!(items.len(), ready);
        (items, partitions)
    };
    let (first, held) = take(&mut lanes, 3);
    assert_eq!((&first[..], &held[..]), (&[(1, 0), (1, 1), (1, 2)][..], &[1][..]));
    let (second, others) = take(&mut lanes, 100);
    assert_eq!(second, [(0, 0), (2, 0), (2, 1), (2, 2), (2, 3)], "the first partition is in other hands");
    assert_eq!((others, lanes.len()), (vec![2], 1));
    lanes.push(2, false, (2, 4));
    assert_eq!(take(&mut lanes, 100), (vec![], vec![]));
    lanes.finish(1);
    lanes.finish(2);
    assert_eq!(take(&mut lanes, 100), (vec![(1, 3), (2, 4)], vec![1, 2]));
    assert!(lanes.is_empty() && !lanes.has_ready());
}

#[test]
fn order_within_a_key_is_kept_across_the_two() {
    let mut lanes = Lanes::default();
    for (again, item) in [(true, 1), (false, 2), (true, 3)] {
        lanes.push(7, again, item);
    }
    for item in 1..=3 {
        assert_eq!(lanes.take(), Some((7, item)));
        assert_eq!(lanes.take(), None);
        lanes.finish(7);
    }
}

#[test]
fn a_kept_partition_runs_nothing_until_its_head_is_back() {
    let head = EntryId::new(1, 0);
    for ended_first in [true, false] {
        let mut lanes = Lanes::default();
        for item in 1..=2 {
            lanes.push(7, false, item);
        }
        lanes.push(8, false, 9);
        assert_eq!(lanes.take(), Some((7, 1)));
        lanes.keep(7, head);
        if ended_first {
            lanes.finish(7);
        }
        assert_eq!(lanes.take(), Some((8, 9)), "others go on");
        lanes.push(7, false, 3);
        assert_eq!((lanes.take(), lanes.len()), (None, 2));
        assert_eq!((lanes.kept_for(head), lanes.kept_for(EntryId::new(2, 0))), (Some(7), None));
        lanes.put_back(7, 1);
        if !ended_first {
            assert_eq!(lanes.take(), None, "its handler still runs");
            lanes.finish(7);
        }
        for item in 1..=3 {
            assert_eq!((lanes.take(), lanes.take()), (Some((7, item)), None));
            lanes.finish(7);
        }
        lanes.push(7, false, 4);
        assert_eq!(lanes.take(), Some((7, 4)));
    }
}

#[test]
fn a_head_that_does_not_come_back_gives_way() {
    let mut lanes = Lanes::default();
    for (partition, item) in [(7, 1), (7, 2), (8, 3), (8, 4)] {
        lanes.push(partition, false, item);
    }
    for partition in [7, 8] {
        assert!(lanes.take().is_some());
        lanes.keep(partition, EntryId::ZERO);
    }
    lanes.finish(7);
    lanes.let_go();
    assert_eq!((lanes.take(), lanes.take()), (Some((7, 2)), None));
    lanes.finish(8);
    assert_eq!(lanes.take(), Some((8, 4)));
}

proptest! {
    /// Whatever the order of arrivals, takes and ends: every item comes out once, each key in its order,
    /// and no key is in two hands.
    #[test]
    fn every_item_once_and_in_order(steps in prop::collection::vec((0u8..3, 0u16..5), 1..400)) {
        let mut lanes = Lanes::default();
        let mut held: Vec<u16> = Vec::new();
        let mut next = [0u32; 5];
        let mut seen = [0u32; 5];
        let mut pushed = 0;
        let mut taken = 0;
        let mut check = |lanes: &mut Lanes<u32>, held: &mut Vec<u16>| -> Option<()> {
            let (partition, item) = lanes.take()?;
            if partition != KEYLESS {
                assert!(!held.contains(&partition));
                assert_eq!(item, seen[usize::from(partition)]);
                seen[usize::from(partition)] += 1;
                held.push(partition);
            }
            taken += 1;
            Some(())
        };
        for (step, partition) in steps {
            match step {
                0 if partition == 4 => { lanes.push(KEYLESS, false, 0); pushed += 1; }
                0 => { lanes.push(partition, false, next[usize::from(partition)]); next[usize::from(partition)] += 1; pushed += 1; }
                1 => { check(&mut lanes, &mut held); }
                _ => if let Some(partition) = held.pop() { lanes.finish(partition); }
            }
        }
        loop {
            while check(&mut lanes, &mut held).is_some() {}
            let Some(partition) = held.pop() else { break };
            lanes.finish(partition);
        }
        prop_assert_eq!(taken, pushed);
        prop_assert!(lanes.is_empty());
    }
}
