//! Keeps what is queued or running from being taken over while this process lives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{StreamSource, claims, settlement};
use crate::backoff::Quiet;
use crate::batch::{Batch, Mark, Origin};
use crate::error::Result;
use crate::event::Level;
use crate::subscription::Subscription;
use crate::token::Token;

/// A renewal is due after this part of `min_idle`; with the time it takes, no entry gets older than a third.
const PART: u32 = 6;
/// How often to look whether a recoverer has come, where none is known.
const NO_RECOVERER: Duration = Duration::from_secs(1);
/// An event loop that has not turned for this many times `min_idle` has its entries given up.
const STALLED: u32 = 20;

/// Renew until the subscription is closed.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    let quiet = Quiet::default();
    let mut backoff = source.settings.reconnect.clone();
    loop {
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = subscription.held.any() => {}
        }
        let Some(min_idle) = source.min_idle() else {
            tokio::select! {
                biased;
                () = subscription.closed.cancelled() => return,
                () = subscription.clock.doze(NO_RECOVERER) => {}
            }
            continue;
        };
        let tick = (min_idle / PART).max(Duration::from_millis(1));
        if !subscription.pause(tick).await {
            return;
        }
        let tick_ms = u64::try_from(tick.as_millis()).unwrap_or(u64::MAX);
        if is_stalled(source, subscription, min_idle, tick_ms) {
            give_up(source, subscription, min_idle).await;
            continue;
        }
        let Err(error) = renew(source, subscription, tick_ms).await else {
            backoff.reset();
            continue;
        };
        subscription.log_paced(&quiet, Level::Warning, || format!("renewing entries failed, trying again: {error}"));
        if !subscription.pause(backoff.wait()).await {
            return;
        }
    }
}

/// Renew all batches last refreshed at least `age_ms` ago.
pub(super) async fn renew(source: &StreamSource, subscription: &Subscription, age_ms: u64) -> Result<()> {
    for batch in subscription.held.batches() {
        let now = subscription.clock.now_ms();
        if now.saturating_sub(batch.refreshed_ms()) < age_ms {
            continue;
        }
        let held: Vec<Token> = batch.tokens().filter(|token| token.mark() != Mark::Done && !token.is_lost()).collect();
        for (owner, tokens) in by_owner(source, subscription, held) {
            for chunk in tokens.chunks(settlement::CHUNK) {
                renew_chunk(source, subscription, &owner, chunk).await?;
            }
        }
        batch.refresh(now);
    }
    Ok(())
}

/// What is held, by the name it is pending under: another subscription of this process may have claimed some of it.
fn by_owner(source: &StreamSource, subscription: &Subscription, held: Vec<Token>) -> Vec<(Arc<Origin>, Vec<Token>)> {
    let (adopted, own): (Vec<_>, Vec<_>) =
        held.into_iter().partition(|token| source.group.adopted(token.id()).is_some());
    let mut groups = vec![(Arc::clone(&subscription.origin), own)];
    for token in adopted {
        if let Some((owner, _)) = source.group.adopted(token.id()) {
            groups.push((owner, vec![token]));
        }
    }
    groups
}

async fn renew_chunk(
    source: &StreamSource,
    subscription: &Subscription,
    owner: &Arc<Origin>,
    chunk: &[Token],
) -> Result<()> {
    let ids: Vec<_> = chunk.iter().map(Token::id).collect();
    let taken = source.store.renew(owner, &ids).await?;
    if taken.is_empty() {
        return Ok(());
    }
    claims::await_claims(source, subscription, &taken).await;
    let is_elsewhere = |token: &&Token| {
        let claimed = source.group.adopted(token.id()).is_some_and(|(claimer, _)| claimer != *owner);
        taken.contains(&token.id()) && !claimed && token.mark() != Mark::Done
    };
    // Those whose outcome is on its way as well: the renewal of their neighbours must not make them look young enough to
    // be acked unchecked.
    let lost: Vec<_> = chunk.iter().filter(is_elsewhere).cloned().collect();
    if !lost.is_empty() {
        subscription.lose(&lost);
        let text = format!("{} entries were taken over by another consumer while they were held here", lost.len());
        subscription.log(Level::Warning, &text);
    }
    Ok(())
}

/// Whether the event loop has not turned for longer than is allowed. Asks only while something is held.
fn is_stalled(source: &StreamSource, subscription: &Subscription, min_idle: Duration, tick_ms: u64) -> bool {
    let now = subscription.clock.now_ms();
    let aged = |batch: &Arc<Batch>| now.saturating_sub(batch.refreshed_ms()) >= tick_ms;
    let held = subscription.held.batches().iter().any(aged);
    // A stopped clock stands still while the loop is busy, and says nothing about how long that took.
    let stalled =
        held && !subscription.clock.is_stopped() && subscription.events.stalled() >= allowed(source, min_idle);
    if source.stalled.swap(stalled, Ordering::AcqRel) != stalled {
        source.group.count_stalled(stalled);
    }
    stalled
}

fn allowed(source: &StreamSource, min_idle: Duration) -> Duration {
    source.settings.renew_stalled.unwrap_or(min_idle * STALLED)
}

/// Give up what is held: another process must be able to go on. Nothing more is read until the loop turns again, or
/// the very next claim would bring the same entries back here.
async fn give_up(source: &StreamSource, subscription: &Subscription, min_idle: Duration) {
    let held = subscription.held.tokens();
    let held: Vec<_> = held.into_iter().filter(|token| token.mark() != Mark::Settled && !token.is_lost()).collect();
    if held.is_empty() {
        return;
    }
    if let Err(error) = source.store.unblock(source.reader.load(Ordering::Acquire)).await {
        subscription.log(Level::Debug, &format!("the blocked read could not be ended: {error}"));
    }
    subscription.lose(&held);
    let text = format!(
        "the event loop has not turned for more than {:.1} s (renew_stalled): {} entries are given up; look for a \
         blocking call in a handler",
        allowed(source, min_idle).as_secs_f64(),
        held.len()
    );
    subscription.log(Level::Error, &text);
}
