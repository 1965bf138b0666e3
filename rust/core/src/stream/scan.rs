//! Recovering by scanning the pending list, for servers without CLAIM: paced, and one scan per group and process.

use std::collections::HashSet;
use std::time::Duration;

use super::StreamSource;
use super::admit::{admit, note_bodiless};
use super::overtaken::Open;
use crate::entry::EntryId;
use crate::error::Result;
use crate::store::{Page, Pending};
use crate::subscription::Subscription;
use crate::token::Token;

/// A finished scan rests at least this many times as long as it took, so that scanning never becomes the load.
const REST: u32 = 50;

const LONGEST: Duration = Duration::from_secs(10);

/// Beside CLAIM a scan has only entries without a body to find, and rests so many times `min_idle`.
const CLEAN_UP: u32 = 5;

/// What a look at the scan came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// There is more of the list to see now.
    Again,
    /// Nothing to do before then.
    Rest(Duration),
}

/// Whether a step is due and nobody is at it.
pub(super) fn is_due(source: &StreamSource, now_ms: u64) -> bool {
    source.plan().scan && source.group.scan.try_lock().is_ok_and(|scan| scan.due_ms <= now_ms)
}

/// Take one step if one is due and no other subscription of this group is at it.
pub(super) async fn step(source: &StreamSource, subscription: &Subscription, min_idle: Duration) -> Result<Step> {
    let pause = if source.plan().claim {
        (min_idle * CLEAN_UP).clamp(Duration::from_secs(1), Duration::from_secs(300))
    } else {
        (min_idle / 10).clamp(Duration::from_millis(10), Duration::from_secs(1))
    };
    let Ok(mut scan) = source.group.scan.try_lock() else {
        return Ok(Step::Rest(pause));
    };
    let clock = &subscription.clock;
    let began_ms = clock.now_ms();
    if scan.due_ms > began_ms {
        return Ok(Step::Rest(Duration::from_millis(scan.due_ms - began_ms)));
    }
    let count = source.settings.count.min(subscription.credits.room());
    if count == 0 {
        return Ok(Step::Rest(pause));
    }
    let which = Pending::Idle(min_idle);
    let _open = Open::new(&source.group);
    let scanned = source.store.scan(&subscription.origin, &which, page(source, scan.cursor, count)).await?;
    note_bodiless(source, subscription, scanned.deleted.len(), scanned.refused);
    admit(source, subscription, scanned.raw, began_ms).await?;
    if let Some(cursor) = scanned.cursor {
        scan.cursor = cursor;
        return Ok(Step::Again);
    }
    scan.cursor = EntryId::ZERO;
    // A server that stood still makes one scan look slow: that must not stop recovery for minutes.
    let longest = pause.max((min_idle / 2).min(LONGEST));
    let took = Duration::from_millis(clock.now_ms().saturating_sub(began_ms));
    let rest = (took * REST).clamp(pause, longest);
    // A stopped clock stops where an entry gets old enough: that is when the next look is due.
    let due_in = if clock.is_stopped() && !source.plan().claim { Duration::ZERO } else { rest };
    scan.due_ms = clock.now_ms() + u64::try_from(due_in.as_millis()).unwrap_or(u64::MAX);
    Ok(Step::Rest(rest))
}

fn page(source: &StreamSource, cursor: EntryId, count: usize) -> Page<'_> {
    Page { cursor, count, hash_keys: source.settings.by_key, dead_letter: source.settings.dead_letter.as_deref() }
}

/// Take back entries that are pending under this consumer's own name and not held here. At a start under a fixed name
/// they are those of an earlier life, and count as delivered once more. After a loss of the connection they are those
/// whose reply was lost with it, which is no delivery, and those that a handler left.
pub(super) async fn own(source: &StreamSource, subscription: &Subscription, again: bool) -> Result<()> {
    if again {
        own_pass(source, subscription, true).await?;
    }
    own_pass(source, subscription, false).await
}

async fn own_pass(source: &StreamSource, subscription: &Subscription, uncounted: bool) -> Result<()> {
    let mut held: HashSet<_> = subscription.held.tokens().iter().map(Token::id).collect();
    if uncounted {
        held.extend(source.group.all_left());
    }
    let which = Pending::Own { held, uncounted };
    let mut cursor = Some(EntryId::ZERO);
    while let Some(from) = cursor {
        let wanted = source.settings.count.div_ceil(2);
        tokio::select! {
            biased;
            () = subscription.stop.cancelled() => return Ok(()),
            () = subscription.credits.wait(wanted) => {}
        }
        let count = source.settings.count.min(subscription.credits.room()).max(1);
        let read_ms = subscription.clock.now_ms();
        let _open = Open::new(&source.group);
        let scanned = source.store.scan(&subscription.origin, &which, page(source, from, count)).await?;
        note_bodiless(source, subscription, scanned.deleted.len(), scanned.refused);
        admit(source, subscription, scanned.raw, read_ms).await?;
        cursor = scanned.cursor;
    }
    Ok(())
}
