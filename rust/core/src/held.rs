//! What one subscription holds: the batches with an entry that is not done.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::batch::{Batch, Mark};
use crate::entry::EntryId;
use crate::token::Token;

/// The live batches of one subscription, oldest first.
#[derive(Debug, Default)]
pub struct Held {
    held: Mutex<VecDeque<Arc<Batch>>>,
    /// Rung for each batch.
    arrived: Notify,
}

impl Held {
    /// Hold a batch, and let go of those that are done. Batches end nearly in order, so the sweep is short.
    pub fn push(&self, batch: Arc<Batch>) {
        let mut batches = self.held.lock();
        while batches.front().is_some_and(|front| front.open() == 0) {
            batches.pop_front();
        }
        if batches.len() >= 64 && batches.len().is_power_of_two() {
            // One slow entry at the front must not keep all that came after it.
            batches.retain(|batch| batch.open() > 0);
        }
        batches.push_back(batch);
        drop(batches);
        self.arrived.notify_one();
    }

    /// Return once something is held. For one waiter.
    pub async fn any(&self) {
        while self.batches().is_empty() {
            self.arrived.notified().await;
        }
    }

    /// The entry with this id, unless it is done.
    pub fn find(&self, id: EntryId) -> Option<Token> {
        let batches = self.held.lock();
        batches.iter().filter(|batch| batch.open() > 0).find_map(|batch| {
            let index = batch.position(id)?;
            (batch.mark(index) != Mark::Done).then(|| Token::new(Arc::clone(batch), index))
        })
    }

    /// The batches with something open, oldest first.
    pub fn batches(&self) -> Vec<Arc<Batch>> {
        let mut batches = self.held.lock();
        batches.retain(|batch| batch.open() > 0);
        batches.iter().cloned().collect()
    }

    /// The entries that are not done, oldest read first.
    pub fn tokens(&self) -> Vec<Token> {
        let batches = self.batches();
        batches.iter().flat_map(Batch::tokens).filter(|token| token.mark() != Mark::Done).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Origin, RawBatch};
    use crate::entry::Slot;

    fn batch(ids: &[u64]) -> Arc<Batch> {
        let origin = Origin { subscription: "s".into(), stream: "s".into(), group: "g".into(), consumer: "c".into() };
        let slots = ids.iter().map(|ms| Slot::new(EntryId::new(*ms, 0))).collect();
        let raw = RawBatch { slots, ..RawBatch::default() };
        Batch::new(raw, Arc::new(origin), 0)
    }

    #[test]
    fn an_entry_is_found_until_it_is_done() {
        let held = Held::default();
        held.push(batch(&[1, 2]));
        held.push(batch(&[9, 5]));
        let five = held.find(EntryId::new(5, 0));
        assert!(five.as_ref().is_some_and(|token| token.begin() && token.advance(Mark::Running, Mark::Done)));
        assert!(held.find(EntryId::new(5, 0)).is_none());
        assert_eq!(held.tokens().len(), 3);
    }

    #[tokio::test]
    async fn one_who_waits_for_something_waits_while_nothing_is_open() {
        let held = Arc::new(Held::default());
        let done = batch(&[1]);
        held.push(Arc::clone(&done));
        held.any().await;
        done.tokens().for_each(|token| assert!(token.advance(Mark::Queued, Mark::Done)));
        let waiting = tokio::spawn({
            let held = Arc::clone(&held);
            async move { held.any().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        held.push(batch(&[2]));
        assert!(waiting.await.is_ok());
    }

    #[test]
    fn one_slow_entry_does_not_keep_the_batches_after_it() {
        let held = Held::default();
        held.push(batch(&[0]));
        for ms in 1..1000 {
            let next = batch(&[ms]);
            held.push(Arc::clone(&next));
            for token in next.tokens() {
                token.advance(Mark::Queued, Mark::Done);
            }
        }
        assert!(held.held.lock().len() <= 600);
        assert_eq!(held.tokens().len(), 1);
    }
}
