//! A consumer group: where it stands, what is pending, and whose it is.

use std::collections::{BTreeMap, BTreeSet};

use super::argument::Range;
use crate::entry::EntryId;

/// The place of a pending entry among its group's by age. What was handed back comes first, in the order it was; then
/// what was delivered longest ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Age {
    owned: bool,
    delivered: u64,
    number: u64,
}

/// A pending entry. Its count is what the server's is: signed, and at its maximum for one that failed for good.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nack {
    age: Age,
    /// Its consumer; none: it was handed back.
    pub(super) owner: Option<usize>,
    /// Deliveries.
    pub(super) count: i64,
}

impl Nack {
    /// When it was delivered last; zero once it was handed back.
    pub(super) fn delivered(&self) -> u64 {
        self.age.delivered
    }

    /// Count a delivery.
    pub(super) fn counted(&mut self) {
        self.count = self.count.saturating_add(1);
    }
}

/// A member of a group.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) name: String,
    /// How many pending entries are its own.
    pub(super) pending: usize,
    /// When it last asked for something.
    pub(super) seen: u64,
    /// When it last got something.
    pub(super) active: Option<u64>,
}

/// A consumer group.
#[derive(Debug)]
pub(super) struct Group {
    /// The id last delivered.
    pub(super) last: EntryId,
    /// How many entries were added up to there, where that is known.
    pub(super) read: Option<u64>,
    pending: BTreeMap<EntryId, Nack>,
    by_age: BTreeMap<Age, EntryId>,
    /// By number; a number is not used again.
    consumers: Vec<Option<Consumer>>,
    numbers: BTreeMap<String, usize>,
    /// Numbers for `Age`.
    moves: u64,
    /// Idle times that somebody asked for, in milliseconds: what may be taken over is due after them.
    asked_for: BTreeSet<u64>,
}

impl Group {
    pub(super) fn new(last: EntryId, read: Option<u64>) -> Self {
        Self {
            last,
            read,
            pending: BTreeMap::new(),
            by_age: BTreeMap::new(),
            consumers: Vec::new(),
            numbers: BTreeMap::new(),
            moves: 0,
            asked_for: BTreeSet::new(),
        }
    }

    /// A consumer's number.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }

    /// Create a consumer. None: it was there.
    pub(super) fn create(&mut self, name: &str, now: u64) -> Option<usize> {
        if self.numbers.contains_key(name) {
            return None;
        }
        let number = self.consumers.len();
        self.consumers.push(Some(Consumer { name: name.to_owned(), pending: 0, seen: now, active: None }));
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// The number of a consumer that asks for something now; it is created where it is not there.
    pub(super) fn seen(&mut self, name: &str, now: u64) -> usize {
        let number = self.find(name).or_else(|| self.create(name, now)).unwrap_or_default();
        if let Some(consumer) = self.consumer_mut(number) {
            consumer.seen = now;
        }
        number
    }

    /// A consumer got something.
    pub(super) fn active(&mut self, number: usize, now: u64) {
        if let Some(consumer) = self.consumer_mut(number) {
            consumer.active = Some(now);
        }
    }

    pub(super) fn consumer(&self, number: usize) -> Option<&Consumer> {
        self.consumers.get(number)?.as_ref()
    }

    fn consumer_mut(&mut self, number: usize) -> Option<&mut Consumer> {
        self.consumers.get_mut(number)?.as_mut()
    }

    /// All consumers, by name.
    pub(super) fn consumers(&self) -> impl ExactSizeIterator<Item = Option<&Consumer>> {
        self.numbers.values().map(|number| self.consumer(*number))
    }

    /// Delete a consumer and what is pending under its name. Returns how much that was.
    pub(super) fn delete(&mut self, name: &str) -> usize {
        let Some(number) = self.numbers.remove(name) else {
            return 0;
        };
        let own: Vec<_> = self.owned(number, Range::ALL).map(|(id, _)| id).collect();
        for id in &own {
            self.remove(*id);
        }
        self.consumers[number] = None;
        own.len()
    }

    /// The name of a pending entry's owner; empty where it has none.
    pub(super) fn owner(&self, nack: &Nack) -> &str {
        nack.owner.and_then(|number| self.consumer(number)).map_or("", |consumer| consumer.name.as_str())
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&Nack> {
        self.pending.get(&id)
    }

    /// How many entries are pending.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// How many of them were handed back.
    pub(super) fn handed_back(&self) -> usize {
        self.by_age.keys().take_while(|age| !age.owned).count()
    }

    /// Pending entries by id.
    pub(super) fn range(&self, range: Range) -> impl DoubleEndedIterator<Item = (EntryId, &Nack)> {
        let range = if range.is_empty() { Range::one(EntryId::ZERO) } else { range };
        self.pending.range(range.start..=range.end).map(|(id, nack)| (*id, nack))
    }

    /// One consumer's pending entries by id.
    pub(super) fn owned(&self, number: usize, range: Range) -> impl DoubleEndedIterator<Item = (EntryId, &Nack)> {
        self.range(range).filter(move |(_, nack)| nack.owner == Some(number))
    }

    /// Pending entries and when they were delivered, the oldest first.
    pub(super) fn by_age(&self) -> impl Iterator<Item = (EntryId, u64)> {
        self.by_age.iter().map(|(age, id)| (*id, age.delivered))
    }

    /// Somebody takes over what was idle for so long.
    pub(super) fn takes_over(&mut self, min_idle: u64) {
        self.asked_for.insert(min_idle);
    }

    /// When a pending entry gets as old as somebody asked for, after `now`.
    pub(super) fn next_ripe(&self, now: u64, is_parked: impl Fn(EntryId) -> bool) -> Option<u64> {
        let ripe = |min_idle: &u64| {
            let young = Age { owned: true, delivered: now.saturating_sub(*min_idle), number: u64::MAX };
            let ripens = |age: &Age| age.delivered.saturating_add(*min_idle) > now;
            let (age, _) = self.by_age.range(young..).find(|(age, id)| ripens(age) && !is_parked(**id))?;
            Some(age.delivered.saturating_add(*min_idle))
        };
        self.asked_for.iter().filter_map(ripe).min()
    }

    fn age(&mut self, owned: bool, delivered: u64) -> Age {
        self.moves += 1;
        Age { owned, delivered, number: self.moves }
    }

    fn count_owner(&mut self, owner: Option<usize>, add: bool) {
        if let Some(consumer) = owner.and_then(|number| self.consumer_mut(number)) {
            consumer.pending = if add { consumer.pending + 1 } else { consumer.pending.saturating_sub(1) };
        }
    }

    /// Note that an entry was delivered at this time, to this consumer; none, at time zero: hand it back. A new one has
    /// no count yet.
    pub(super) fn put(&mut self, id: EntryId, owner: Option<usize>, delivered: u64) -> Option<&mut Nack> {
        let age = self.age(owner.is_some(), delivered);
        let before = self.pending.insert(id, Nack { age, owner, count: 0 });
        self.by_age.insert(age, id);
        if before.is_none_or(|before| before.owner != owner) {
            self.count_owner(owner, true);
            self.count_owner(before.and_then(|before| before.owner), false);
        }
        if let Some(before) = before {
            self.by_age.remove(&before.age);
        }
        let nack = self.pending.get_mut(&id)?;
        nack.count = before.map_or(0, |before| before.count);
        Some(nack)
    }

    /// Take an entry off the list. False: it was not there.
    pub(super) fn remove(&mut self, id: EntryId) -> bool {
        let Some(nack) = self.pending.remove(&id) else {
            return false;
        };
        self.by_age.remove(&nack.age);
        self.count_owner(nack.owner, false);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> EntryId {
        EntryId::new(ms, 0)
    }

    fn ages(group: &Group) -> Vec<(u64, u64)> {
        group.by_age().map(|(id, delivered)| (id.ms, delivered)).collect()
    }

    #[test]
    fn what_was_handed_back_comes_first_and_the_oldest_next() {
        let mut group = Group::new(EntryId::ZERO, None);
        let number = group.seen("c", 5);
        for (entry, delivered) in [(1, 50), (2, 40), (3, 50), (4, 60)] {
            group.put(id(entry), Some(number), delivered);
        }
        assert_eq!(ages(&group), [(2, 40), (1, 50), (3, 50), (4, 60)]);
        group.put(id(4), None, 0);
        group.put(id(1), None, 0);
        group.put(id(2), Some(number), 0);
        assert_eq!(ages(&group), [(4, 0), (1, 0), (2, 0), (3, 50)]);
        assert_eq!((group.handed_back(), group.consumer(number).map(|consumer| consumer.pending)), (2, Some(2)));
    }

    #[test]
    fn owners_are_counted_through_every_change() {
        let mut group = Group::new(EntryId::ZERO, None);
        let (first, second) = (group.seen("a", 1), group.seen("b", 2));
        group.put(id(1), Some(first), 1);
        group.put(id(2), Some(first), 1);
        group.put(id(2), Some(first), 2);
        group.put(id(1), Some(second), 3);
        let pending = |group: &Group| -> Vec<_> { group.consumers().flatten().map(|one| one.pending).collect() };
        assert_eq!(pending(&group), [1, 1]);
        assert!(group.remove(id(1)) && !group.remove(id(1)));
        assert_eq!((pending(&group), group.delete("a"), group.len(), group.delete("a")), (vec![1, 0], 1, 0, 0));
        assert_eq!(group.create("b", 9), None);
        assert_ne!(group.create("a", 9), Some(first));
    }

    #[test]
    fn the_next_to_get_old_enough_is_known_for_each_age_that_was_asked_for() {
        let mut group = Group::new(EntryId::ZERO, None);
        let number = group.seen("c", 5);
        for (entry, delivered) in [(1, 50), (2, 40), (3, 70)] {
            group.put(id(entry), Some(number), delivered);
        }
        group.put(id(4), None, 0);
        assert_eq!(group.next_ripe(70, |_| false), None);
        group.takes_over(100);
        assert_eq!(
            [70, 139, 140, 150, 169, 170].map(|now| group.next_ripe(now, |_| false)),
            [Some(140), Some(140), Some(150), Some(170), Some(170), None]
        );
        group.takes_over(25);
        assert_eq!(
            [70, 75, 94, 95].map(|now| group.next_ripe(now, |_| false)),
            [Some(75), Some(95), Some(95), Some(140)]
        );
    }

    #[test]
    fn a_count_stops_at_its_maximum() {
        let mut group = Group::new(EntryId::ZERO, None);
        let number = group.seen("c", 5);
        if let Some(nack) = group.put(id(1), Some(number), 1) {
            nack.count = i64::MAX;
            nack.counted();
        }
        assert_eq!(group.get(id(1)).map(|nack| nack.count), Some(i64::MAX));
    }
}
