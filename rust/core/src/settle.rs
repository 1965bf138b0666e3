//! Gathers outcomes and has them carried out, many at a time. Giving one never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backoff::{Backoff, Quiet};
use crate::batch::Token;
use crate::event::{Event, Level};
use crate::subscription::Subscription;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Handled.
    Ack,
    /// Not handled, and not wanted.
    Drop,
    /// To be delivered again, after a delay where one is given.
    Retry(Option<Duration>),
    /// Left pending for whoever recovers it.
    Leave,
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
    /// Outcomes given and not yet answered.
    unanswered: AtomicUsize,
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
            unanswered: AtomicUsize::new(0),
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
        self.unanswered.fetch_add(added, Ordering::AcqRel);
        let before = {
            let mut queue = self.queue.lock();
            let before = queue.len();
            queue.acks.append(tokens);
            before
        };
        self.wake_for(before, added);
    }

    /// Take over any other outcome.
    pub fn other(&self, token: Token, outcome: Outcome) {
        self.unanswered.fetch_add(1, Ordering::AcqRel);
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
        self.unanswered.load(Ordering::Acquire)
    }

    /// Count answers.
    pub fn answered(&self, outcomes: usize) {
        if self.unanswered.fetch_sub(outcomes, Ordering::AcqRel) == outcomes {
            self.flushed.notify_waiters();
        }
    }

    /// Return once every outcome given so far was answered. Does not wait for company any more.
    pub async fn flush(&self) {
        self.hurry.store(true, Ordering::Release);
        self.wake.notify_one();
        loop {
            let flushed = self.flushed.notified();
            tokio::pin!(flushed);
            flushed.as_mut().enable();
            if self.unanswered() == 0 {
                break;
            }
            flushed.await;
        }
        self.hurry.store(false, Ordering::Release);
    }

    fn gathered(&self) -> usize {
        self.queue.lock().len()
    }

    async fn next(&self) -> Work {
        loop {
            let gathered = self.gathered();
            if gathered == 0 {
                self.wake.notified().await;
                continue;
            }
            if gathered < self.gather && !self.hurry.load(Ordering::Acquire) {
                // Errors and wakes alike end the wait; either way what is there goes out.
                let _ = tokio::time::timeout(LINGER, self.wake.notified()).await;
            }
            return std::mem::take(&mut *self.queue.lock());
        }
    }

    /// Carry outcomes out until the subscription is closed.
    pub async fn run(subscription: Arc<Subscription>, mut backoff: Backoff) {
        let quiet = Quiet::default();
        loop {
            let mut work = tokio::select! {
                () = subscription.closed.cancelled() => return,
                work = subscription.settler.next() => work,
            };
            while let Err(error) = subscription.source.settle(&subscription, &mut work).await {
                work.resend = true;
                if let Some(unsaid) = quiet.allow() {
                    subscription.events.post(Event::Log {
                        level: Level::Warning,
                        message: format!(
                            "{}: {} outcomes not answered, sending them again: {error} ({unsaid} more like this)",
                            subscription.describe(),
                            work.len()
                        ),
                    });
                }
                tokio::select! {
                    () = subscription.closed.cancelled() => return,
                    () = subscription.clock.sleep(backoff.wait()) => {}
                }
            }
            backoff.reset();
        }
    }
}
