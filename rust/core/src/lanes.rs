//! Which delivery a free lane takes next: one queue per partition, one for entries without a key.
//!
//! A partition is in one lane's hands at a time, so its entries run one after another; any free lane takes the
//! next ready partition, so a slow key holds up nothing but itself.

use std::collections::VecDeque;

use crate::partition::PARTITIONS;

/// The partition of an entry without a key, see `entry::KEYLESS`.
use crate::entry::KEYLESS;

/// Queued work of one subscription.
#[derive(Debug)]
pub struct Lanes<T> {
    keyless: VecDeque<T>,
    partitions: Vec<VecDeque<T>>,
    taken: Vec<bool>,
    ready: VecDeque<u16>,
    keyless_turn: bool,
    queued: usize,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self {
            keyless: VecDeque::new(),
            partitions: (0..PARTITIONS).map(|_| VecDeque::new()).collect(),
            taken: vec![false; usize::from(PARTITIONS)],
            ready: VecDeque::new(),
            keyless_turn: false,
            queued: 0,
        }
    }
}

impl<T> Lanes<T> {
    /// Queue an item behind the others of its partition.
    #[inline]
    pub fn push(&mut self, partition: u16, item: T) {
        self.queued += 1;
        let Some(queue) = self.partitions.get_mut(usize::from(partition)) else {
            self.keyless.push_back(item);
            return;
        };
        queue.push_back(item);
        let taken = &mut self.taken[usize::from(partition)];
        if !*taken {
            *taken = true;
            self.ready.push_back(partition);
        }
    }

    /// Take the next item that may run, and its partition into this lane's hands. Partitions and keyless entries
    /// take turns, so that neither waits for the other to run dry.
    #[inline]
    pub fn take(&mut self) -> Option<(u16, T)> {
        if self.keyless_turn || self.ready.is_empty() {
            self.keyless_turn = false;
            if let Some(item) = self.keyless.pop_front() {
                self.queued -= 1;
                return Some((KEYLESS, item));
            }
        } else {
            self.keyless_turn = true;
        }
        let partition = self.ready.pop_front()?;
        let item = self.partitions[usize::from(partition)].pop_front()?;
        self.queued -= 1;
        Some((partition, item))
    }

    /// The item taken from `partition` has ended: the next of that partition may be taken.
    #[inline]
    pub fn finish(&mut self, partition: u16) {
        let Some(queue) = self.partitions.get(usize::from(partition)) else {
            return;
        };
        if queue.is_empty() {
            self.taken[usize::from(partition)] = false;
        } else {
            self.ready.push_back(partition);
        }
    }

    /// Whether `take` would return something.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.keyless.is_empty()
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
        let mut all: Vec<T> = self.keyless.drain(..).collect();
        for partition in std::mem::take(&mut self.ready) {
            self.taken[usize::from(partition)] = false;
        }
        for queue in &mut self.partitions {
            all.extend(queue.drain(..));
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
        lanes.push(3, "a1");
        lanes.push(3, "a2");
        lanes.push(4, "b1");
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
            lanes.push(item, "keyed");
            lanes.push(KEYLESS, "keyless");
        }
        let order: Vec<_> = std::iter::from_fn(|| lanes.take()).map(|(_, item)| item).collect();
        assert_eq!(order, ["keyed", "keyless", "keyed", "keyless", "keyed", "keyless"]);
    }

    #[test]
    fn clearing_leaves_the_running_partition_usable() {
        let mut lanes = Lanes::default();
        lanes.push(1, 1);
        lanes.push(1, 2);
        lanes.push(2, 3);
        assert_eq!(lanes.take(), Some((1, 1)));
        assert_eq!(lanes.clear(), vec![2, 3]);
        lanes.push(1, 4);
        assert_eq!(lanes.take(), None);
        lanes.finish(1);
        assert_eq!(lanes.take(), Some((1, 4)));
        lanes.push(2, 5);
        assert_eq!(lanes.take(), Some((2, 5)));
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
                    0 if partition == 4 => { lanes.push(KEYLESS, 0); pushed += 1; }
                    0 => { lanes.push(partition, next[usize::from(partition)]); next[usize::from(partition)] += 1; pushed += 1; }
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
