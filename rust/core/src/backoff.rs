//! Pacing: how long to wait before trying again, and how often to say so.

use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;

/// Growing, capped waits with jitter, so that many clients do not come back at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    maximum: Duration,
    next: Duration,
    jitter: Rng,
}

impl Backoff {
    /// From `initial`, doubled each time, to `maximum`.
    pub fn new(initial: Duration, maximum: Duration) -> Self {
        Self::with_jitter(initial, maximum, Rng::new())
    }

    /// The same, with waits that are the same for the same seed.
    pub fn seeded(initial: Duration, maximum: Duration, seed: u64) -> Self {
        Self::with_jitter(initial, maximum, Rng::with_seed(seed))
    }

    fn with_jitter(initial: Duration, maximum: Duration, jitter: Rng) -> Self {
        // Nothing that failed is tried again without a pause.
        let initial = initial.max(Duration::from_millis(1));
        Self { initial, maximum: maximum.max(initial), next: initial, jitter }
    }

    /// The wait before the next attempt: between half and all of the current step.
    pub fn wait(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.maximum);
        step.mul_f64(self.jitter.f64().mul_add(0.5, 0.5))
    }

    /// Something worked: begin small again.
    pub fn reset(&mut self) {
        self.next = self.initial;
    }
}

/// The wait after so many tries, where nobody has said another: it doubles, so that a retry never spins.
pub fn growing(tries: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(10);
    FIRST.saturating_mul(1 << tries.saturating_sub(1).min(7)).min(LONGEST)
}

const SECOND: u64 = 1000;

/// Lets one line through per second and counts the rest.
#[derive(Debug, Default)]
pub struct Quiet(Mutex<(Option<u64>, u64)>);

impl Quiet {
    /// None: say nothing. Else say it, and how many were left unsaid before. `now_ms` is the clock's.
    pub fn allow(&self, now_ms: u64) -> Option<u64> {
        let mut state = self.0.lock();
        if state.0.is_some_and(|last| now_ms.saturating_sub(last) < SECOND) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now_ms);
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
    fn waits_that_nobody_chose_double_up_to_ten_seconds() {
        let waits = [0, 1, 2, 3, 7, 8, u32::MAX].map(|tries| growing(tries).as_millis());
        assert_eq!(waits, [100, 100, 200, 400, 6_400, 10_000, 10_000]);
    }

    #[test]
    fn a_wait_is_never_nothing() {
        assert!(Backoff::new(Duration::ZERO, Duration::ZERO).wait() > Duration::ZERO);
    }

    #[test]
    fn the_same_seed_gives_the_same_waits() {
        let waits = |seed| {
            let mut backoff = Backoff::seeded(Duration::from_millis(50), Duration::from_secs(1), seed);
            std::iter::repeat_with(|| backoff.wait()).take(8).collect::<Vec<_>>()
        };
        assert_eq!(waits(7), waits(7));
        assert_ne!(waits(7), waits(8));
    }

    #[test]
    fn says_it_once_a_second_and_counts_the_rest() {
        let quiet = Quiet::default();
        assert_eq!((quiet.allow(5), quiet.allow(5), quiet.allow(1_004)), (Some(0), None, None));
        assert_eq!(quiet.allow(1_005), Some(2));
    }
}
