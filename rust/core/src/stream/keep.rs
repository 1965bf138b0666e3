//! Runs the head of a key again when its delay has passed. It was held and renewed all the time, so no other consumer
//! has it; only its count at the server goes up. The server is told when it is due where the wait is long enough for
//! someone else to get it before, should this process die.

use std::sync::Arc;
use std::time::Duration;

use super::{StreamSource, admit, claims, settlement, starts};
use crate::backoff::Quiet;
use crate::batch::{Batch, Mark};
use crate::event::Level;
use crate::kept::Head;
use crate::order::{Action, Verdict};
use crate::settle::Outcome;
use crate::subscription::Subscription;
use crate::token::Token;

/// Bring back what is due until the subscription is closed.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    loop {
        let changed = subscription.kept.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // What waits when the subscription stops is given its outcome there.
        if !subscription.stop.is_cancelled() {
            let due = subscription.kept.take_due(subscription.clock.now_ms());
            if !due.is_empty() {
                bring_back(source, subscription, due).await;
            }
            let safe_ms = settlement::safe_ms(source);
            let mut new = subscription.kept.take_new();
            new.retain(|head| head.due_ms.saturating_sub(head.token.batch().refreshed_ms()) > safe_ms);
            note(source, subscription, new).await;
        }
        let wait = async {
            match subscription.kept.next_ms().filter(|_| !subscription.stop.is_cancelled()) {
                Some(due) => {
                    let left = due.saturating_sub(subscription.clock.now_ms());
                    subscription.clock.sleep(Duration::from_millis(left)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = changed => {}
            () = wait => {}
        }
    }
}

/// Tell the server when these are due, and that their handlers ended. At a stop all are parked instead.
async fn note(source: &StreamSource, subscription: &Arc<Subscription>, heads: Vec<Head>) {
    let quiet = Quiet::default();
    let mut backoff = source.settings.reconnect.clone();
    for some in heads.chunks(settlement::CHUNK) {
        while let Err(error) = note_some(source, subscription, some).await {
            subscription.log_paced(&quiet, Level::Warning, || format!("noting due times must wait: {error}"));
            if !subscription.pause(backoff.wait()).await || subscription.stop.is_cancelled() {
                return;
            }
        }
    }
}

/// Of those that someone else has by now, and of those that are gone, their next run finds that out.
async fn note_some(
    source: &StreamSource,
    subscription: &Arc<Subscription>,
    heads: &[Head],
) -> crate::error::Result<()> {
    if let Some(gate) = &source.gate {
        let ended = gate.ended(heads.iter().map(|head| &head.token));
        starts::note_ends(source, subscription, gate, &ended).await?;
    }
    let now = subscription.clock.now_ms();
    let keep = |head: &Head| Action::Keep(Duration::from_millis(head.due_ms.saturating_sub(now)));
    let orders: Vec<_> =
        heads.iter().map(|head| settlement::order(source, subscription, &head.token, keep(head))).collect();
    let verdicts = source.store.settle(&subscription.origin, &[], &orders, source.side_keys(&[])).await?;
    let refused = verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Refused(error) => Some(error),
        Verdict::Done | Verdict::Gone | Verdict::Taken => None,
    });
    if let Some(error) = refused.clone().next() {
        let count = refused.count();
        subscription.log_paced(&source.refusals, Level::Error, || {
            format!(
                "the server refused the due times of {count} entries that wait here; they run in time, but come back \
                 after min_idle if this process dies before: {error}"
            )
        });
    }
    Ok(())
}

async fn bring_back(source: &StreamSource, subscription: &Arc<Subscription>, heads: Vec<Head>) {
    let (lost, heads): (Vec<_>, Vec<_>) = heads.into_iter().partition(|head| head.token.is_lost());
    for head in &lost {
        give_way(subscription, head);
    }
    let quiet = Quiet::default();
    let mut backoff = source.settings.reconnect.clone();
    for some in heads.chunks(settlement::CHUNK) {
        let mut resent = false;
        while let Err(error) = count(source, subscription, some, resent).await {
            resent = true;
            subscription.log_paced(&quiet, Level::Warning, || format!("running entries again must wait: {error}"));
            if !subscription.pause(backoff.wait()).await {
                return;
            }
        }
    }
}

/// Count one more delivery of each at the server, and hand over those that are still ours.
async fn count(
    source: &StreamSource,
    subscription: &Arc<Subscription>,
    heads: &[Head],
    resent: bool,
) -> crate::error::Result<()> {
    if let Some(gate) = &source.gate {
        let ended = gate.ended(heads.iter().map(|head| &head.token));
        starts::note_ends(source, subscription, gate, &ended).await?;
    }
    let again = || Action::Again { resent };
    let mut orders: Vec<_> =
        heads.iter().map(|head| settlement::order(source, subscription, &head.token, again())).collect();
    let mut verdicts = claims::send(source, subscription, &[], &mut orders, source.side_keys(&[])).await?;
    settlement::mind_lost_group(source, &orders, &mut verdicts);
    settlement::note_failed(source, subscription, &orders, &verdicts);
    for ((head, order), verdict) in heads.iter().zip(&orders).zip(&verdicts) {
        if *verdict != Verdict::Done {
            if matches!(verdict, Verdict::Refused(_)) {
                source.group.left(&head.token);
            }
            source.group.forget_adopted(head.token.id());
            give_way(subscription, head);
            continue;
        }
        if *order.owner != *subscription.origin {
            source.group.adopt(head.token.id(), Arc::clone(&order.owner), order.count.saturating_add(1));
        }
        subscription.stats.retried.add(1);
        let now = subscription.clock.now_ms();
        let raw = head.token.copied_alone(order.count, now.saturating_sub(head.since_ms), source.settings.by_key);
        if subscription.stop.is_cancelled() {
            // The stop has worked off or given back what was queued: this would come after it.
            let batch = Batch::new(raw, Arc::clone(&subscription.origin), now);
            subscription.hold(&batch);
            for token in batch.tokens().filter(Token::begin) {
                subscription.settle(&token, Outcome::Retry(Some(Duration::ZERO)));
            }
        } else {
            if let Some(gate) = &source.gate {
                gate.expect_head(head.token.id());
            }
            admit::take_in(source, subscription, raw, now).await;
        }
        subscription.let_go(&head.token);
    }
    Ok(())
}

/// It is not ours to run any more: a lane that finds it so goes on with the next of its key.
fn give_way(subscription: &Arc<Subscription>, head: &Head) {
    let raw = head.token.copied_alone(head.token.slot().earlier, 0, true);
    let batch = Batch::new(raw, Arc::clone(&subscription.origin), subscription.clock.now_ms());
    batch.tokens().for_each(|token| {
        token.lose();
    });
    subscription.take_in(batch);
    if head.token.mark() != Mark::Done {
        subscription.let_go(&head.token);
    }
}
