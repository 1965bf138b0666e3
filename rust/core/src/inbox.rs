//! Hand-over from the reader to the loop thread: push a batch, ring once, and only if a lane is idle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::batch::Batch;

/// Batches that no lane has looked at yet.
#[derive(Debug, Default)]
pub struct Inbox {
    batches: Mutex<VecDeque<Arc<Batch>>>,
    /// Something waits; looked at for each delivery, so without the lock.
    waiting: AtomicBool,
    hungry: AtomicBool,
}

impl Inbox {
    /// Hand a batch over. True: a lane found nothing before and must be woken.
    pub fn push(&self, batch: Arc<Batch>) -> bool {
        {
            let mut batches = self.batches.lock();
            batches.push_back(batch);
            self.waiting.store(true, Ordering::Release);
        }
        self.hungry.swap(false, Ordering::AcqRel)
    }

    /// The next batch. None: from now on a push asks for a wake.
    pub fn pop(&self) -> Option<Arc<Batch>> {
        let mut batches = self.batches.lock();
        let batch = batches.pop_front();
        if batches.is_empty() {
            self.waiting.store(false, Ordering::Release);
        }
        if batch.is_none() {
            // Under the lock, so that a push either is seen here or sees this.
            self.hungry.store(true, Ordering::Release);
        }
        batch
    }

    /// Whether something waits, as of a moment ago.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether something waits. If not, from now on a push asks for a wake.
    pub fn has_any(&self) -> bool {
        let batches = self.batches.lock();
        if batches.is_empty() {
            self.hungry.store(true, Ordering::Release);
        }
        !batches.is_empty()
    }

    /// Take everything, without asking for a wake.
    pub fn clear(&self) -> Vec<Arc<Batch>> {
        let mut batches = self.batches.lock();
        self.waiting.store(false, Ordering::Release);
        batches.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Origin, RawBatch};

    fn batch() -> Arc<Batch> {
        let origin = Origin { subscription: "s".into(), stream: "s".into(), group: "g".into(), consumer: "c".into() };
        Batch::new(RawBatch::default(), Arc::new(origin), 0)
    }

    #[test]
    fn rings_only_for_a_lane_that_found_nothing() {
        let inbox = Inbox::default();
        assert!(!inbox.push(batch()));
        assert!(inbox.pop().is_some());
        assert!(!inbox.push(batch()));
        assert!(inbox.pop().is_some());
        assert!(inbox.pop().is_none());
        assert!(inbox.push(batch()));
        assert!(!inbox.push(batch()));
    }

    #[test]
    fn it_says_without_a_lock_whether_something_waits() {
        let inbox = Inbox::default();
        assert!(!inbox.is_waiting());
        inbox.push(batch());
        inbox.push(batch());
        assert!(inbox.is_waiting() && inbox.pop().is_some());
        assert!(inbox.is_waiting() && inbox.pop().is_some());
        assert!(!inbox.is_waiting());
        inbox.push(batch());
        assert_eq!(inbox.clear().len(), 1);
        assert!(!inbox.is_waiting());
    }

    #[test]
    fn a_lane_that_only_looked_is_woken_as_well() {
        let inbox = Inbox::default();
        assert!(!inbox.has_any());
        assert!(inbox.push(batch()));
        assert!(inbox.has_any());
        assert!(!inbox.push(batch()));
    }
}
