//! Entries that are run again before anything else of their key, and wait for that.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::entry::EntryId;
use crate::token::Token;

/// One that waits.
#[derive(Debug, Clone)]
pub struct Head {
    /// The delivery that asked for it.
    pub token: Token,
    /// When it asked, in milliseconds of the clock.
    pub since_ms: u64,
    /// When it is to run again.
    pub due_ms: u64,
}

/// By when they are due.
type Waiting = BTreeMap<(u64, EntryId), Head>;

/// The heads of one subscription's keys that wait.
#[derive(Debug, Default)]
pub struct Kept {
    heads: Mutex<Waiting>,
    /// Those that nobody has asked for as new ones.
    new: Mutex<Vec<(u64, EntryId)>>,
    /// Rung when one was added, or lost.
    pub(crate) changed: Notify,
}

impl Kept {
    /// Keep one.
    pub(crate) fn add(&self, head: Head) {
        let place = (head.due_ms, head.token.id());
        self.heads.lock().insert(place, head);
        self.new.lock().push(place);
        self.changed.notify_waiters();
    }

    /// Those that were added since the last time this was asked, as far as they still wait.
    pub(crate) fn take_new(&self) -> Vec<Head> {
        let new = std::mem::take(&mut *self.new.lock());
        let heads = self.heads.lock();
        new.iter().filter_map(|place| heads.get(place).cloned()).collect()
    }

    /// Those that are due, or someone else's by now.
    pub(crate) fn take_due(&self, now_ms: u64) -> Vec<Head> {
        let mut heads = self.heads.lock();
        let (due, waiting) = std::mem::take(&mut *heads)
            .into_iter()
            .partition(|(_, head)| head.due_ms <= now_ms || head.token.is_lost());
        *heads = waiting;
        BTreeMap::into_values(due).collect()
    }

    /// When the next one is due, in milliseconds of the clock.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.heads.lock().first_key_value().map(|((due_ms, _), _)| *due_ms)
    }

    /// All that wait.
    pub(crate) fn take_all(&self) -> Vec<Head> {
        std::mem::take(&mut *self.heads.lock()).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::batch::{Batch, Origin, RawBatch};
    use crate::entry::Slot;

    fn head(id: u64, due_ms: u64) -> Head {
        let [subscription, stream, group, consumer] = ["t", "s", "g", "c"].map(str::to_owned);
        let origin = Arc::new(Origin { subscription, stream, group, consumer });
        let raw = RawBatch { slots: vec![Slot::new(EntryId::new(id, 0))], ..RawBatch::default() };
        Head { token: Token::new(Batch::new(raw, origin, 0), 0), since_ms: 0, due_ms }
    }

    fn ids(heads: &[Head]) -> Vec<u64> {
        heads.iter().map(|head| head.token.id().ms).collect()
    }

    #[test]
    fn a_new_head_is_told_once_while_it_waits() {
        let kept = Kept::default();
        for (id, due_ms) in [(1, 30), (2, 10), (3, 20)] {
            kept.add(head(id, due_ms));
        }
        assert_eq!((ids(&kept.take_due(10)), kept.next_ms()), (vec![2], Some(20)));
        assert_eq!((ids(&kept.take_new()), ids(&kept.take_new())), (vec![1, 3], vec![]));
        kept.add(head(4, 40));
        assert_eq!((ids(&kept.take_all()), ids(&kept.take_new())), (vec![3, 1, 4], vec![]));
    }
}
