//! The gate before the lanes of a subscription with a cap: redelivered entries pass it one small group after another,
//! marked started before they are, and those whose attempts are used up are given up here.
//!
//! Fresh entries do not come here, unless the cap is one. An entry that waits here is held, renewed and handed back
//! like one in a lane's queue, and nothing is counted of it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::attempts::Attempts;
use super::line::{Line, Passed};
use super::settings::Cap;
use super::settlement;
use crate::entry::{EntryId, Slot};
use crate::inbox::Arrival;
use crate::subscription::Subscription;
use crate::token::Token;

/// How often to look whether one that runs alone, or those it waits for, have had their time.
const AGAIN: Duration = Duration::from_secs(1);
/// Entries that are remembered to have been refused, the latest ones.
const MOST_REFUSED: usize = 10_000;

/// Where redelivered entries of one subscription wait.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) cap: Cap,
    pub(super) line: Mutex<Line>,
    /// Entries whose outcome the server refused.
    refused: Mutex<BTreeSet<EntryId>>,
    /// Something is in the line.
    busy: AtomicBool,
    pub(super) wake: Notify,
    empty: Notify,
    /// Held while marks are written: what is given back gets its old mark after that, not before.
    pub(super) writing: tokio::sync::Mutex<()>,
}

impl Gate {
    pub(super) fn new(cap: Cap) -> Self {
        Self {
            cap,
            line: Mutex::default(),
            refused: Mutex::default(),
            busy: AtomicBool::new(false),
            wake: Notify::new(),
            empty: Notify::new(),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Whether an entry has to pass the gate.
    pub(super) fn concerns(&self, slot: &Slot) -> bool {
        self.cap.attempts == 1 || slot.earlier > 0 || slot.attempts_before() > 0
    }

    /// Take in what is held: what need not pass goes on at once.
    pub(super) fn pass(&self, subscription: &Subscription, tokens: Vec<Token>) {
        let (gated, free): (Vec<_>, Vec<_>) = tokens.into_iter().partition(|token| self.concerns(token.slot()));
        if !free.is_empty() {
            subscription.hand_over(Arrival::Tokens { tokens: free, watched: false });
        }
        let mut line = self.line.lock();
        line.arrived.extend(gated);
        self.busy.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// This one is about to come here, and the lanes keep its key for it.
    pub(super) fn expect_head(&self, id: EntryId) {
        self.line.lock().heads.insert(id);
    }

    /// Something started or is done.
    pub(super) fn moved_on(&self) {
        if self.busy.load(Ordering::Acquire) {
            self.wake.notify_one();
        }
    }

    /// Take out what has not started, to give it back. Nothing is let through from now on.
    pub(super) fn withheld(&self) -> Vec<Token> {
        self.line.lock().close()
    }

    /// Return once nothing waits here or is on its way to a lane.
    pub(super) async fn let_through(&self) {
        loop {
            let empty = self.empty.notified();
            tokio::pin!(empty);
            empty.as_mut().enable();
            {
                if self.line.lock().is_empty() {
                    return;
                }
            }
            empty.await;
        }
    }

    /// Attempts of a delivery's entry, this one included.
    pub(super) fn used(&self, token: &Token) -> u32 {
        token.attempts_before().saturating_add(self.known(token).starts)
    }

    /// The mark of a delivery whose handler was started.
    pub(super) fn known(&self, token: &Token) -> Attempts {
        let first = Attempts { starts: 1, doubtful: token.comes_again(), ..Attempts::default() };
        if !self.busy.load(Ordering::Acquire) {
            return first;
        }
        let line = self.line.lock();
        line.passed.get(&token.id()).map_or(first, |passed| passed.now)
    }

    /// The marks of deliveries whose handlers ended. One that had to pass and did not was never started: what is known
    /// of its starts stays as it is.
    pub(super) fn ended<'a>(&self, tokens: impl Iterator<Item = &'a Token>) -> Vec<(Token, Attempts)> {
        let started = |token: &&Token| !self.concerns(token.slot()) || self.has_passed(token);
        tokens.filter(started).map(|token| (token.clone(), self.known(token).ended())).collect()
    }

    /// The server knows that the handlers of these ended.
    pub(super) fn noted<'a>(&self, tokens: impl Iterator<Item = &'a Token>) {
        if !self.busy.load(Ordering::Acquire) {
            return;
        }
        let mut line = self.line.lock();
        for token in tokens {
            if let Some(passed) = line.passed.get_mut(&token.id()) {
                passed.is_noted = true;
            }
        }
        self.wake.notify_one();
    }

    fn has_passed(&self, token: &Token) -> bool {
        self.busy.load(Ordering::Acquire) && self.line.lock().passed.contains_key(&token.id())
    }

    /// The marks that entries had before they were let through, of those of them that were.
    pub(super) fn before(&self, tokens: &[Token]) -> Vec<(Token, Attempts)> {
        let line = self.line.lock();
        let before = |token: &Token| Some((token.clone(), line.passed.get(&token.id())?.before));
        tokens.iter().filter_map(before).collect()
    }

    /// Those of these entries that have a mark.
    pub(super) fn marked<'a>(&self, tokens: impl Iterator<Item = &'a Token>) -> Vec<EntryId> {
        if !self.busy.load(Ordering::Acquire) {
            return Vec::new();
        }
        let line = self.line.lock();
        tokens.map(Token::id).filter(|id| line.passed.contains_key(id)).collect()
    }

    /// The server refused the outcomes of these: they come back, and the refusal is said each time.
    pub(super) fn note_refused(&self, ids: impl Iterator<Item = EntryId>) {
        let mut refused = self.refused.lock();
        refused.extend(ids);
        while refused.len() > MOST_REFUSED {
            refused.pop_first();
        }
    }

    /// Those of these entries of which nothing was said yet.
    pub(super) fn unsaid(&self, tokens: &[Token]) -> Vec<Token> {
        let refused = self.refused.lock();
        tokens.iter().filter(|token| !refused.contains(&token.id())).cloned().collect()
    }

    /// Forget what is done.
    pub(super) fn sweep(&self) {
        let mut line = self.line.lock();
        line.sweep();
        if line.is_empty() {
            self.empty.notify_waiters();
            self.busy.store(!line.passed.is_empty(), Ordering::Release);
        }
    }

    /// What has come and nothing is known of.
    pub(super) fn arrived(&self) -> Vec<Token> {
        self.line.lock().arrived.iter().take(settlement::CHUNK).cloned().collect()
    }

    /// Put those that may run in line, and return those that may not.
    pub(super) fn sort(&self, tokens: &[Token], marks: &[Option<String>]) -> Vec<Token> {
        self.line.lock().sort(&self.cap, tokens, marks)
    }

    /// Choose who is let through now. Also: after how long to look again, where only time helps.
    pub(super) fn choose(&self, subscription: &Subscription) -> (Vec<Passed>, Option<Duration>) {
        let mut line = self.line.lock();
        for token in line.take_lost() {
            subscription.skip(&token);
            pass_over(subscription, &token);
        }
        let (chosen, must_wait) = line.advance(self.cap.workers, subscription.clock.now_ms());
        (chosen, must_wait.then_some(AGAIN))
    }

    /// Those that could not be marked, since someone else has them, are not let through.
    pub(super) fn turn_away(&self, subscription: &Subscription, tokens: &[Token]) {
        subscription.lose(tokens);
        let mut line = self.line.lock();
        for token in tokens {
            line.passed.remove(&token.id());
            subscription.skip(token);
            pass_over(subscription, token);
        }
    }
}

/// A lane may keep its key for this one, which does not run: the next of its key may.
pub(super) fn pass_over(subscription: &Subscription, token: &Token) {
    subscription.hand_over(Arrival::Tokens { tokens: vec![token.clone()], watched: false });
}
