//! Pacing: how long to wait before trying again, and how often to say so.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Growing, capped waits with jitter, so that many clients do not come back at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    maximum: Duration,
    next: Duration,
}

impl Backoff {
    /// From `initial`, doubled each time, to `maximum`.
    pub fn new(initial: Duration, maximum: Duration) -> Self {
        // Nothing that failed is tried again without a pause.
        let initial = initial.max(Duration::from_millis(1));
        Self { initial, maximum: maximum.max(initial), next: initial }
    }

    /// The wait before the next attempt: between half and all of the current step.
    pub fn wait(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.maximum);
        step.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
    }

    /// Something worked: begin small again.
    pub fn reset(&mut self) {
        self.next = self.initial;
    }
}

/// Lets one line through per second and counts the rest.
#[derive(Debug, Default)]
pub struct Quiet(Mutex<(Option<Instant>, u64)>);

impl Quiet {
    /// None: say nothing. Else say it, and how many were left unsaid before.
    pub fn allow(&self) -> Option<u64> {
        let mut state = self.0.lock();
        if state.0.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(Instant::now());
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_cap_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(150));
        for step in [50, 100, 150, 150] {
            let wait = backoff.wait();
            assert!(wait <= Duration::from_millis(step) && wait >= Duration::from_millis(step / 2), "{wait:?}");
        }
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(50));
    }

    #[test]
    fn a_wait_is_never_nothing() {
        assert!(Backoff::new(Duration::ZERO, Duration::ZERO).wait() > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn says_it_once_a_second_and_counts_the_rest() {
        let quiet = Quiet::default();
        assert_eq!((quiet.allow(), quiet.allow(), quiet.allow()), (Some(0), None, None));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(quiet.allow(), Some(2));
    }
}
