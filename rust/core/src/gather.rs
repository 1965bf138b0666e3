//! When a batch is worth handing over: it is full, it has waited long enough, or nothing more will come.

use std::time::Duration;

/// What a worker without work does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing is ready: what comes next wakes it.
    Nothing,
    /// Take what is ready, up to a full batch.
    Take,
    /// Wait for more. A duration: be woken after it; none: somebody has asked for that already.
    Wait(Option<Duration>),
}

/// The batches of one subscription. Entries wait in their queues, so that a stop finds them where it finds all others.
#[derive(Debug)]
pub struct Gather {
    most: usize,
    wait_ms: u64,
    /// Since when something is ready that is no full batch.
    since_ms: Option<u64>,
    /// When the last wake-up that was asked for comes.
    wake_ms: u64,
}

impl Gather {
    /// Batches of up to `most` entries, which wait this long for their last one. Rounded up to milliseconds.
    pub fn new(most: usize, wait: Duration) -> Self {
        let wait_ms = u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        Self { most: most.max(1), wait_ms, since_ms: None, wake_ms: 0 }
    }

    /// Entries in a full batch.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A worker looks at `now_ms` of the clock. `ready` are the entries that could run, counted up to a full batch;
    /// `last`: no more will come until some of these are settled.
    pub fn look(&mut self, ready: usize, last: bool, now_ms: u64) -> Look {
        if ready == 0 {
            self.since_ms = None;
            return Look::Nothing;
        }
        let due = self.since_ms.unwrap_or(now_ms).saturating_add(self.wait_ms);
        if ready >= self.most || last || due <= now_ms {
            self.since_ms = None;
            return Look::Take;
        }
        self.since_ms.get_or_insert(now_ms);
        if self.wake_ms > now_ms && self.wake_ms <= due {
            return Look::Wait(None);
        }
        self.wake_ms = due;
        Look::Wait(Some(Duration::from_millis(due - now_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather() -> Gather {
        Gather::new(10, Duration::from_millis(50))
    }

    const IN_50: Look = Look::Wait(Some(Duration::from_millis(50)));

    #[test]
    fn a_full_batch_goes_at_once_and_so_does_the_last_one() {
        let mut gather = gather();
        assert_eq!(gather.look(0, false, 0), Look::Nothing);
        assert_eq!((gather.look(10, false, 0), gather.look(3, true, 0)), (Look::Take, Look::Take));
        assert_eq!(gather.look(0, true, 0), Look::Nothing);
    }

    #[test]
    fn a_part_waits_from_when_it_is_first_seen() {
        let mut gather = gather();
        assert_eq!(gather.look(3, false, 100), IN_50);
        assert_eq!(gather.look(4, false, 120), Look::Wait(None), "one wake-up is enough");
        assert_eq!(gather.look(5, false, 149), Look::Wait(None));
        assert_eq!(gather.look(5, false, 150), Look::Take);
        assert_eq!(gather.look(2, false, 150), IN_50, "the rest waits anew");
    }

    #[test]
    fn a_wake_up_that_comes_for_an_earlier_part_is_asked_for_again() {
        let mut gather = gather();
        assert_eq!(gather.look(3, false, 100), IN_50);
        assert_eq!(gather.look(10, false, 110), Look::Take);
        assert_eq!(gather.look(1, false, 130), Look::Wait(None), "the one at 150 comes first");
        assert_eq!(gather.look(1, false, 150), Look::Wait(Some(Duration::from_millis(30))));
        assert_eq!(gather.look(1, false, 180), Look::Take);
    }

    #[test]
    fn what_others_took_does_not_count_as_waiting() {
        let mut gather = gather();
        assert_eq!(gather.look(3, false, 100), IN_50);
        assert_eq!(gather.look(0, false, 140), Look::Nothing);
        assert_eq!(gather.look(1, false, 149), Look::Wait(None));
        assert_eq!(gather.look(1, false, 150), Look::Wait(Some(Duration::from_millis(49))));
    }

    #[test]
    fn without_a_wait_what_is_there_goes_at_once() {
        let mut gather = Gather::new(10, Duration::ZERO);
        assert_eq!((gather.look(1, false, 5), gather.look(0, false, 5)), (Look::Take, Look::Nothing));
        assert_eq!(Gather::new(0, Duration::MAX).look(1, false, 0), Look::Take);
        assert!(matches!(Gather::new(2, Duration::MAX).look(1, false, 7), Look::Wait(Some(_))));
    }
}
