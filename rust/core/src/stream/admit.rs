//! Taking a read in: what is held already, gone, or meant for another group does not reach a lane.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Mode, StreamSource, settlement};
use crate::batch::{Batch, RawBatch};
use crate::entry::{EntryId, Slot};
use crate::error::Result;
use crate::event::Level;
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
    Ok(take_in(subscription, raw, read_ms))
}

/// Hand a sifted read to the lanes. Returns how many entries there are.
pub(super) fn take_in(subscription: &Subscription, raw: RawBatch, read_ms: u64) -> usize {
    let taken = raw.slots.len();
    subscription.take_in(Batch::new(raw, Arc::clone(&subscription.origin), read_ms));
    taken
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
        let unwanted = sift(source, subscription, &mut raw);
        if !unwanted.is_empty() {
            source.store.settle(&subscription.origin, &unwanted, &[], &source.settings.delay_key).await?;
        }
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

/// Remove what must not be handled here. Returns the ids that are to be acknowledged unseen.
fn sift(source: &StreamSource, subscription: &Subscription, raw: &mut RawBatch) -> Vec<EntryId> {
    let origin = &subscription.origin;
    let bytes = raw.bytes.clone();
    let mut unwanted = Vec::new();
    let mut deleted = 0;
    raw.slots.retain(|slot| {
        if slot.deleted {
            deleted += 1;
            unwanted.push(slot.id);
            return false;
        }
        if slot.copy_of.is_some() && slot.copy_of.of(&bytes) != origin.group.as_bytes() {
            subscription.stats.foreign_copies.add(1);
            unwanted.push(slot.id);
            return false;
        }
        if let Some(held) = source.group.find(slot.id) {
            subscription.stats.duplicates.add(1);
            // One that was given up stays so: its handler's outcome is not taken any more.
            if !held.is_lost() {
                source.group.adopt(slot.id, Arc::clone(origin), slot.earlier.saturating_add(1));
            }
            return false;
        }
        if source.group.settled_over(slot.id) {
            subscription.stats.duplicates.add(1);
            unwanted.push(slot.id);
            return false;
        }
        true
    });
    note_deleted(subscription, deleted);
    unwanted
}

/// Count and log pending entries whose body is gone.
pub(super) fn note_deleted(subscription: &Subscription, deleted: usize) {
    if deleted > 0 {
        subscription.stats.deleted.add(deleted);
        subscription.log(
            Level::Warning,
            &format!("{deleted} pending entries have no body any more (deleted or trimmed); acknowledged"),
        );
    }
}
