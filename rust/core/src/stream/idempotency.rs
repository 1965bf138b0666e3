//! Renews marks, and lets entries that wait for one look again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::StreamSource;
use crate::backoff::Quiet;
use crate::event::Level;
use crate::subscription::Subscription;

/// A renewal is due after this part of the lease.
const PART: u32 = 6;
/// Entries that wait look again after this part of the lease, within these bounds.
const LOOK: u32 = 20;
const SOONEST: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(1);

/// Tend the marks until the subscription is closed.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    let Some(marks) = &source.marks else {
        return;
    };
    let quiet = Quiet::default();
    let lease = marks.settings.lease;
    let renewal = (lease / PART).max(Duration::from_millis(1));
    let look = (lease / LOOK).clamp(SOONEST, LATEST);
    let mut backoff = source.settings.reconnect.clone();
    let now = || Duration::from_millis(subscription.clock.now_ms());
    let mut due = now() + renewal;
    let mut works = true;
    loop {
        let pause = match (works, marks.is_pressing()) {
            (false, _) => backoff.wait(),
            (true, true) => look,
            (true, false) => renewal,
        };
        let pause = pause.min(due.saturating_sub(now())).max(Duration::from_millis(1));
        let idle = works && marks.is_idle();
        let wait = async {
            if idle {
                subscription.clock.doze(pause).await;
            } else {
                subscription.clock.sleep(pause).await;
            }
        };
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = wait => {}
            () = marks.wake.notified(), if works => {}
        }
        works = marks.poll(source, subscription).await;
        if works {
            backoff.reset();
        }
        // A loop that does not turn handles nothing: another process must be able to go on.
        if now() < due || source.stalled.load(Ordering::Acquire) {
            continue;
        }
        due = now() + renewal;
        if let Err(error) = marks.renew(subscription).await {
            subscription.log_paced(&quiet, Level::Warning, || format!("renewing marks failed, trying again: {error}"));
            due = now() + renewal.min(Duration::from_secs(1));
        }
    }
}
