//! Taking a read in: what is held already, gone, or meant for another group does not reach a lane.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Mode, StreamSource, settlement};
use crate::batch::{Batch, RawBatch};
use crate::entry::{EntryId, Slot};
use crate::error::{Error, Result};
use crate::event::Level;
use crate::inbox::Arrival;
use crate::letter::{Letter, Reason};
use crate::order::{Action, Order, Verdict};
use crate::store::Parked;
use crate::subscription::Subscription;

/// Take in what was read at `read_ms` of the clock. Returns how many entries reach the lanes.
pub(super) async fn admit(
    source: &StreamSource,
    subscription: &Subscription,
    raw: RawBatch,
    read_ms: u64,
) -> Result<usize> {
    let mut raw = sifted(source, subscription, raw).await?;
    park_again(source, subscription, &mut raw).await?;
    subscription.stats.claimed.add(raw.slots.iter().filter(|slot| slot.earlier > 0).count());
    Ok(take_in(source, subscription, raw, read_ms).await)
}

/// Hold a sifted read, and hand it on, each message once its mark is ours. Returns how many entries there are.
pub(super) async fn take_in(source: &StreamSource, subscription: &Subscription, raw: RawBatch, read_ms: u64) -> usize {
    let taken = raw.slots.len();
    if taken == 0 {
        return 0;
    }
    let batch = Batch::new(raw, Arc::clone(&subscription.origin), read_ms);
    subscription.hold(&batch);
    match &source.marks {
        None => hand_on(source, subscription, Arrival::Batch(batch)),
        Some(marks) => marks.take(source, subscription, batch).await,
    }
    taken
}

/// Hand what is held to the lanes, or to the gate before them.
pub(super) fn hand_on(source: &StreamSource, subscription: &Subscription, arrival: Arrival) {
    match &source.gate {
        Some(gate) if arrival.any(|slot| gate.concerns(slot)) => {
            gate.pass(subscription, arrival.tokens());
        }
        _ => subscription.hand_over(arrival),
    }
}

/// What of a read is to be handled here. The rest is settled unseen, or held already.
pub(super) async fn sifted(source: &StreamSource, subscription: &Subscription, mut raw: RawBatch) -> Result<RawBatch> {
    let (Some(first), Some(last)) =
        (raw.slots.iter().map(|slot| slot.id).min(), raw.slots.iter().map(|slot| slot.id).max())
    else {
        return Ok(raw);
    };
    let fresh = source.group.advance(first, last);
    // One look per batch settles it for nearly all: only claimed entries, copies and a moved cursor need more.
    let ordinary = |slot: &Slot| slot.earlier == 0 && !slot.deleted && !slot.copy_of.is_some();
    if !(fresh && raw.slots.iter().all(ordinary)) {
        source.foreign.adopt(source, subscription, &mut raw).await?;
        let (unwanted, bodiless) = sift(source, subscription, &mut raw);
        remove(source, subscription, unwanted, bodiless).await?;
    }
    Ok(raw)
}

/// Leave out what was claimed before its delay has passed: it is parked again. One look for all that was claimed.
async fn park_again(source: &StreamSource, subscription: &Subscription, raw: &mut RawBatch) -> Result<()> {
    // Nobody would hand it over later where pending entries are not recovered.
    if source.settings.mode == Mode::New {
        return Ok(());
    }
    let claimed: Vec<_> = raw.slots.iter().filter(|slot| slot.earlier > 0).copied().collect();
    for some in claimed.chunks(settlement::CHUNK) {
        let parked = source.store.early(&subscription.origin, &source.settings.delay_key, some).await?;
        if parked.is_empty() {
            continue;
        }
        let parked: HashMap<_, _> = parked.into_iter().collect();
        raw.slots.retain_mut(|slot| match parked.get(&slot.id) {
            None => true,
            Some(Parked::Due(idle_ms)) => {
                slot.idle_ms = *idle_ms;
                true
            }
            Some(Parked::Early) => false,
        });
    }
    Ok(())
}

/// Remove what must not be handled here. Returns the ids that are to be acknowledged unseen, and the slots of entries
/// whose body is gone.
fn sift(source: &StreamSource, subscription: &Subscription, raw: &mut RawBatch) -> (Vec<EntryId>, Vec<Slot>) {
    let origin = &subscription.origin;
    let mut unwanted: Vec<_> = source.foreign.leave_out(subscription, raw).iter().map(|slot| slot.id).collect();
    let again = raw.slots.iter().filter(|slot| slot.earlier > 0).map(|slot| slot.id);
    let acked = source.group.overtaken.find(again);
    let mut bodiless = Vec::new();
    raw.slots.retain(|slot| {
        if slot.deleted {
            bodiless.push(*slot);
            return false;
        }
        if let Some(held) = source.group.find(slot.id) {
            subscription.stats.duplicates.add(1);
            // One that was given up stays so: its handler's outcome is not taken any more.
            if !held.is_lost() {
                // A reply that was long on its way says less than what was done about the entry since.
                let count = slot.earlier.saturating_add(1).max(held.server_count());
                source.group.adopt(slot.id, Arc::clone(origin), count);
            }
            return false;
        }
        if slot.earlier > 0 && acked.contains(&slot.id) {
            subscription.stats.duplicates.add(1);
            return false;
        }
        if source.group.settled_over(slot.id) {
            subscription.stats.duplicates.add(1);
            unwanted.push(slot.id);
            return false;
        }
        // What an earlier delivery was taken over under says nothing about this one.
        source.group.forget_adopted(slot.id);
        true
    });
    (unwanted, bodiless)
}

/// Take off the pending list what must not be handled: unseen, or with a letter in its place where its body is gone.
async fn remove(
    source: &StreamSource,
    subscription: &Subscription,
    mut unwanted: Vec<EntryId>,
    bodiless: Vec<Slot>,
) -> Result<()> {
    let (origin, deleted) = (&subscription.origin, bodiless.len());
    let mut orders = Vec::new();
    if let Some(to) = &source.settings.dead_letter {
        let raw = RawBatch { slots: bodiless, ..RawBatch::default() };
        for token in Batch::new(raw, Arc::clone(origin), 0).tokens() {
            let (owner, count) = (Arc::clone(origin), token.server_count());
            orders.push(Order {
                token,
                owner,
                count,
                exact: true,
                action: Action::Bury(Letter::new(to, Reason::Deleted, None)),
                attempts: None,
            });
        }
    } else {
        unwanted.extend(bodiless.iter().map(|slot| slot.id));
    }
    if unwanted.is_empty() && orders.is_empty() {
        return Ok(());
    }
    let verdicts = source.store.settle(origin, &unwanted, &orders, source.side_keys(&[])).await?;
    let mut refused: Option<(usize, Error)> = None;
    for verdict in verdicts {
        if let Verdict::Refused(error) = verdict {
            refused = Some((refused.map_or(1, |(refused, _)| refused + 1), error));
        }
    }
    let kept = refused.as_ref().map_or(0, |(refused, _)| *refused);
    note_bodiless(source, subscription, deleted - kept, refused);
    Ok(())
}

/// Count and log pending entries whose body is gone: those that are off the list now, and those that have to stay since
/// the server refused their letter.
pub(super) fn note_bodiless(
    source: &StreamSource,
    subscription: &Subscription,
    deleted: usize,
    refused: Option<(usize, Error)>,
) {
    let letters = source.settings.dead_letter.as_deref();
    if deleted > 0 {
        subscription.stats.deleted.add(deleted);
        if letters.is_some() {
            subscription.stats.dead_lettered.add(deleted);
        }
        subscription.log_paced(&source.bodiless, Level::Warning, || {
            let what = letters.map_or("acknowledged".into(), |letters| format!("dead-lettered to {letters}"));
            format!("{deleted} pending entries have no body any more (deleted or trimmed); {what}")
        });
    }
    if let Some((kept, error)) = refused {
        subscription.stats.refused.add(kept);
        subscription.log_paced(&source.refusals, Level::Error, || {
            format!(
                "the server refused the dead letters of {kept} pending entries that have no body any more, they stay \
                 pending: {error}"
            )
        });
    }
}
