//! Hand-over to the loop thread: push a batch or single entries, ring once, and only if a lane is idle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::batch::Batch;
use crate::entry::Slot;
use crate::token::Token;

/// What is handed over at once.
#[derive(Debug)]
pub enum Arrival {
    /// All entries of a read.
    Batch(Arc<Batch>),
    /// Some entries.
    Tokens {
        /// Which, in the order they are to run.
        tokens: Vec<Token>,
        /// The source wants to know when each of them starts (`Source::moved_on`).
        watched: bool,
    },
}

impl Arrival {
    /// Whether this is so of any of its entries.
    pub fn any(&self, so: impl Fn(&Slot) -> bool) -> bool {
        match self {
            Self::Batch(batch) => batch.slots().iter().any(so),
            Self::Tokens { tokens, .. } => tokens.iter().any(|token| so(token.slot())),
        }
    }

    /// Its entries.
    pub fn tokens(&self) -> Vec<Token> {
        match self {
            Self::Batch(batch) => batch.tokens().collect(),
            Self::Tokens { tokens, .. } => tokens.clone(),
        }
    }
}

/// Arrivals that no lane has looked at yet.
#[derive(Debug, Default)]
pub struct Inbox {
    arrivals: Mutex<VecDeque<Arrival>>,
    /// Something waits; looked at for each delivery, so without the lock.
    waiting: AtomicBool,
    hungry: AtomicBool,
}

impl Inbox {
    /// Hand it over. True: a lane found nothing before and must be woken.
    pub fn push(&self, arrival: Arrival) -> bool {
        {
            let mut arrivals = self.arrivals.lock();
            arrivals.push_back(arrival);
            self.waiting.store(true, Ordering::Release);
        }
        self.hungry.swap(false, Ordering::AcqRel)
    }

    /// The next arrival. None: from now on a push asks for a wake.
    pub fn pop(&self) -> Option<Arrival> {
        let mut arrivals = self.arrivals.lock();
        let arrival = arrivals.pop_front();
        if arrivals.is_empty() {
            self.waiting.store(false, Ordering::Release);
        }
        if arrival.is_none() {
            // Under the lock, so that a push either is seen here or sees this.
            self.hungry.store(true, Ordering::Release);
        }
        arrival
    }

    /// Whether something waits, as of a moment ago.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether something waits. If not, from now on a push asks for a wake.
    pub fn has_any(&self) -> bool {
        let arrivals = self.arrivals.lock();
        if arrivals.is_empty() {
            self.hungry.store(true, Ordering::Release);
        }
        !arrivals.is_empty()
    }

    /// Take everything, without asking for a wake.
    pub fn clear(&self) -> Vec<Arrival> {
        let mut arrivals = self.arrivals.lock();
        self.waiting.store(false, Ordering::Release);
        arrivals.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Origin, RawBatch};

    fn batch() -> Arrival {
        let origin = Origin { subscription: "s".into(), stream: "s".into(), group: "g".into(), consumer: "c".into() };
        Arrival::Batch(Batch::new(RawBatch::default(), Arc::new(origin), 0))
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
