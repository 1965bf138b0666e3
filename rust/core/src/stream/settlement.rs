//! Carries outcomes out: plain acks while that is safe, owner-checked orders where it is not.

use std::sync::Arc;
use std::time::Duration;

use super::{StreamSource, claims, starts};
use crate::backoff::growing;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::event::Level;
use crate::order::{Action, Order, Verdict};
use crate::refused::refused as refusal_of;
use crate::settle::{Outcome, Work};
use crate::source::Source;
use crate::subscription::Subscription;
use crate::token::Token;

/// Ids per command: a script on so many takes the server about a millisecond.
pub(super) const CHUNK: usize = 500;
/// What `min_idle` is taken for where nobody here has said when entries are recovered. A recoverer that is quicker than
/// this would take entries from under every consumer; a busy one acks within milliseconds and is not slowed by it.
const UNKNOWN_MIN_IDLE: Duration = Duration::from_millis(200);

/// Carry out all of `work`, or leave it as it is when the connection is lost on the way.
pub(super) async fn carry_out(source: &StreamSource, subscription: &Subscription, work: &mut Work) -> Result<()> {
    if let Some(marks) = &source.marks {
        marks.settle(subscription, work).await?;
    }
    let (mut plain, mut orders) = split(source, subscription, work);
    let mut left = Vec::new();
    for (token, outcome) in &work.others {
        match outcome {
            _ if is_left(source, outcome) => left.push(token.clone()),
            Outcome::Retry(delay) => {
                let action = retry_action(source, token, *delay, work.resend);
                orders.push(order(source, subscription, token, action));
            }
            Outcome::Reply(reply) => {
                orders.push(order(source, subscription, token, Action::Reply(Arc::clone(reply))));
            }
            Outcome::DeadLetter(letter) => {
                orders.push(order(source, subscription, token, Action::Bury(Arc::clone(letter))));
            }
            Outcome::Ack | Outcome::Drop | Outcome::Leave => {
                orders.push(order(source, subscription, token, Action::Ack));
            }
        }
    }
    if let Some(gate) = &source.gate {
        // Before anything else: what is sent again after a loss writes the same marks.
        let parked = orders.iter().filter(|order| is_parked(order));
        let ended = parked.map(|order| &order.token).chain(&left);
        starts::note_ends(source, subscription, gate, &gate.ended(ended)).await?;
    }
    // What is parked is held until that was answered: the timer must not bring it back before.
    let parks = orders.iter().any(is_parked);
    let parking = if parks { Some(source.group.parking.lock().await) } else { None };
    subscription.stats.settles.add(plain.len().div_ceil(1000) + orders.len());
    let settled = orders.iter().filter(|order| !is_parked(order)).map(|order| &order.token);
    let marked = source.gate.as_ref().map(|gate| gate.marked(work.acks.iter().chain(settled))).unwrap_or_default();
    let side = source.side_keys(&marked);
    let mut verdicts = claims::send(source, subscription, &plain, &mut orders, side).await?;
    mind_lost_group(source, &orders, &mut verdicts);
    if let Some(marks) = &source.marks
        && orders.iter().any(|order| matches!(order.action, Action::Reply(_)))
    {
        marks.replied(subscription, &orders, &verdicts).await;
    }
    let work = std::mem::take(work);
    count(source, subscription, &work, &verdicts);
    let refused = note_failed(source, subscription, &orders, &verdicts);
    subscription.unwatch(&refused);
    let failed = source.gate.as_ref().map(|gate| {
        let refused = orders.iter().zip(&verdicts).filter(|(_, verdict)| matches!(verdict, Verdict::Refused(_)));
        let ends = |order: &Order| matches!(order.action, Action::Bury(_) | Action::Ack);
        gate.note_refused(refused.clone().filter(|(order, _)| ends(order)).map(|(order, _)| order.token.id()));
        (gate, gate.ended(refused.map(|(order, _)| &order.token)))
    });
    let others = work.others.into_iter().filter(|(_, outcome)| !is_left(source, outcome));
    let others: Vec<_> = others.map(|(token, _)| token).collect();
    // What is gone where it was sent again went with the first sending.
    let is_off = |verdict: &Verdict| *verdict == Verdict::Done || work.resend && *verdict == Verdict::Gone;
    let off = orders.iter().zip(&verdicts).filter(|(order, verdict)| is_off(verdict) && !is_parked(order));
    plain.extend(off.map(|(order, _)| order.token.id()));
    source.group.overtaken.acked(plain);
    source.group.acked(&work.acks);
    source.group.acked(&others);
    // Before they are let go: a group that is made again meanwhile begins before what is held or was left.
    for token in &left {
        source.left(token);
    }
    for (order, verdict) in orders.iter().zip(&verdicts) {
        let parked = is_parked(order) && *verdict == Verdict::Done;
        if parked || matches!(verdict, Verdict::Refused(_)) {
            source.group.left(&order.token);
        }
    }
    subscription.complete(&work.acks);
    subscription.complete(&left);
    if !others.is_empty() {
        subscription.complete(&others);
    }
    drop(parking);
    if parks || orders.iter().any(|order| matches!(order.action, Action::Delay(_))) {
        source.group.delayed.notify_waiters();
    }
    for token in orders.iter().map(|order| &order.token).chain(&left) {
        source.group.forget_adopted(token.id());
    }
    if let Some((gate, ended)) = failed {
        // Their handlers ended all the same. Where this is lost, they count as ones that did not.
        let _ = starts::note_ends(source, subscription, gate, &ended).await;
    }
    Ok(())
}

/// Whether it stays pending when it is carried out. What runs again is not sent from here.
const fn is_parked(order: &Order) -> bool {
    matches!(order.action, Action::Park { .. })
}

/// An entry whose group was lost is gone without its outcome: the group that is made again gives it out once more. An ack
/// had nothing else to do.
pub(super) fn mind_lost_group(source: &StreamSource, orders: &[Order], verdicts: &mut [Verdict]) {
    for (order, verdict) in orders.iter().zip(verdicts) {
        if *verdict == Verdict::Gone && order.action != Action::Ack && source.group.is_held_over(order.token.id()) {
            *verdict = Verdict::Refused(Error::NoGroup("its group was lost".into()));
        }
    }
}

/// Whether nothing is sent for an entry with this outcome: it stays pending as it is.
fn is_left(source: &StreamSource, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Leave => true,
        Outcome::Retry(delay) => delay.is_none() && source.retries_in_place(),
        Outcome::Ack | Outcome::Drop | Outcome::Reply(_) | Outcome::DeadLetter(_) => false,
    }
}

/// How long after it was read or renewed nobody else gets an entry, in milliseconds.
pub(super) fn safe_ms(source: &StreamSource) -> u64 {
    let safe = source.min_idle().unwrap_or(UNKNOWN_MIN_IDLE) / 2;
    u64::try_from(safe.as_millis()).unwrap_or(u64::MAX)
}

/// Acks that may go unchecked, and orders for the rest: late ones, resent ones, copies, those that changed hands.
fn split(source: &StreamSource, subscription: &Subscription, work: &Work) -> (Vec<EntryId>, Vec<Order>) {
    let now = subscription.clock.now_ms();
    let safe_ms = safe_ms(source);
    let mut orders = Vec::new();
    let mut plain = Vec::with_capacity(work.acks.len());
    for token in &work.acks {
        let young = now.saturating_sub(token.batch().refreshed_ms()) < safe_ms;
        let ours = !token.is_lost() && source.group.adopted(token.id()).is_none();
        if young && ours && !work.resend {
            plain.push(token.id());
        } else {
            orders.push(order(source, subscription, token, Action::Ack));
        }
    }
    (plain, orders)
}

/// Under which name an entry is pending, and at which count.
pub(super) fn standing(source: &StreamSource, subscription: &Subscription, token: &Token) -> (Arc<Origin>, u32) {
    let read = || (Arc::clone(&subscription.origin), token.server_count());
    source.group.adopted(token.id()).unwrap_or_else(read)
}

pub(super) fn order(source: &StreamSource, subscription: &Subscription, token: &Token, action: Action) -> Order {
    let (owner, count) = standing(source, subscription, token);
    let attempts = source.gate.as_ref().map(|gate| gate.used(token));
    let exact = source.settings.fixed_consumer;
    Order { token: token.clone(), owner, count, exact, action, attempts }
}

fn retry_action(source: &StreamSource, token: &Token, delay: Option<Duration>, resent: bool) -> Action {
    let retries = token.slot().retries;
    match delay {
        Some(delay) if source.retries_in_place() => Action::Park { delay, resent },
        Some(delay) if delay.is_zero() => Action::Copy,
        Some(delay) => Action::Delay(delay),
        None if retries == 0 => Action::Copy,
        None => Action::Delay(growing(retries)),
    }
}

fn count(source: &StreamSource, subscription: &Subscription, work: &Work, verdicts: &[Verdict]) {
    let stats = &subscription.stats;
    // Those that are left were counted when they were given.
    let sent: Vec<_> = work.others.iter().map(|(_, outcome)| outcome).filter(|it| !is_left(source, it)).collect();
    let (checked, others) = verdicts.split_at(verdicts.len().saturating_sub(sent.len()));
    let ended = |verdict: &Verdict| matches!(verdict, Verdict::Done | Verdict::Gone);
    let acked = work.acks.len().saturating_sub(checked.iter().filter(|verdict| !ended(verdict)).count());
    let (mut retried, mut dropped, mut replied, mut dead_lettered) = (0, 0, 0, 0);
    for (outcome, verdict) in sent.into_iter().zip(others) {
        match outcome {
            Outcome::Retry(_) => retried += 1,
            // A reply that was sent again finds its entry gone: it went with the first sending.
            Outcome::Reply(_) => replied += usize::from(ended(verdict)),
            // One that is gone had its letter when it was sent before, and the reply was lost.
            Outcome::DeadLetter(_) => {
                dead_lettered += usize::from(*verdict == Verdict::Done || work.resend && *verdict == Verdict::Gone);
            }
            Outcome::Ack | Outcome::Drop | Outcome::Leave => dropped += usize::from(ended(verdict)),
        }
    }
    stats.retried.add(retried);
    stats.dropped.add(dropped);
    stats.replied.add(replied);
    stats.acked.add(acked + replied);
    stats.dead_lettered.add(dead_lettered);
}

/// Say what could not be carried out, in one line however many: these entries stay pending and come back by recovery.
/// Returns those that the server refused.
pub(super) fn note_failed(
    source: &StreamSource,
    subscription: &Subscription,
    orders: &[Order],
    verdicts: &[Verdict],
) -> Vec<Token> {
    let mut taken = Vec::new();
    let mut refused = Vec::new();
    let mut cause = None;
    for (order, verdict) in orders.iter().zip(verdicts) {
        match verdict {
            Verdict::Done | Verdict::Gone => {}
            Verdict::Taken => taken.push(order.token.clone()),
            Verdict::Refused(error) => {
                refused.push(order.token.clone());
                cause.get_or_insert((error, &order.action));
            }
        }
    }
    subscription.stats.refused.add(refused.len());
    if let Some((error, action)) = cause {
        subscription.log_paced(&source.refusals, Level::Error, || say_refused(&refused, error, action));
    }
    if !taken.is_empty() {
        subscription.lose(&taken);
        let text = format!(
            "{} entries were settled too late: another consumer owns them by now, nothing was removed ({})",
            taken.len(),
            some_ids(&taken)
        );
        subscription.log(Level::Warning, &text);
    }
    refused
}

/// What is said of outcomes that the server refused, by the first of them.
fn say_refused(refused: &[Token], error: &Error, action: &Action) -> String {
    let then = if matches!(error, Error::NoGroup(_)) {
        "they are delivered again once their group is made again, unless their stream is gone too"
    } else {
        "they stay pending"
    };
    let (to, error) = match action {
        Action::Bury(letter) => (format!("to dead-letter to {}", letter.to()), error.clone()),
        Action::Reply(reply) if !matches!(error, Error::NoGroup(_)) => {
            ("to settle".to_owned(), refusal_of(error.clone(), &reply.stream))
        }
        _ => ("to settle".to_owned(), error.clone()),
    };
    let (count, ids) = (refused.len(), some_ids(refused));
    format!("the server refused {to} {count} entries, {then}: {error} ({ids})")
}

/// The first ids of many, for a log line.
pub(super) fn some_ids(tokens: &[Token]) -> String {
    const SHOWN: usize = 10;
    let mut ids: Vec<_> = tokens.iter().take(SHOWN).map(|token| token.id().to_string()).collect();
    if tokens.len() > SHOWN {
        ids.push("...".into());
    }
    ids.join(", ")
}
