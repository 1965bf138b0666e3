//! Idempotency, on the way out: no entry is acknowledged before its message is marked as done, and what was not handled
//! frees its mark.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::ledger::{Ledger, Releasing};
use super::marks::Marks;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::event::{Level, State};
use crate::mark::{MarkKey, MarkState, MarkStep};
use crate::order::{Action, Order, Verdict};
use crate::settle::{Outcome, Work};
use crate::subscription::Subscription;
use crate::token::Token;

/// How long handing back, and an outcome at a stop, wait for marks to be taken away.
const PATIENCE: Duration = Duration::from_millis(500);

/// Marks that are being taken away. Where nobody stays for the answer, they are taken away later.
struct Taken<'a> {
    marks: &'a Marks,
    releasing: Vec<Releasing>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.releasing.is_empty() {
            self.marks.ledger.lock().releasing.append(&mut self.releasing);
            self.marks.wake.notify_one();
        }
    }
}

impl Marks {
    /// Mark what was handled as done, before it is acknowledged, and take away the marks of what was not. What its store
    /// refuses to mark is taken out of `work`, to be acknowledged later.
    pub(super) async fn settle(&self, subscription: &Subscription, work: &mut Work) -> Result<()> {
        let (mut done, mut undone) = (Vec::new(), Vec::new());
        {
            let ledger = self.ledger.lock();
            let key = |token: &Token| ledger.by_entry.get(&token.id()).cloned();
            done.extend(work.acks.iter().filter_map(|token| Some((key(token)?, token.clone()))));
            for (token, outcome) in &work.others {
                match (key(token), outcome) {
                    (Some(key), Outcome::Ack | Outcome::Drop) => done.push((key, token.clone())),
                    // It is handled once the reply is out, and may be refused until then.
                    (_, Outcome::Reply(_)) | (None, _) => {}
                    (Some(_), _) => undone.push(token.id()),
                }
            }
        }
        let unmarked = self.finish(subscription, done).await?;
        if !unmarked.is_empty() {
            let ids: HashSet<_> = unmarked.iter().map(|(_, token)| token.id()).collect();
            work.acks.retain(|token| !ids.contains(&token.id()));
            work.others.retain(|(token, _)| !ids.contains(&token.id()));
            self.ledger.lock().unfinished.extend(unmarked.into_iter().map(|(key, token)| (key, Some(token))));
            self.wake.notify_one();
        }
        if !undone.is_empty() {
            // A mark that cannot be taken away ends with its lease, and must not hold up the outcome.
            for id in undone {
                self.left(id);
            }
            if subscription.stop.is_cancelled() {
                self.release_soon(subscription).await;
            }
        }
        Ok(())
    }

    /// Mark what was replied to as done, and free the marks of what was not.
    pub(super) async fn replied(&self, subscription: &Subscription, orders: &[Order], verdicts: &[Verdict]) {
        let (mut done, mut undone) = (Vec::new(), Vec::new());
        for (order, verdict) in orders.iter().zip(verdicts) {
            if matches!(order.action, Action::Reply(_)) {
                let sent = matches!(verdict, Verdict::Done | Verdict::Gone);
                if sent { &mut done } else { &mut undone }.push(order.token.clone());
            }
        }
        for token in undone {
            self.left(token.id());
        }
        let done: Vec<_> = {
            let ledger = self.ledger.lock();
            let key = |token: Token| Some((ledger.by_entry.get(&token.id()).cloned()?, token));
            done.into_iter().filter_map(key).collect()
        };
        let ids: Vec<_> = done.iter().map(|(_, token)| token.id()).collect();
        // The entry is gone, whatever becomes of the mark.
        let unmarked = match self.finish(subscription, done).await {
            Ok(unmarked) => unmarked.into_iter().map(|(_, token)| token.id()).collect(),
            Err(_) => ids,
        };
        for id in unmarked {
            self.handled(id);
        }
    }

    /// Mark entries as done. Returns those that could not be.
    async fn finish(&self, subscription: &Subscription, done: Vec<(MarkKey, Token)>) -> Result<Vec<(MarkKey, Token)>> {
        let keys: Vec<_> = done.iter().map(|(key, _)| Arc::clone(key)).collect();
        let states = match self.step(subscription, MarkStep::Finish(self.settings.ttl), &keys).await {
            Ok(states) => states,
            Err(error) if error.is_lost() || matches!(error, Error::ShutDown(_)) => return Err(error),
            // What is refused waits for its mark; the outcomes of others go on.
            Err(error) => vec![Err(error); done.len()],
        };
        let (mut foreign, mut failed, mut unmarked, mut wanted) = (0, None, Vec::new(), false);
        {
            let mut ledger = self.ledger.lock();
            for ((key, token), state) in done.into_iter().zip(states) {
                match state {
                    Ok(state) => {
                        foreign += usize::from(state == MarkState::Working);
                        wanted |= ledger.free(&key);
                        ledger.by_entry.remove(&token.id());
                    }
                    Err(error) => {
                        failed.get_or_insert(error);
                        unmarked.push((key, token));
                    }
                }
            }
        }
        Self::note_foreign(subscription, foreign);
        if wanted {
            self.wake.notify_one();
        }
        if let Some(error) = failed {
            self.note_unmarked(subscription, unmarked.len(), &error);
        }
        Ok(unmarked)
    }

    fn note_foreign(subscription: &Subscription, foreign: usize) {
        if foreign > 0 {
            let text = format!(
                "idempotency: {foreign} messages were handled here after the lease of their mark had ended and another \
                 consumer had begun to handle them too; make lease longer than a stall of this process may last"
            );
            subscription.log(Level::Warning, &text);
        }
    }

    fn note_unmarked(&self, subscription: &Subscription, entries: usize, error: &Error) {
        subscription.stats.mark_errors.add(1);
        let before = std::mem::replace(&mut self.ledger.lock().refusing, true);
        if !before {
            subscription.post_state(State::Retrying(error.clone()));
        }
        subscription.log_paced(&self.quiet, Level::Warning, || format!("idempotency: the store failed, {entries} handled entries are not marked as done and stay pending until \
                 they are: {error}"));
    }

    /// One step for all of these; where it fails as a whole it has failed for each.
    async fn step_each(&self, subscription: &Subscription, step: MarkStep, keys: &[MarkKey]) -> Vec<Result<MarkState>> {
        self.step(subscription, step, keys).await.unwrap_or_else(|error| vec![Err(error); keys.len()])
    }

    /// Mark what could not be marked before, and acknowledge it then.
    pub(super) async fn finish_rest(&self, subscription: &Subscription) -> bool {
        let rest = std::mem::take(&mut self.ledger.lock().unfinished);
        if rest.is_empty() {
            return true;
        }
        let keys: Vec<_> = rest.iter().map(|(key, _)| Arc::clone(key)).collect();
        let states = self.step_each(subscription, MarkStep::Finish(self.settings.ttl), &keys).await;
        let (mut acks, mut failed) = (Vec::new(), None);
        let unmarked = {
            let mut ledger = self.ledger.lock();
            for ((key, token), state) in rest.into_iter().zip(states) {
                if let Err(error) = state {
                    failed.get_or_insert(error);
                    ledger.unfinished.push((key, token));
                    continue;
                }
                ledger.free(&key);
                if let Some(token) = token {
                    ledger.by_entry.remove(&token.id());
                    acks.push(token);
                }
            }
            ledger.unfinished.len()
        };
        subscription.settler.again(&mut acks);
        let Some(error) = failed else {
            let mut ledger = self.ledger.lock();
            let well = ledger.unfinished.is_empty() && std::mem::take(&mut ledger.refusing) && !ledger.failing;
            drop(ledger);
            if well {
                subscription.post_state(State::Reading);
            }
            return true;
        };
        self.note_unmarked(subscription, unmarked, &error);
        // One that is refused is asked for again with the next look, and holds up nothing else.
        !error.is_lost()
    }

    /// Take marks away. What fails is tried again until its lease would have ended.
    pub(super) async fn release_rest(&self, subscription: &Subscription) -> bool {
        if self.ledger.lock().releasing.is_empty() {
            return true;
        }
        let _order = self.order.lock().await;
        let mut taken = Taken { marks: self, releasing: std::mem::take(&mut self.ledger.lock().releasing) };
        let keys: Vec<_> = taken.releasing.iter().map(|(key, _)| Arc::clone(key)).collect();
        let states = self.step_each(subscription, MarkStep::Release, &keys).await;
        let lease = u64::try_from(self.settings.lease.as_millis()).unwrap_or(u64::MAX);
        let now = subscription.clock.now_ms();
        let (mut wanted, mut failed) = (false, 0);
        let releasing = std::mem::take(&mut taken.releasing);
        let mut ledger = self.ledger.lock();
        for ((key, since), state) in releasing.into_iter().zip(states) {
            failed += usize::from(state.is_err());
            let since = since.unwrap_or(now);
            if state.is_ok() || now.saturating_sub(since) >= lease {
                wanted |= ledger.free(&key);
            } else {
                ledger.releasing.push((key, Some(since)));
            }
        }
        drop(ledger);
        if wanted || failed > 0 {
            self.wake.notify_one();
        }
        subscription.stats.mark_errors.add(failed.min(1));
        failed == 0
    }

    /// Take away the marks of entries that are handed back.
    pub(super) async fn hand_back(&self, subscription: &Subscription, tokens: &[Token]) {
        for token in tokens {
            self.left(token.id());
        }
        self.release_soon(subscription).await;
    }

    /// Take marks away that have to go before a stop, unless that takes too long: a store that hangs holds up nothing.
    async fn release_soon(&self, subscription: &Subscription) {
        tokio::select! {
            biased;
            _ = self.release_rest(subscription) => {}
            () = subscription.clock.sleep(PATIENCE) => {}
        }
    }

    /// An entry was left pending: its mark is taken away soon.
    pub(super) fn left(&self, id: EntryId) {
        let mut ledger = self.ledger.lock();
        if let Some(key) = ledger.by_entry.remove(&id) {
            ledger.releasing.push((key, None));
            drop(ledger);
            self.wake.notify_one();
        }
    }

    /// A message was handled whose entry is another consumer's by now: the mark tells that one not to do it again.
    pub(super) fn handled(&self, id: EntryId) {
        let mut ledger = self.ledger.lock();
        if let Some(key) = ledger.by_entry.remove(&id) {
            ledger.unfinished.push((key, None));
            drop(ledger);
            self.wake.notify_one();
        }
    }

    /// Renew the marks of what is held here, and take away those of what is not.
    pub(super) async fn renew(&self, subscription: &Subscription) -> Result<()> {
        let held: HashSet<_> = subscription.held.tokens().iter().map(Token::id).collect();
        let order = self.order.lock().await;
        let keys: Vec<_> = {
            let mut ledger = self.ledger.lock();
            let Ledger { by_entry, releasing, .. } = &mut *ledger;
            releasing.extend(by_entry.extract_if(|id, _| !held.contains(id)).map(|(_, key)| (key, None)));
            by_entry.values().cloned().collect()
        };
        let states = self.step(subscription, MarkStep::Renew(self.settings.lease), &keys).await?;
        drop(order);
        states.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }
}
