//! Consumers of processes that are no more. Every process says now and then that its own live, and one that nobody
//! spoke for in a long time is deleted once nothing is pending under its name.
//!
//! A consumer that is deleted although it lives loses nothing: nothing was pending, and its next read makes it again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::StreamSource;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::event::Level;
use crate::store::ConsumerRow;
use crate::subscription::Subscription;

/// How often a process speaks for its consumers, at least. Others may be set to shorter times than this one is.
const BEAT: Duration = Duration::from_secs(30);
/// And at least so many times within the time after which one is taken for dead.
const BEATS: u32 = 10;
/// For how many beats a consumer must look dead to us, without a failed look between: idle times are absolute, and
/// after an outage of the server every consumer looks dead until it is back.
const SUSPECTED: u32 = 2;
/// Names of dead consumers that are remembered, and deleted in one step.
const MOST: usize = 200;
/// Names in one line of the log.
const SHOWN: usize = 5;
/// What a made name ends with, after its process id.
const RANDOM: usize = 8;
/// What made names begin with, unless the environment says otherwise.
const PREFIX: &str = "ruststream-";
/// A stop does not wait longer for its consumer to be deleted.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Look after the group's consumers until the subscription is closed. One subscription of a process does it for all.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    let _turn = tokio::select! {
        biased;
        () = subscription.closed.cancelled() => return,
        turn = source.group.janitor.lock() => turn,
    };
    let beat = BEAT.min(source.settings.forget_after / BEATS).max(Duration::from_millis(10));
    let mut janitor = Janitor { beat, suspects: HashMap::new(), said: None };
    let mut backoff = Backoff::new(beat / 10, beat);
    let mut wait = beat;
    loop {
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = subscription.clock.doze(wait) => {}
        }
        wait = match janitor.look(source, subscription).await {
            Ok(()) => {
                backoff.reset();
                beat
            }
            Err(error) => {
                janitor.suspects.clear();
                janitor.say(subscription, error);
                backoff.wait()
            }
        };
    }
}

/// Delete this consumer at a clean stop, if nothing is pending under its name. A fixed name stays.
pub(super) async fn depart(source: &StreamSource, subscription: &Subscription) {
    if source.settings.fixed_consumer {
        return;
    }
    let origin = &subscription.origin;
    let own = [origin.consumer.as_str()];
    let forgetting = source.store.forget_consumers(&origin.stream, &origin.group, &own, Duration::ZERO);
    tokio::select! {
        biased;
        result = forgetting => if let Err(error) = result {
            subscription.log(Level::Debug, &format!("consumer {} could not be deleted: {error}", origin.consumer));
        },
        // A server that does not answer must not hold up the stop; another process deletes it some time.
        () = subscription.clock.sleep(LAST_WORD) => {}
    }
}

struct Janitor {
    beat: Duration,
    /// When each of these was first seen to look dead.
    suspects: HashMap<String, u64>,
    /// The error that was logged last.
    said: Option<Error>,
}

impl Janitor {
    async fn look(&mut self, source: &StreamSource, subscription: &Subscription) -> Result<()> {
        let origin = &subscription.origin;
        let living = source.group.living();
        let names: Vec<_> = living.iter().map(|living| living.consumer.as_str()).collect();
        let rows = source.store.consumers(&origin.stream, &origin.group, &names).await?;
        let after = source.settings.forget_after;
        let looks_dead = |row: &ConsumerRow| {
            row.pending == 0
                && row.idle >= after
                && is_made(&row.name, &origin.consumer)
                && !names.contains(&row.name.as_str())
        };
        let now = subscription.clock.now_ms();
        let mut seen = HashMap::new();
        for row in rows.into_iter().filter(looks_dead).take(MOST) {
            let since = self.suspects.get(&row.name).copied().unwrap_or(now);
            seen.insert(row.name, since);
        }
        self.suspects = seen;
        let long = u64::try_from((self.beat * SUSPECTED).as_millis()).unwrap_or(u64::MAX);
        let dead = self.suspects.iter().filter(|(_, since)| now.saturating_sub(**since) >= long);
        let dead: Vec<_> = dead.map(|(name, _)| name.as_str()).collect();
        if dead.is_empty() {
            return Ok(());
        }
        let mut forgotten = source.store.forget_consumers(&origin.stream, &origin.group, &dead, after).await?;
        subscription.stats.forgotten.add(forgotten.len());
        forgotten.sort_unstable();
        let count = forgotten.len();
        if count > 0 {
            forgotten.truncate(SHOWN);
            let more = if count > SHOWN { ", ..." } else { "" };
            let text = format!(
                "deleted {count} consumers of ended processes: nothing was pending under their names ({}{more})",
                forgotten.join(", ")
            );
            subscription.log(Level::Info, &text);
        }
        Ok(())
    }

    /// Log an error once: the next look fails in the same way, as long as it is not another one.
    fn say(&mut self, subscription: &Subscription, error: Error) {
        // A lost connection or group is the reader's to tell.
        if error.is_lost() && !matches!(error, Error::Connect(_)) || matches!(error, Error::NoGroup(_)) {
            return;
        }
        if self.said.as_ref() != Some(&error) {
            subscription.log(Level::Warning, &format!("looking after the group's consumers failed: {error}"));
            self.said = Some(error);
        }
    }
}

/// Whether a name was made for one process: `<prefix>-<pid>-<random>`, where the prefix begins as made ones do, or is
/// that of `own`.
fn is_made(name: &str, own: &str) -> bool {
    let Some(prefix) = made_prefix(name) else {
        return false;
    };
    prefix.starts_with(PREFIX) || made_prefix(own) == Some(prefix)
}

fn made_prefix(name: &str) -> Option<&str> {
    let (rest, random) = name.rsplit_once('-')?;
    let (prefix, pid) = rest.rsplit_once('-')?;
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let made = random.len() == RANDOM
        && random.bytes().all(hex)
        && !pid.is_empty()
        && pid.bytes().all(|byte| byte.is_ascii_digit())
        && !prefix.is_empty();
    made.then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_made_for_one_process_are_ever_deleted() {
        let own = "shop-7-0a1b2c3d";
        for name in ["ruststream-host-1-00000000", "ruststream-a-b-c-99-deadbeef", "shop-12345-ffffffff"] {
            assert!(is_made(name, own), "{name}");
        }
        for name in [
            "ruststream-host-1-0000000",
            "ruststream-host-1-000000000",
            "ruststream-host-1-DEADBEEF",
            "ruststream-host-x1-deadbeef",
            "ruststream-host--deadbeef",
            "ruststream-host",
            "worker-1",
            "other-12345-ffffffff",
            "shop-eu-12345-ffffffff",
            "-1-deadbeef",
            "",
        ] {
            assert!(!is_made(name, own), "{name}");
        }
        assert!(!is_made("worker-1-deadbeef", "worker-1"), "a fixed name of ours says nothing of others");
    }
}
