//! The clock that runs, and the one that stands until it is moved: who wakes, when, and in which order.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Begin sleeps of so many milliseconds, which note the time and their number when they end.
fn sleepers(clock: &Arc<Clock>, sleeps: &[u64]) -> Arc<Mutex<Vec<(u64, usize)>>> {
    let ended = Arc::new(Mutex::new(Vec::new()));
    for (number, ms) in sleeps.iter().copied().enumerate() {
        let (clock, ended) = (Arc::clone(clock), Arc::clone(&ended));
        tokio::spawn(async move {
            clock.sleep(Duration::from_millis(ms)).await;
            ended.lock().push((clock.now_ms(), number));
        });
    }
    ended
}

async fn rest() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_stopped_clock_stands_until_it_is_moved() {
    let clock = Clock::stopped(1_000);
    assert_eq!((clock.is_stopped(), clock.now_ms(), clock.server_ms(), clock.next_due()), (true, 0, 1_000, None));
    assert_eq!(clock.step(SECOND), None);
    clock.set_server_ms(7);
    assert_eq!((clock.now_ms(), clock.server_ms()), (1_000, 2_000));
    clock.advance(Duration::MAX);
    clock.advance(Duration::MAX);
    assert_eq!(clock.now_ms(), u64::MAX);
}

#[test]
fn a_running_clock_is_not_moved_by_hand() {
    let clock = Clock::new();
    assert_eq!((clock.is_stopped(), clock.step(SECOND), clock.next_due()), (false, None, None));
    clock.advance(Duration::from_secs(3600));
    assert!(clock.now_ms() < 3_000_000);
    clock.set_server_ms(5_000);
    assert!(clock.server_ms() >= 5_000 && clock.server_ms() < 60_000);
}

#[tokio::test]
async fn steps_stop_where_sleeps_end_and_wake_them_in_order() {
    let clock = Arc::new(Clock::stopped(0));
    let ended = sleepers(&clock, &[30, 10, 30, 20, 0]);
    rest().await;
    assert_eq!((ended.lock().as_slice(), clock.next_due()), ([(0, 4)].as_slice(), Some(Duration::from_millis(10))));
    assert_eq!(clock.step(Duration::from_millis(4)), None);
    let mut left = Duration::from_millis(26);
    while let Some(moved) = clock.step(left) {
        left -= moved;
        rest().await;
    }
    assert_eq!(*ended.lock(), [(0, 4), (10, 1), (20, 3), (30, 0), (30, 2)]);
    assert_eq!((clock.now_ms(), clock.next_due()), (30, None));
}

#[tokio::test]
async fn an_advance_wakes_all_that_falls_due_in_order() {
    let clock = Arc::new(Clock::stopped(0));
    let ended = sleepers(&clock, &[500, 100, 5_000]);
    rest().await;
    clock.advance(SECOND);
    rest().await;
    assert_eq!(*ended.lock(), [(1_000, 1), (1_000, 0)]);
    assert_eq!(clock.next_due(), Some(Duration::from_secs(4)));
}

/// Falls due at these times of day.
#[derive(Debug)]
struct Dues(Vec<u64>);

impl Horizon for Dues {
    fn next_due_ms(&self, now_ms: u64) -> Option<u64> {
        self.0.iter().copied().find(|due| *due > now_ms)
    }
}

#[tokio::test]
async fn it_stops_for_what_falls_due_and_not_for_those_who_only_look() {
    let clock = Arc::new(Clock::stopped(1_000));
    let horizon = Arc::new(Dues(vec![1_000, 1_010, 1_300]));
    clock.watch(&horizon);
    let looks = Arc::new(Mutex::new(Vec::new()));
    let looking = tokio::spawn({
        let (clock, looks) = (Arc::clone(&clock), Arc::clone(&looks));
        async move {
            loop {
                clock.doze(Duration::from_millis(1)).await;
                looks.lock().push(clock.now_ms());
            }
        }
    });
    let ended = sleepers(&clock, &[100]);
    rest().await;
    let mut left = SECOND;
    while let Some(moved) = clock.step(left) {
        left -= moved;
        rest().await;
    }
    rest().await;
    assert_eq!(
        (looks.lock().as_slice(), ended.lock().as_slice()),
        ([10, 100, 300, 1_000].as_slice(), [(100, 0)].as_slice())
    );
    drop(horizon);
    assert_eq!(clock.next_due(), None);
    looking.abort();
}

#[tokio::test]
async fn a_running_clock_ends_a_doze_by_its_time() {
    let clock = Clock::new();
    clock.watch(&Arc::new(Dues(vec![u64::MAX])));
    clock.doze(Duration::from_millis(1)).await;
    assert!(clock.now_ms() >= 1);
}

#[tokio::test]
async fn a_sleep_that_is_given_up_is_forgotten() {
    let clock = Arc::new(Clock::stopped(0));
    let sleeping = tokio::spawn({
        let clock = Arc::clone(&clock);
        async move { clock.sleep(SECOND).await }
    });
    rest().await;
    assert!(clock.next_due().is_some());
    sleeping.abort();
    rest().await;
    assert_eq!(clock.next_due(), None);
}

#[tokio::test]
async fn a_time_of_day_is_waited_for() {
    let clock = Arc::new(Clock::stopped(10_000));
    clock.sleep_until_server_ms(9_000).await;
    let waiting = tokio::spawn({
        let clock = Arc::clone(&clock);
        async move { clock.sleep_until_server_ms(10_250).await }
    });
    rest().await;
    clock.advance(Duration::from_millis(249));
    rest().await;
    assert!(!waiting.is_finished());
    clock.advance(Duration::from_millis(1));
    rest().await;
    assert!(waiting.is_finished());
}
