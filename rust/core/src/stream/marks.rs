//! Idempotency, on the way in: no message reaches a lane without its mark. The way out is in `marked`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ledger::{Ledger, Waiting};
use super::settings::MarkSettings;
use super::{StreamSource, admit};
use crate::backoff::Quiet;
use crate::batch::{Batch, Mark};
use crate::error::{Error, Result};
use crate::event::{Level, State};
use crate::inbox::Arrival;
use crate::mark::{MarkKey, MarkState, MarkStep, natural_key};
use crate::subscription::{Settled, Subscription};
use crate::token::Token;

/// How often to look whether entries still wait, at a stop that works them off.
const AGAIN: Duration = Duration::from_millis(20);

/// The marks of one subscription.
#[derive(Debug)]
pub struct Marks {
    pub(super) settings: MarkSettings,
    pub(super) ledger: Mutex<Ledger>,
    pub(super) wake: Notify,
    pub(super) quiet: Quiet,
    /// Calls that have entries in their hands.
    busy: AtomicUsize,
    /// Held while leases are renewed or marks taken away: a renewal must not bring back what was just taken away.
    pub(super) order: tokio::sync::Mutex<()>,
}

/// What became of marks that were asked for.
#[derive(Debug, Default)]
struct Begun {
    ready: Vec<Token>,
    waiting: Vec<Waiting>,
    failed: Option<Error>,
}

/// One more call that has entries in its hands, until it ends or is ended.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(calls: &'a AtomicUsize) -> Self {
        calls.fetch_add(1, Ordering::AcqRel);
        Self(calls)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Registered entries whose marks are being asked for. Where nobody stays for the answer, they are asked for again.
struct Asking<'a> {
    marks: &'a Marks,
    asks: Vec<(Token, MarkKey)>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.asks.is_empty() {
            let waiting = self.asks.drain(..).map(|(token, key)| Waiting { token, key, asked: true });
            self.marks.ledger.lock().waiting.extend(waiting);
            self.marks.wake.notify_one();
        }
    }
}

impl Marks {
    /// Marks of nothing yet.
    pub fn new(settings: MarkSettings) -> Self {
        Self {
            settings,
            ledger: Mutex::default(),
            wake: Notify::new(),
            quiet: Quiet::default(),
            busy: AtomicUsize::new(0),
            order: tokio::sync::Mutex::new(()),
        }
    }

    /// How many entries wait for their mark.
    pub fn waiting(&self) -> usize {
        self.ledger.lock().waiting.len()
    }

    /// Whether there is more to do than to renew leases.
    pub(super) fn is_pressing(&self) -> bool {
        let ledger = self.ledger.lock();
        !(ledger.waiting.is_empty() && ledger.releasing.is_empty() && ledger.unfinished.is_empty())
    }

    /// Whether there is no mark to renew, nor anything else to do.
    pub(super) fn is_idle(&self) -> bool {
        self.ledger.lock().in_use.is_empty() && !self.is_pressing()
    }

    pub(super) async fn step(
        &self,
        subscription: &Subscription,
        step: MarkStep,
        keys: &[MarkKey],
    ) -> Result<Vec<Result<MarkState>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let states = tokio::select! {
            biased;
            states = self.settings.store.step(step, &self.settings.owner, keys) => states?,
            () = subscription.closed.cancelled() => return Err(Error::ShutDown("the subscription")),
        };
        if states.len() == keys.len() { Ok(states) } else { Err(Error::Protocol("a mark was not answered".into())) }
    }

    /// Hand the entries of a batch on once their marks are ours. The batch is held already.
    pub(super) async fn take(&self, source: &StreamSource, subscription: &Subscription, batch: Arc<Batch>) {
        let _busy = Busy::new(&self.busy);
        let tokens: Vec<_> = batch.tokens().collect();
        let keys: Vec<_> = match &self.settings.keys {
            None => tokens.iter().map(|token| Some(natural_key(token))).collect(),
            Some(keys) => {
                let computed = tokio::select! {
                    biased;
                    computed = keys.keys(&tokens) => computed,
                    () = subscription.closed.cancelled() => return,
                };
                match computed {
                    Ok(keys) => keys,
                    Err(error) => {
                        // They are held and in no queue: a stop hands them back, and the subscription must not seem well.
                        let text = format!(
                            "{}: idempotency: no keys of {} entries: {error}",
                            subscription.describe(),
                            tokens.len()
                        );
                        subscription.post_state(State::Failed(Error::Subscribe(text)));
                        return;
                    }
                }
            }
        };
        let (mut asks, mut found) = (Vec::with_capacity(tokens.len()), Begun::default());
        let failing = {
            let mut ledger = self.ledger.lock();
            for (token, key) in tokens.into_iter().zip(keys) {
                let Some(key) = key.map(|key| MarkKey::from([&self.settings.prefix, key.as_str()].concat())) else {
                    found.ready.push(token);
                    continue;
                };
                if ledger.failing || ledger.is_used_by_another(token.id(), &key) {
                    found.waiting.push(Waiting { token, key, asked: false });
                } else {
                    ledger.register(token.id(), &key);
                    asks.push((token, key));
                }
            }
            ledger.failing
        };
        if subscription.clock.is_stopped() {
            // There are marks to renew: the clock must stop for that.
            self.wake.notify_one();
        }
        // Nothing of the batch is only in this call while it waits: a stop may end it.
        if !failing {
            self.leave_too_many(source, subscription, &mut found.waiting);
        }
        self.ledger.lock().waiting.extend(found.waiting);
        if !asks.is_empty() {
            hand_on(source, subscription, std::mem::take(&mut found.ready));
        }
        let mut begun = self.begin(subscription, asks).await;
        found.ready.append(&mut begun.ready);
        if found.ready.len() == batch.slots().len() {
            admit::hand_on(source, subscription, Arrival::Batch(batch));
            return;
        }
        if let Some(error) = begun.failed {
            self.fails(subscription, &error, begun.waiting);
        } else {
            if !failing {
                self.leave_too_many(source, subscription, &mut begun.waiting);
            }
            self.ledger.lock().waiting.extend(begun.waiting);
        }
        self.wake.notify_one();
        hand_on(source, subscription, found.ready);
    }

    /// Ask for the marks of registered entries.
    async fn begin(&self, subscription: &Subscription, asks: Vec<(Token, MarkKey)>) -> Begun {
        let keys: Vec<_> = asks.iter().map(|(_, key)| Arc::clone(key)).collect();
        let mut asking = Asking { marks: self, asks };
        let states = match self.step(subscription, MarkStep::Begin(self.settings.lease), &keys).await {
            Ok(states) => states,
            Err(error) => vec![Err(error); keys.len()],
        };
        let asks = std::mem::take(&mut asking.asks);
        let (mut begun, mut done) = (Begun { ready: Vec::with_capacity(asks.len()), ..Begun::default() }, Vec::new());
        let mut ledger = self.ledger.lock();
        for ((token, key), state) in asks.into_iter().zip(states) {
            match state {
                Ok(MarkState::Ours) if token.mark() == Mark::Queued => begun.ready.push(token),
                // It was handed back meanwhile.
                Ok(MarkState::Ours) => {
                    ledger.by_entry.remove(&token.id());
                    ledger.releasing.push((key, None));
                }
                Ok(state) => {
                    ledger.by_entry.remove(&token.id());
                    ledger.free(&key);
                    if state == MarkState::Done {
                        done.push(token);
                    } else {
                        begun.waiting.push(Waiting { token, key, asked: false });
                    }
                }
                Err(error) => {
                    begun.failed.get_or_insert(error);
                    begun.waiting.push(Waiting { token, key, asked: true });
                }
            }
        }
        drop(ledger);
        if !done.is_empty() {
            subscription.stats.duplicates_done.add(done.len());
            done.retain(|token| token.begin() && subscription.begin_settle(token) == Settled::Taken);
            subscription.settler.acks(&mut done);
        }
        begun
    }

    /// Leave pending what exceeds the room for those that wait: recovery brings it back.
    fn leave_too_many(&self, source: &StreamSource, subscription: &Subscription, waiting: &mut Vec<Waiting>) {
        subscription.stats.duplicates_waiting.add(waiting.len());
        let Some(most) = self.settings.most_waiting else {
            return;
        };
        let room = most.saturating_sub(self.waiting());
        for Waiting { token, .. } in waiting.drain(room.min(waiting.len())..) {
            // Not begun and settled: a cap would count that as an attempt.
            if subscription.skip(&token) {
                subscription.stats.left.add(1);
                source.group.left(&token);
            }
        }
    }

    /// The store failed, and these entries wait for their marks from now on.
    fn fails(&self, subscription: &Subscription, error: &Error, asked: Vec<Waiting>) {
        let (before, waiting) = {
            let mut ledger = self.ledger.lock();
            ledger.waiting.extend(asked);
            (std::mem::replace(&mut ledger.failing, true), ledger.waiting.len())
        };
        subscription.stats.mark_errors.add(1);
        if !before {
            subscription.post_state(State::Retrying(error.clone()));
        }
        subscription.log_paced(&self.quiet, Level::Warning, || {
            format!("idempotency: the store failed, {waiting} entries wait for their mark and are not handled: {error}")
        });
    }

    /// See to all that waits. False: the store fails.
    pub(super) async fn poll(&self, source: &StreamSource, subscription: &Subscription) -> bool {
        let _busy = Busy::new(&self.busy);
        let finished = self.finish_rest(subscription).await;
        let released = self.release_rest(subscription).await;
        let (asks, rest) = self.due(subscription);
        let begun = self.begin(subscription, asks).await;
        {
            let mut ledger = self.ledger.lock();
            let newer = std::mem::take(&mut ledger.waiting);
            ledger.waiting.extend(begun.waiting.into_iter().chain(rest));
            if ledger.failing && begun.failed.is_none() && newer.is_empty() {
                ledger.failing = false;
                let well = !ledger.refusing;
                drop(ledger);
                if well {
                    subscription.post_state(State::Reading);
                }
            } else {
                ledger.waiting.extend(newer);
            }
        }
        hand_on(source, subscription, begun.ready);
        if let Some(error) = begun.failed {
            self.fails(subscription, &error, Vec::new());
            return false;
        }
        finished && released
    }

    /// Those of the waiting ones that may have their mark now, registered, and the others.
    fn due(&self, subscription: &Subscription) -> (Vec<(Token, MarkKey)>, Vec<Waiting>) {
        let (mut asks, mut rest) = (Vec::new(), Vec::new());
        let mut ledger = self.ledger.lock();
        for waiting in std::mem::take(&mut ledger.waiting) {
            let Waiting { token, key, asked } = waiting;
            if token.is_lost() {
                subscription.skip(&token);
            }
            if token.mark() != Mark::Queued {
                if asked && ledger.by_entry.remove(&token.id()).is_some() {
                    ledger.releasing.push((key, None));
                }
            } else if asked {
                asks.push((token, key));
            } else if ledger.is_used_by_another(token.id(), &key) {
                rest.push(Waiting { token, key, asked });
            } else {
                ledger.register(token.id(), &key);
                asks.push((token, key));
            }
        }
        (asks, rest)
    }

    /// Return once no entry waits for its mark.
    pub(super) async fn let_through(&self, subscription: &Subscription) {
        // Those whose marks are being asked for are in no queue.
        while self.busy.load(Ordering::Acquire) > 0 || self.waiting() > 0 {
            if !subscription.pause(AGAIN).await {
                return;
            }
        }
    }
}

fn hand_on(source: &StreamSource, subscription: &Subscription, tokens: Vec<Token>) {
    if !tokens.is_empty() {
        admit::hand_on(source, subscription, Arrival::Tokens { tokens, watched: false });
    }
}
