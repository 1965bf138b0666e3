//! Gathers outcomes and has them carried out, many at a time. Giving one never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::append::Append;
use crate::backoff::{Backoff, Quiet};
use crate::clock::Clock;
use crate::event::Level;
use crate::letter::Letter;
use crate::subscription::Subscription;
use crate::token::Token;

/// How a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Handled.
    Ack,
    /// Not handled, and not wanted.
    Drop,
    /// To be delivered again, after a delay where one is given.
    Retry(Option<Duration>),
    /// Left pending for whoever recovers it.
    Leave,
    /// Given up: a letter is written in its place.
    DeadLetter(Arc<Letter>),
    /// Handled, and this is to be added to a stream in the same step.
    Reply(Arc<Append>),
}

/// Outcomes that wait to be carried out.
#[derive(Debug, Default)]
pub struct Work {
    /// Plain acks: nearly everything.
    pub acks: Vec<Token>,
    /// The rest.
    pub others: Vec<(Token, Outcome)>,
    /// They were sent before and the reply was lost: check who owns them now.
    pub resend: bool,
}

impl Work {
    /// How many outcomes.
    pub fn len(&self) -> usize {
        self.acks.len() + self.others.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.others.is_empty()
    }
}

/// How long the first outcome waits for company. A quiet stream pays a millisecond of credit for it, a busy one
/// fills the gathering before.
const LINGER: Duration = Duration::from_millis(1);

/// The outcomes of one subscription on their way to the server.
#[derive(Debug)]
pub struct Settler {
    queue: Mutex<Work>,
    wake: Notify,
    /// Outcomes given since the start, and those of them that were answered. They are answered in the order they were
    /// given, batch by batch.
    given: AtomicUsize,
    answered: AtomicUsize,
    hurry: AtomicBool,
    flushed: Notify,
    gather: usize,
}

impl Settler {
    /// `gather`: how many outcomes are worth a command without waiting for more.
    pub fn new(gather: usize) -> Self {
        Self {
            queue: Mutex::new(Work::default()),
            wake: Notify::new(),
            given: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            hurry: AtomicBool::new(false),
            flushed: Notify::new(),
            gather: gather.max(1),
        }
    }

    /// Take acks over, leaving the vector empty. One lock for many.
    pub fn acks(&self, tokens: &mut Vec<Token>) {
        if tokens.is_empty() {
            return;
        }
        let added = tokens.len();
        self.given.fetch_add(added, Ordering::AcqRel);
        let before = {
            let mut queue = self.queue.lock();
            let before = queue.len();
            queue.acks.append(tokens);
            before
        };
        self.wake_for(before, added);
    }

    /// Take back acks that were held up: they were counted as given before.
    pub fn again(&self, tokens: &mut Vec<Token>) {
        if tokens.is_empty() {
            return;
        }
        self.queue.lock().acks.append(tokens);
        self.wake.notify_one();
    }

    /// Take over any other outcome.
    pub fn other(&self, token: Token, outcome: Outcome) {
        self.given.fetch_add(1, Ordering::AcqRel);
        let before = {
            let mut queue = self.queue.lock();
            let before = queue.len();
            queue.others.push((token, outcome));
            before
        };
        self.wake_for(before, 1);
    }

    /// Wake at the first outcome and when enough are gathered, not for each: a wake is a system call.
    fn wake_for(&self, before: usize, added: usize) {
        if before == 0 || (before < self.gather && before + added >= self.gather) {
            self.wake.notify_one();
        }
    }

    /// How many outcomes have no answer yet.
    pub fn unanswered(&self) -> usize {
        let answered = self.answered.load(Ordering::Acquire);
        self.given.load(Ordering::Acquire).saturating_sub(answered)
    }

    /// Count answers.
    pub fn answered(&self, outcomes: usize) {
        self.answered.fetch_add(outcomes, Ordering::AcqRel);
        self.flushed.notify_waiters();
    }

    /// Return once every outcome given so far was answered. Does not wait for company any more.
    pub async fn flush(&self) {
        let given = self.given.load(Ordering::Acquire);
        self.hurry.store(true, Ordering::Release);
        self.wake.notify_one();
        loop {
            let flushed = self.flushed.notified();
            tokio::pin!(flushed);
            flushed.as_mut().enable();
            if self.answered.load(Ordering::Acquire) >= given {
                break;
            }
            flushed.await;
        }
        self.hurry.store(false, Ordering::Release);
    }

    fn gathered(&self) -> usize {
        self.queue.lock().len()
    }

    async fn next(&self, clock: &Clock) -> Work {
        loop {
            let gathered = self.gathered();
            if gathered == 0 {
                self.wake.notified().await;
                continue;
            }
            // A stopped clock does not pass while work is done: nothing would come meanwhile.
            if gathered < self.gather && !self.hurry.load(Ordering::Acquire) && !clock.is_stopped() {
                tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = clock.sleep(LINGER) => {}
                }
            }
            return std::mem::take(&mut *self.queue.lock());
        }
    }

    /// Carry outcomes out until the subscription is closed.
    pub async fn run(subscription: Arc<Subscription>, mut backoff: Backoff) {
        let quiet = Quiet::default();
        loop {
            let mut work = tokio::select! {
                biased;
                () = subscription.closed.cancelled() => return,
                work = subscription.settler.next(&subscription.clock) => work,
            };
            while let Err(error) = subscription.source.settle(&subscription, &mut work).await {
                work.resend = true;
                subscription.log_paced(&quiet, Level::Warning, || {
                    format!("{} outcomes not answered, sending them again: {error}", work.len())
                });
                if !subscription.pause(backoff.wait()).await {
                    return;
                }
            }
            backoff.reset();
        }
    }
}

#[cfg(test)]
#[path = "settle_tests.rs"]
mod tests;
