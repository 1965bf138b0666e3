//! One subscription, whatever its broker: what it holds, its room, its outcomes, its timers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::backoff::Quiet;
use crate::batch::{Batch, Mark, Origin};
use crate::clock::Clock;
use crate::credit::Credits;
use crate::entry::EntryId;
use crate::error::Result;
use crate::event::{Event, Level, Sink, State};
use crate::held::Held;
use crate::inbox::{Arrival, Inbox};
use crate::kept::{Head, Kept};
use crate::settle::{Outcome, Settler};
use crate::source::Source;
use crate::stats::Stats;
use crate::token::Token;

/// What became of a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is on its way.
    Taken,
    /// Someone else owns the entry: nothing was done.
    NotOurs,
    /// It had an outcome before.
    Twice,
}

/// The broker-neutral part of a subscription.
#[derive(Debug)]
pub struct Subscription {
    /// The number of its events.
    pub id: usize,
    /// Names.
    pub origin: Arc<Origin>,
    /// Where entries come from and outcomes go.
    pub source: Arc<dyn Source>,
    /// Hand-over to the loop thread.
    pub inbox: Inbox,
    /// Room.
    pub credits: Arc<Credits>,
    /// What is not done.
    pub held: Arc<Held>,
    /// Outcomes under way.
    pub settler: Settler,
    /// Heads of their keys that wait to run again.
    pub kept: Kept,
    /// Counters.
    pub stats: Stats,
    /// Where events go.
    pub events: Sink,
    /// Time.
    pub clock: Arc<Clock>,
    /// Read no more.
    pub stop: CancellationToken,
    /// End everything.
    pub closed: CancellationToken,
    watched: Mutex<HashSet<EntryId>>,
    any_watched: AtomicBool,
}

/// What `Subscription::new` needs to know.
#[derive(Debug)]
pub struct Parts {
    /// The number of its events.
    pub id: usize,
    /// Names.
    pub origin: Arc<Origin>,
    /// Where entries come from and outcomes go.
    pub source: Arc<dyn Source>,
    /// What is not done; shared with others of the same group.
    pub held: Arc<Held>,
    /// Read and not settled, at most.
    pub max_in_flight: usize,
    /// Outcomes worth a command without waiting for more.
    pub gather: usize,
    /// Where events go.
    pub events: Sink,
    /// Time.
    pub clock: Arc<Clock>,
}

impl Subscription {
    /// A subscription that holds nothing and does not read yet.
    pub fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            id: parts.id,
            origin: parts.origin,
            source: parts.source,
            inbox: Inbox::default(),
            credits: Arc::new(Credits::new(parts.max_in_flight)),
            held: parts.held,
            settler: Settler::new(parts.gather),
            kept: Kept::default(),
            stats: Stats::default(),
            events: parts.events,
            clock: parts.clock,
            stop: CancellationToken::new(),
            closed: CancellationToken::new(),
            watched: Mutex::default(),
            any_watched: AtomicBool::new(false),
        })
    }

    /// How messages name it.
    pub fn describe(&self) -> String {
        let Origin { subscription, stream, group, .. } = &*self.origin;
        format!("subscription {subscription} (stream {stream}, group {group})")
    }

    /// Say something in the log.
    pub fn log(&self, level: Level, what: &str) {
        let message = format!("{}: {what}", self.describe());
        self.events.post(Event::Log { level, message });
    }

    /// Say what may come again and again: at most once a second, with how often it was left unsaid since.
    pub fn log_paced(&self, quiet: &Quiet, level: Level, what: impl FnOnce() -> String) {
        if let Some(unsaid) = quiet.allow(self.clock.now_ms()) {
            let more = if unsaid == 0 { String::new() } else { format!(" ({unsaid} more like this)") };
            self.log(level, &format!("{}{more}", what()));
        }
    }

    /// Wait. False: the subscription was closed meanwhile.
    pub async fn pause(&self, wait: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => false,
            () = self.clock.sleep(wait) => true,
        }
    }

    /// Tell the loop thread that the state changed.
    pub fn post_state(&self, state: State) {
        let consumer = self.id;
        self.events.post(Event::State { consumer, state });
    }

    /// Take in what was read: from here on it is held, counted and handed to the lanes.
    pub fn take_in(&self, batch: Arc<Batch>) {
        if !batch.slots().is_empty() {
            self.hold(&batch);
            self.hand_over(Arrival::Batch(batch));
        }
    }

    /// Hold and count what was read, out of reach of the lanes as yet.
    pub fn hold(&self, batch: &Arc<Batch>) {
        self.stats.read.add(batch.slots().len());
        batch.weigh_on(&self.credits);
        self.held.push(Arc::clone(batch));
    }

    /// Hand to the lanes what is held.
    pub fn hand_over(&self, arrival: Arrival) {
        if self.inbox.push(arrival) {
            self.events.post(Event::Ready { consumer: self.id });
        }
    }

    /// Give a running delivery its outcome. Acks of many at once go through `Settler::acks` after `begin_ack`.
    pub fn settle(&self, token: &Token, outcome: Outcome) -> Settled {
        match self.begin_settle(token) {
            Settled::Taken => {}
            Settled::NotOurs => {
                self.source.ended_late(token, matches!(outcome, Outcome::Ack | Outcome::Drop));
                return Settled::NotOurs;
            }
            Settled::Twice => return Settled::Twice,
        }
        match outcome {
            Outcome::Leave => {
                self.stats.left.add(1);
                self.leave(token, outcome);
            }
            Outcome::Retry(None) if self.source.retries_in_place() => {
                self.stats.retried.add(1);
                self.leave(token, outcome);
            }
            Outcome::Ack => self.settler.acks(&mut vec![token.clone()]),
            other => self.settler.other(token.clone(), other),
        }
        Settled::Taken
    }

    /// A settled entry stays pending. Where attempts are counted, the server is told first.
    fn leave(&self, token: &Token, outcome: Outcome) {
        self.forget_watched(std::slice::from_ref(token));
        if self.source.counts_attempts() {
            self.settler.other(token.clone(), outcome);
        } else {
            self.source.left(token);
            self.let_go(token);
        }
    }

    /// Mark a running delivery as settled. An entry that someone else owns by now is let go of.
    #[inline]
    pub fn begin_settle(&self, token: &Token) -> Settled {
        if !token.advance(Mark::Running, Mark::Settled) {
            return Settled::Twice;
        }
        if token.is_lost() {
            self.let_go(token);
            return Settled::NotOurs;
        }
        Settled::Taken
    }

    /// Keep a running delivery's entry here, to run it again after so long. It is held and renewed until then.
    pub fn keep(&self, token: &Token, after: Duration) -> Settled {
        let begun = self.begin_settle(token);
        if begun == Settled::Taken {
            self.forget_watched(std::slice::from_ref(token));
            let since_ms = self.clock.now_ms();
            let due_ms = since_ms.saturating_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            self.kept.add(Head { token: token.clone(), since_ms, due_ms });
        }
        begun
    }

    /// Keep nothing any more: what waits to run again is retried as where no order is kept, when it is due.
    pub fn unkeep(&self) {
        let now = self.clock.now_ms();
        for Head { token, due_ms, .. } in self.kept.take_all() {
            self.settler.other(token, Outcome::Retry(Some(Duration::from_millis(due_ms.saturating_sub(now)))));
        }
    }

    /// Nothing is left to do here for a settled entry, and no answer is waited for.
    pub(crate) fn let_go(&self, token: &Token) {
        if token.advance(Mark::Settled, Mark::Done) {
            self.credits.give(1);
            self.source.moved_on();
        }
    }

    /// Let go of a queued entry without running it. False: it was not queued.
    pub fn skip(&self, token: &Token) -> bool {
        let skipped = token.advance(Mark::Queued, Mark::Done);
        if skipped {
            self.credits.give(1);
            self.source.moved_on();
        }
        skipped
    }

    /// The server answered these outcomes.
    pub fn complete(&self, tokens: &[Token]) {
        let done = tokens.iter().filter(|token| token.advance(Mark::Settled, Mark::Done)).count();
        self.settler.answered(tokens.len());
        self.credits.give(done);
        self.source.moved_on();
        let ids = self.forget_watched(tokens);
        if !ids.is_empty() {
            let consumer = self.id;
            self.events.post(Event::Acked { consumer, ids });
        }
    }

    /// Take queued entries out of reach of the lanes, to give them back. Those that someone else owns are skipped.
    pub fn withdraw(&self, tokens: Vec<Token>) -> Vec<Token> {
        let (ours, lost): (Vec<_>, Vec<_>) = tokens.into_iter().partition(|token| !token.is_lost());
        for token in &lost {
            self.skip(token);
        }
        ours.into_iter().filter(|token| token.advance(Mark::Queued, Mark::Settled)).collect()
    }

    /// Give withdrawn entries back. They are done here, whatever the server says.
    pub async fn release(&self, tokens: Vec<Token>) -> Result<usize> {
        let released = self.source.release(self, &tokens).await;
        for token in &tokens {
            self.let_go(token);
        }
        self.stats.released.add(*released.as_ref().unwrap_or(&0));
        released
    }

    /// Ask for an event once this entry's outcome is answered.
    pub fn watch(&self, id: EntryId) {
        self.watched.lock().insert(id);
        self.any_watched.store(true, Ordering::Release);
    }

    /// How many entries are watched.
    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        self.watched.lock().len()
    }

    /// These outcomes were refused: whoever waits for their acks waits no more.
    pub fn unwatch(&self, tokens: &[Token]) {
        let ids = self.forget_watched(tokens);
        if !ids.is_empty() {
            let consumer = self.id;
            self.events.post(Event::Refused { consumer, ids });
        }
    }

    /// Watch these entries no more. Returns those that were watched.
    fn forget_watched(&self, tokens: &[Token]) -> Vec<EntryId> {
        if !self.any_watched.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut watched = self.watched.lock();
        let ids = tokens.iter().map(Token::id).filter(|id| watched.remove(id)).collect();
        self.any_watched.store(!watched.is_empty(), Ordering::Release);
        ids
    }

    /// How many entries stay pending if nothing more happens here: those that are not done, and those that were left.
    pub fn left_pending(&self) -> usize {
        let mut ids: HashSet<_> = self.held.tokens().iter().map(Token::id).collect();
        ids.extend(self.source.all_left(&self.origin));
        ids.len()
    }

    /// Someone else owns these entries now.
    pub fn lose(&self, tokens: &[Token]) {
        let lost: Vec<_> = tokens.iter().filter(|token| token.lose()).cloned().collect();
        self.forget_watched(&lost);
        let ids: Vec<_> = lost.iter().map(Token::id).collect();
        if !ids.is_empty() {
            self.kept.changed.notify_waiters();
            self.stats.lost.add(ids.len());
            let consumer = self.id;
            self.events.post(Event::Lost { consumer, ids });
        }
    }
}
