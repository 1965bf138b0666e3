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
#[path = "lanes_tests.rs"]
mod tests;
