//! Which delivery a free lane takes next: one queue per partition, one for entries without a key.
//!
//! A partition is in one lane's hands at a time, so its entries run one after another; any free lane takes the
//! next ready one, so a slow key holds up nothing but itself. Entries that come once more and fresh ones take turns,
//! so a crowd that is retried again and again does not stand before what is new.

use std::collections::{BTreeMap, VecDeque};

use crate::entry::{EntryId, KEYLESS};
use crate::partition::PARTITIONS;

/// What may run now, of fresh entries or of those that come once more.
#[derive(Debug)]
struct Ready<T> {
    keyless: VecDeque<T>,
    partitions: VecDeque<u16>,
    keyless_turn: bool,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        Self { keyless: VecDeque::new(), partitions: VecDeque::new(), keyless_turn: false }
    }
}

enum Next<T> {
    Keyless(T),
    Partition(u16),
}

impl<T> Ready<T> {
    /// Partitions and keyless entries take turns, so that neither waits for the other to run dry.
    #[inline]
    fn take(&mut self) -> Option<Next<T>> {
        if self.keyless_turn || self.partitions.is_empty() {
            self.keyless_turn = false;
            if let Some(item) = self.keyless.pop_front() {
                return Some(Next::Keyless(item));
            }
        } else {
            self.keyless_turn = true;
        }
        self.partitions.pop_front().map(Next::Partition)
    }

    fn is_empty(&self) -> bool {
        self.partitions.is_empty() && self.keyless.is_empty()
    }
}

/// A partition whose head waits to run again, and nothing of it before.
#[derive(Debug)]
struct Kept {
    head: EntryId,
    /// The handler that asked for it has ended.
    ended: bool,
    /// The head is queued again.
    back: bool,
}

/// Queued work of one subscription.
#[derive(Debug)]
pub struct Lanes<T> {
    /// Each item with whether it comes once more.
    partitions: Vec<VecDeque<(bool, T)>>,
    taken: Vec<bool>,
    fresh: Ready<T>,
    again: Ready<T>,
    again_turn: bool,
    kept: BTreeMap<u16, Kept>,
    queued: usize,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self {
            partitions: (0..PARTITIONS).map(|_| VecDeque::new()).collect(),
            taken: vec![false; usize::from(PARTITIONS)],
            fresh: Ready::default(),
            again: Ready::default(),
            again_turn: false,
            kept: BTreeMap::new(),
            queued: 0,
        }
    }
}

impl<T> Lanes<T> {
    fn ready(&mut self, again: bool) -> &mut Ready<T> {
        if again { &mut self.again } else { &mut self.fresh }
    }

    /// Queue an item behind the others of its partition. `again`: it was delivered before.
    #[inline]
    pub fn push(&mut self, partition: u16, again: bool, item: T) {
        self.queued += 1;
        let Some(queue) = self.partitions.get_mut(usize::from(partition)) else {
            self.ready(again).keyless.push_back(item);
            return;
        };
        queue.push_back((again, item));
        if !std::mem::replace(&mut self.taken[usize::from(partition)], true) {
            self.ready(again).partitions.push_back(partition);
        }
    }

    /// Take the next item that may run, and its partition into this lane's hands.
    #[inline]
    pub fn take(&mut self) -> Option<(u16, T)> {
        let first = self.again_turn;
        let (again, next) = match self.ready(first).take() {
            Some(next) => (first, next),
            None => (!first, self.ready(!first).take()?),
        };
        self.again_turn = !again;
        let taken = match next {
            Next::Keyless(item) => (KEYLESS, item),
            Next::Partition(partition) => (partition, self.partitions[usize::from(partition)].pop_front()?.1),
        };
        self.queued -= 1;
        Some(taken)
    }

    /// Take up to `most` items that may run: of each partition as many as there are, in their order. The partitions come
    /// into this lane's hands; each of them is to be finished once.
    pub fn take_many(&mut self, most: usize, items: &mut Vec<T>, partitions: &mut Vec<u16>) {
        while items.len() < most
            && let Some((partition, item)) = self.take()
        {
            items.push(item);
            let Some(queue) = self.partitions.get_mut(usize::from(partition)) else {
                continue;
            };
            partitions.push(partition);
            let more = queue.len().min(most - items.len());
            items.extend(queue.drain(..more).map(|(_, item)| item));
            self.queued -= more;
        }
    }

    /// How many items `take_many` would take, counted up to `most`.
    pub fn ready_up_to(&self, most: usize) -> usize {
        let mut ready = self.fresh.keyless.len() + self.again.keyless.len();
        for partition in self.fresh.partitions.iter().chain(&self.again.partitions) {
            if ready >= most {
                break;
            }
            ready += self.partitions[usize::from(*partition)].len();
        }
        ready.min(most)
    }

    /// The item taken from `partition` has ended: the next of that partition may be taken.
    #[inline]
    pub fn finish(&mut self, partition: u16) {
        if !self.kept.is_empty()
            && let Some(kept) = self.kept.get_mut(&partition)
        {
            kept.ended = true;
            if !kept.back {
                return;
            }
            self.kept.remove(&partition);
        }
        let Some(queue) = self.partitions.get(usize::from(partition)) else {
            return;
        };
        match queue.front().map(|(again, _)| *again) {
            None => self.taken[usize::from(partition)] = false,
            Some(again) => self.ready(again).partitions.push_back(partition),
        }
    }

    /// The item taken from `partition` will come back (`put_back`): nothing else of the partition runs before it.
    pub fn keep(&mut self, partition: u16, head: EntryId) {
        self.kept.insert(partition, Kept { head, ended: false, back: false });
    }

    /// The partition that is kept for this head.
    #[inline]
    pub fn kept_for(&self, id: EntryId) -> Option<u16> {
        let (partition, _) = self.kept.iter().find(|(_, kept)| kept.head == id && !kept.back)?;
        Some(*partition)
    }

    /// What a partition was kept for is here: it is the next of that partition.
    pub fn put_back(&mut self, partition: u16, item: T) {
        let Some(queue) = self.partitions.get_mut(usize::from(partition)) else {
            return;
        };
        queue.push_front((true, item));
        self.queued += 1;
        self.wake_kept(partition);
    }

    /// What partitions are kept for does not come back any more.
    pub fn let_go(&mut self) {
        let kept: Vec<_> = self.kept.iter().filter(|(_, kept)| !kept.back).map(|(partition, _)| *partition).collect();
        for partition in kept {
            self.wake_kept(partition);
        }
    }

    fn wake_kept(&mut self, partition: u16) {
        if let Some(kept) = self.kept.get_mut(&partition) {
            kept.back = true;
            if kept.ended {
                self.finish(partition);
            }
        }
    }

    /// Whether `take` would return something.
    pub fn has_ready(&self) -> bool {
        !self.fresh.is_empty() || !self.again.is_empty()
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.queued
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Take everything that waits, oldest of each partition first. What is in a lane's hands stays there.
    pub fn clear(&mut self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.queued);
        for ready in [&mut self.fresh, &mut self.again] {
            all.extend(ready.keyless.drain(..));
            for partition in ready.partitions.drain(..) {
                self.taken[usize::from(partition)] = false;
            }
        }
        for queue in &mut self.partitions {
            all.extend(queue.drain(..).map(|(_, item)| item));
        }
        self.queued = 0;
        all
    }
}

#[cfg(test)]
mod tests {
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
}
