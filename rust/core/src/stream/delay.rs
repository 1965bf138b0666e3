//! Moves delayed retries back into the stream when they are due, by a timer of its own.

use std::sync::Arc;
use std::time::Duration;

use super::{Mode, StreamSource};
use crate::backoff::Quiet;
use crate::event::Level;
use crate::subscription::Subscription;

/// Entries moved per step.
const LIMIT: usize = 100;
/// How often to look for entries that another process delayed before it died.
const POLL: Duration = Duration::from_secs(1);

/// Promote until the subscription is closed. Claiming and recovering keep their retries in place and need no timer.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    if matches!(source.settings.mode, Mode::Claiming | Mode::Recovering) {
        return;
    }
    let quiet = Quiet::default();
    let mut backoff = source.settings.reconnect.clone();
    loop {
        let stream = &subscription.origin.stream;
        let wait = match source.store.promote(stream, &source.settings.delay_key, LIMIT).await {
            Ok(promoted) => {
                backoff.reset();
                if promoted.strange > 0 {
                    let key = &source.settings.delay_key;
                    let text = format!(
                        "{} members of the sorted set {key} are no delayed entries of ours; they were given the score \
                         +inf and stay there: keep other data out of it, or choose another delay_key",
                        promoted.strange
                    );
                    subscription.log(Level::Error, &text);
                }
                if promoted.moved == LIMIT { Duration::ZERO } else { promoted.next.unwrap_or(POLL).min(POLL) }
            }
            Err(error) => {
                if let Some(unsaid) = quiet.allow() {
                    let text = format!("moving delayed entries back failed: {error} ({unsaid} more like this)");
                    subscription.log(Level::Warning, &text);
                }
                backoff.wait()
            }
        };
        tokio::select! {
            () = subscription.closed.cancelled() => return,
            () = source.group.delayed.notified() => {}
            () = subscription.clock.sleep(wait) => {}
        }
    }
}
