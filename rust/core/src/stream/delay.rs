//! Hands over what was delayed when it is due, by a timer of its own: copies go back into the stream, parked entries
//! to the lanes.

use std::sync::Arc;
use std::time::Duration;

use super::overtaken::Open;
use super::{Mode, StreamSource, admit};
use crate::backoff::Quiet;
use crate::batch::Origin;
use crate::error::{Error, Result};
use crate::event::Level;
use crate::store::{Due, Look};
use crate::subscription::Subscription;

/// Members looked at per step.
const LIMIT: usize = 100;
/// How often to look for entries that another process delayed before it died.
const POLL: Duration = Duration::from_secs(1);
/// A look over members that stay rests at least so many times as long as it took.
const REST: u64 = 10;

/// What a look at all that is due leaves to wait for.
struct Rest {
    wait: Duration,
    /// Parked entries that are due and had no room.
    waiting: usize,
}

/// Hand over until the subscription is closed.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    let quiet = Quiet::default();
    let mut backoff = source.settings.reconnect.clone();
    loop {
        let delayed = source.group.delayed.notified();
        tokio::pin!(delayed);
        // What is delayed while the server is asked must not be missed.
        delayed.as_mut().enable();
        let rest = match pass(source, subscription).await {
            Ok(rest) => {
                backoff.reset();
                rest
            }
            Err(error) => {
                subscription
                    .log_paced(&quiet, Level::Warning, || format!("handing over delayed entries failed: {error}"));
                Rest { wait: backoff.wait(), waiting: 0 }
            }
        };
        let room = async {
            if rest.waiting == 0 {
                std::future::pending::<()>().await;
            }
            // A few together, where many wait: each look costs the server a script.
            subscription.credits.wait(rest.waiting.min(source.settings.count.div_ceil(8))).await;
        };
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = delayed => {}
            () = room => {}
            () = subscription.clock.doze(rest.wait) => {}
        }
    }
}

/// Whether parked entries are to be taken over now. A `new` subscription leaves them to those that recover.
fn takes(source: &StreamSource, subscription: &Subscription) -> bool {
    source.settings.mode != Mode::New && !subscription.stop.is_cancelled() && !source.is_stalled()
}

/// Forget what was parked in a group before it was lost: entries that it gives out once more are not delayed.
pub(super) async fn unpark(source: &StreamSource, origin: &Origin) -> Result<()> {
    let mut offset = 0;
    loop {
        match source.store.unpark(origin, &source.settings.delay_key, offset, LIMIT).await {
            Ok(Some(stay)) => offset += stay,
            // What else the server refuses about this key is said by the timer.
            Ok(None) | Err(Error::Server(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Hand over what is due, as far as there is room for it.
async fn pass(source: &StreamSource, subscription: &Arc<Subscription>) -> Result<Rest> {
    let begun = subscription.clock.now_ms();
    let mut offset = 0;
    loop {
        let takes = takes(source, subscription);
        let due = step(source, subscription, offset, takes).await?;
        offset += due.passed;
        let waiting = if takes { due.waiting } else { 0 };
        if due.seen == LIMIT && waiting == 0 {
            continue;
        }
        let took = subscription.clock.now_ms().saturating_sub(begun);
        let pace = if due.passed == 0 { Duration::ZERO } else { Duration::from_millis(took * REST) };
        return Ok(Rest { wait: due.next.unwrap_or(POLL).max(pace).min(POLL), waiting });
    }
}

async fn step(source: &StreamSource, subscription: &Arc<Subscription>, offset: usize, takes: bool) -> Result<Due> {
    // What is being parked here is held until that was answered, and must not come back before.
    let parking = source.group.parking.lock().await;
    let room = if takes { subscription.credits.room().min(source.settings.count) } else { 0 };
    let look = Look { limit: LIMIT, room, offset, keeps_bodiless: source.settings.dead_letter.is_some() };
    let read_ms = subscription.clock.now_ms();
    let _open = Open::new(&source.group);
    let delay_key = &source.settings.delay_key;
    let mut due = source.store.due(&subscription.origin, delay_key, look, source.settings.by_key).await?;
    // What follows may wait for a store of the user's, and no settler is to wait for that.
    drop(parking);
    if due.strange > 0 {
        let text = format!(
            "{} members of the sorted set {delay_key} are no delayed entries of ours; they were given the score +inf \
             and stay there: keep other data out of it, or choose another delay_key",
            due.strange
        );
        subscription.log(Level::Error, &text);
    }
    admit::note_bodiless(source, subscription, due.deleted.len(), None);
    let raw = admit::sifted(source, subscription, std::mem::take(&mut due.raw)).await?;
    if subscription.stop.is_cancelled() {
        // The stop has given back what was queued: this would come after it.
        let entries: Vec<_> = raw.slots.iter().map(|slot| (slot.id, slot.earlier)).collect();
        if !entries.is_empty() {
            let released = source.store.release(&subscription.origin, &entries).await?;
            subscription.stats.released.add(released);
        }
    } else {
        admit::take_in(source, subscription, raw, read_ms).await;
    }
    Ok(due)
}
