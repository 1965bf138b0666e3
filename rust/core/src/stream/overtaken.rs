//! Acks that overtake a read. A read of pending entries is answered on another connection than acks are: its reply, which
//! still shows an entry, may be looked at after the entry was acknowledged, and let go of here. So what is acknowledged
//! while such a read is open is remembered until the read is taken in.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::group::Group;
use crate::entry::EntryId;

/// Reads of pending entries that are open, and what was acknowledged meanwhile. No more than is held while one lasts.
#[derive(Debug, Default)]
pub(super) struct Overtaken(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// Ids, each lot with the number of the first read that began after them.
    acked: VecDeque<(u64, Vec<EntryId>)>,
    /// The same by id, of so many lots. Filled when one is looked for: where nothing comes again it costs nothing, and a look
    /// takes in what is new (making a set for each look was a quarter of the CPU of delayed retries).
    numbers: HashMap<EntryId, u64>,
    known: usize,
}

impl Overtaken {
    fn begin(&self) -> u64 {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        number
    }

    fn end(&self, number: u64) {
        let mut state = self.0.lock();
        state.open.remove(&number);
        let first = state.open.first().copied().unwrap_or(state.next);
        while state.acked.front().is_some_and(|(after, _)| *after <= first) {
            let (after, ids) = state.acked.pop_front().unwrap_or_default();
            if state.known == 0 {
                continue;
            }
            state.known -= 1;
            for id in ids {
                // Acknowledged once more since, it is of a later lot.
                if state.numbers.get(&id) == Some(&after) {
                    state.numbers.remove(&id);
                }
            }
        }
    }

    /// These were acknowledged, and are about to be let go of.
    pub(super) fn acked(&self, ids: Vec<EntryId>) {
        let mut state = self.0.lock();
        if !state.open.is_empty() && !ids.is_empty() {
            let next = state.next;
            state.acked.push_back((next, ids));
        }
    }

    /// Whether a read is open.
    pub(super) fn is_open(&self) -> bool {
        !self.0.lock().open.is_empty()
    }

    /// Those of these entries that were acknowledged since the oldest open read began.
    pub(super) fn find(&self, ids: impl Iterator<Item = EntryId>) -> HashSet<EntryId> {
        let mut ids = ids.peekable();
        if ids.peek().is_none() {
            return HashSet::new();
        }
        let mut state = self.0.lock();
        let State { acked, numbers, known, .. } = &mut *state;
        for (after, ids) in acked.range(*known..) {
            numbers.extend(ids.iter().map(|id| (*id, *after)));
        }
        *known = acked.len();
        ids.filter(|id| numbers.contains_key(id)).collect()
    }
}

/// A read of pending entries, from before it is sent until its reply is taken in, or lost.
#[derive(Debug)]
pub(super) struct Open {
    group: Arc<Group>,
    number: u64,
}

impl Open {
    pub(super) fn new(group: &Arc<Group>) -> Self {
        Self { number: group.overtaken.begin(), group: Arc::clone(group) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.group.overtaken.end(self.number);
        self.group.taken_in.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u64]) -> Vec<EntryId> {
        numbers.iter().map(|ms| EntryId::new(*ms, 0)).collect()
    }

    fn all(group: &Group) -> Vec<EntryId> {
        let mut all: Vec<_> = group.overtaken.find(ids(&[1, 2, 3, 4]).into_iter()).into_iter().collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn what_was_acknowledged_is_remembered_while_a_read_from_before_it_is_open() {
        let group = Arc::new(Group::default());
        group.overtaken.acked(ids(&[1]));
        assert!(all(&group).is_empty(), "no read is open");
        let first = Open::new(&group);
        group.overtaken.acked(ids(&[2, 3]));
        let second = Open::new(&group);
        group.overtaken.acked(ids(&[4]));
        assert_eq!(all(&group), ids(&[2, 3, 4]));
        drop(first);
        assert_eq!(all(&group), ids(&[4]));
        let third = Open::new(&group);
        drop(second);
        assert!(all(&group).is_empty());
        drop(third);
        let state = group.overtaken.0.lock();
        assert!(state.open.is_empty() && state.acked.is_empty() && state.numbers.is_empty());
    }

    #[test]
    fn what_was_acknowledged_twice_is_remembered_for_as_long_as_the_later_one() {
        let group = Arc::new(Group::default());
        let first = Open::new(&group);
        group.overtaken.acked(ids(&[1, 2]));
        let second = Open::new(&group);
        group.overtaken.acked(ids(&[1]));
        assert_eq!(all(&group), ids(&[1, 2]));
        drop(first);
        assert_eq!(all(&group), ids(&[1]));
        drop(second);
        assert!(all(&group).is_empty() && group.overtaken.0.lock().numbers.is_empty());
    }

    #[test]
    fn reads_that_end_in_another_order_keep_what_the_oldest_needs() {
        let group = Arc::new(Group::default());
        let (first, second) = (Open::new(&group), Open::new(&group));
        group.overtaken.acked(ids(&[1]));
        drop(second);
        assert_eq!(all(&group), ids(&[1]));
        drop(first);
        assert!(all(&group).is_empty());
    }
}
