//! Keeps a stream within its bound, by a slow timer. What a group still needs stays, and is counted and said.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Group, StreamSource};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::event::Level;
use crate::store::{Bound, Holder, Trimmed};
use crate::subscription::Subscription;

/// Entries per step: whole nodes of the server's, which takes it a fraction of a millisecond.
const STEP: usize = 10_000;
/// After a step that removed something, the next one waits so many times as long as it took.
const REST: u32 = 10;
const SHORTEST: Duration = Duration::from_millis(10);
/// Where nothing is to be removed, looks get rarer up to the last of these.
const IDLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// How often it is said that entries are kept beyond the bound.
const SAY_AGAIN_MS: u64 = 60_000;
/// With `Bound::Acked` entries are always kept for other groups: so many of them are worth a line.
const WORTH_SAYING: u64 = 10_000;
/// Groups named in one line.
const SHOWN: usize = 5;

/// A stream as this process trims it, over all its groups and subscriptions.
#[derive(Debug, Default)]
pub struct Trimmer {
    /// Held by whichever subscription trims.
    turn: tokio::sync::Mutex<()>,
    groups: Mutex<Vec<(String, Weak<Group>)>>,
}

impl Trimmer {
    /// A group of this process reads the stream.
    pub(super) fn join(&self, name: &str, group: &Arc<Group>) {
        let mut groups = self.groups.lock();
        groups.retain(|(_, group)| group.strong_count() > 0);
        groups.push((name.to_owned(), Arc::downgrade(group)));
    }

    fn groups(&self) -> Vec<String> {
        let groups = self.groups.lock();
        groups.iter().filter(|(_, group)| group.strong_count() > 0).map(|(name, _)| name.clone()).collect()
    }
}

/// Trim until the subscription is closed. One subscription of a process does it for all.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    let Some(bound) = source.settings.trim else {
        return;
    };
    let shared = &source.group.trimmer;
    let _turn = tokio::select! {
        biased;
        () = subscription.closed.cancelled() => return,
        turn = shared.turn.lock() => turn,
    };
    let mut idle = Backoff::new(IDLE.0, IDLE.1);
    let mut record = Record::default();
    let mut wait = idle.wait();
    loop {
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = subscription.clock.doze(wait) => {}
        }
        let begun = subscription.clock.now_ms();
        let trimmed = source.store.trim(&subscription.origin.stream, &shared.groups(), bound, STEP).await;
        let took = Duration::from_millis(subscription.clock.now_ms().saturating_sub(begun));
        wait = match trimmed {
            Ok(trimmed) if trimmed.removed > 0 => {
                idle.reset();
                subscription.stats.trimmed.add(trimmed.removed);
                record.look(subscription, bound, &trimmed);
                (took * REST).clamp(SHORTEST, IDLE.0)
            }
            Ok(trimmed) => {
                record.look(subscription, bound, &trimmed);
                idle.wait()
            }
            Err(error) => {
                record.fail(subscription, error);
                idle.wait()
            }
        };
    }
}

/// What was said of what is kept.
#[derive(Debug, Default)]
struct Record {
    /// Looks in a row that found entries which must stay.
    held: u32,
    said_ms: Option<u64>,
    error: Option<Error>,
}

impl Record {
    fn look(&mut self, subscription: &Subscription, bound: Bound, trimmed: &Trimmed) {
        subscription.stats.held_back.set(trimmed.over);
        let worth_it = trimmed.over > 0 && (bound != Bound::Acked || trimmed.over >= WORTH_SAYING);
        self.held = if worth_it { self.held.saturating_add(1) } else { 0 };
        let now = subscription.clock.now_ms();
        let again = self.said_ms.is_none_or(|said| now.saturating_sub(said) >= SAY_AGAIN_MS);
        // A burst that is worked off until the next look is no news.
        if self.held >= 2 && again {
            self.said_ms = Some(now);
            subscription.log(Level::Warning, &kept(bound, trimmed));
        }
    }

    /// Log an error once, until another one comes. A lost connection is the reader's to tell.
    fn fail(&mut self, subscription: &Subscription, error: Error) {
        let lost = error.is_lost() && !matches!(error, Error::Connect(_));
        if !lost && self.error.as_ref() != Some(&error) {
            subscription.log(Level::Warning, &format!("trimming the stream failed, trying again: {error}"));
            self.error = Some(error);
        }
    }
}

fn kept(bound: Bound, trimmed: &Trimmed) -> String {
    let what = match bound {
        Bound::Acked => format!("{} entries that this app has acknowledged are kept", trimmed.over),
        Bound::Length(most) => format!("{} entries beyond Trim.max_length({most}) are kept", trimmed.over),
        Bound::Age(age) => format!("entries older than Trim.max_age({}) are kept", age.as_secs_f64()),
    };
    let mut groups: Vec<_> = trimmed.holders.iter().take(SHOWN).map(holder).collect();
    if trimmed.holders.len() > SHOWN {
        groups.push(format!("and {} more", trimmed.holders.len() - SHOWN));
    }
    format!(
        "{what}, because they are still needed by {}; destroy a group that nobody reads any more (XGROUP DESTROY)",
        groups.join(", ")
    )
}

fn holder(holder: &Holder) -> String {
    let lag = holder.lag.map_or_else(|| "an unknown number".to_owned(), |lag| lag.to_string());
    format!("group {} ({} pending, {lag} not delivered yet)", holder.group, holder.pending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_said_with_the_groups_that_need_it() {
        let holder = |group: &str, lag| Holder { group: group.into(), pending: 3, lag };
        let trimmed = Trimmed { removed: 0, over: 7, holders: vec![holder("audit", Some(4)), holder("old", None)] };
        let said = kept(Bound::Length(10), &trimmed);
        for part in ["7 entries", "max_length(10)", "audit (3 pending, 4 not", "old (3 pending, an unknown number"] {
            assert!(said.contains(part), "{said}");
        }
        let many = Trimmed { holders: vec![holder("g", None); 8], ..trimmed };
        let said = kept(Bound::Age(Duration::from_secs(60)), &many);
        assert!(said.contains("max_age(60)") && said.contains("and 3 more"), "{said}");
        assert!(kept(Bound::Acked, &many).contains("7 entries that this app has acknowledged"));
    }
}
