//! All time of the core: idle, delays, backoff, lease timers and lag ask this one object.
//!
//! It runs, or it is stopped. A stopped clock moves only when it is told to: sleeps wait for that, and end in the
//! order they fall due. Whoever moves it goes from one due time to the next (`step`), and lets what woke there finish
//! before it goes on. It does not stop where somebody only wants to look whether something has come (`doze`): what comes
//! by itself, such as the age of a pending entry, is on a horizon that it knows.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::time::Instant;

/// What changes by itself as time passes, with nobody asleep until then.
pub trait Horizon: Send + Sync + std::fmt::Debug {
    /// The next time of day after this one at which something falls due, in milliseconds.
    fn next_due_ms(&self, now_ms: u64) -> Option<u64>;
}

/// A monotonic clock that also knows the server's time of day.
#[derive(Debug)]
pub struct Clock {
    hands: Hands,
    /// The server's time of day when the clock began, in milliseconds.
    server_origin_ms: AtomicI64,
}

#[derive(Debug)]
enum Hands {
    Running(Instant),
    Stopped(Mutex<Stopped>),
}

/// When a sleep ends, and its number: those that end together end in the order they began.
type Due = (Duration, u64);

#[derive(Debug, Default)]
struct Stopped {
    /// Since the clock began.
    now: Duration,
    sleepers: BTreeMap<Due, Waker>,
    /// Those who wait for the next move, whatever it is.
    dozers: BTreeMap<u64, Waker>,
    begun: u64,
    moves: u64,
    horizons: Vec<Weak<dyn Horizon>>,
}

impl Stopped {
    fn number(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

impl Clock {
    /// A clock that begins now and takes the local time of day for the server's until it is told better.
    pub fn new() -> Self {
        let local = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            hands: Hands::Running(Instant::now()),
            server_origin_ms: AtomicI64::new(i64::try_from(local.as_millis()).unwrap_or(i64::MAX)),
        }
    }

    /// A clock that stands at this time of day until it is moved.
    pub fn stopped(server_ms: u64) -> Self {
        Self { hands: Hands::Stopped(Mutex::default()), server_origin_ms: AtomicI64::new(signed(server_ms)) }
    }

    /// Whether it moves only when it is told to.
    pub fn is_stopped(&self) -> bool {
        matches!(self.hands, Hands::Stopped(_))
    }

    fn elapsed(&self) -> Duration {
        match &self.hands {
            Hands::Running(origin) => origin.elapsed(),
            Hands::Stopped(stopped) => stopped.lock().now,
        }
    }

    /// Milliseconds since the clock began.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Seconds since the clock began.
    pub fn now_seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }

    /// The server's time of day, in milliseconds since the epoch.
    pub fn server_ms(&self) -> u64 {
        let origin = self.server_origin_ms.load(Ordering::Relaxed);
        u64::try_from(origin).unwrap_or(0).saturating_add(self.now_ms())
    }

    /// Learn the server's time of day, measured just now. A stopped clock is the server's clock and learns nothing.
    pub fn set_server_ms(&self, server_ms: u64) {
        if !self.is_stopped() {
            self.server_origin_ms.store(signed(server_ms) - signed(self.now_ms()), Ordering::Relaxed);
        }
    }

    /// Wait.
    pub async fn sleep(&self, duration: Duration) {
        match &self.hands {
            Hands::Running(_) => tokio::time::sleep(duration).await,
            Hands::Stopped(stopped) => {
                let due = stopped.lock().now.saturating_add(duration);
                Sleep { stopped, due, number: None }.await;
            }
        }
    }

    /// Wait before looking again for what may have come meanwhile. A stopped clock does not stop for that: the wait ends
    /// when it is moved next, however far.
    pub async fn doze(&self, duration: Duration) {
        match &self.hands {
            Hands::Running(_) => tokio::time::sleep(duration).await,
            Hands::Stopped(stopped) => {
                let moves = stopped.lock().moves;
                Doze { stopped, moves, number: None }.await;
            }
        }
    }

    /// A stopped clock stops at the times of this horizon as well.
    pub fn watch(&self, horizon: &Arc<impl Horizon + 'static>) {
        if let Hands::Stopped(stopped) = &self.hands {
            let horizon: Weak<dyn Horizon> = Arc::downgrade(horizon) as _;
            stopped.lock().horizons.push(horizon);
        }
    }

    /// How long until something on a horizon falls due.
    fn on_the_horizon(&self) -> Option<Duration> {
        let Hands::Stopped(stopped) = &self.hands else {
            return None;
        };
        // Asked without the lock: whoever owns a horizon asks this clock for the time.
        let horizons: Vec<_> = stopped.lock().horizons.iter().filter_map(Weak::upgrade).collect();
        let now = self.server_ms();
        let next = horizons.iter().filter_map(|horizon| horizon.next_due_ms(now)).min()?;
        let origin = u64::try_from(self.server_origin_ms.load(Ordering::Relaxed)).unwrap_or(0);
        Some(Duration::from_millis(next.saturating_sub(origin)).saturating_sub(self.elapsed()))
    }

    /// Wait until the server's time of day is `server_ms`.
    pub async fn sleep_until_server_ms(&self, server_ms: u64) {
        loop {
            // A running clock may be told of a new time of day meanwhile.
            let left = server_ms.saturating_sub(self.server_ms());
            if left == 0 {
                return;
            }
            self.sleep(Duration::from_millis(left)).await;
        }
    }

    /// How long until the next sleep ends or something on a horizon falls due. None: there is nothing of the kind, or the
    /// clock runs by itself.
    pub fn next_due(&self) -> Option<Duration> {
        let Hands::Stopped(stopped) = &self.hands else {
            return None;
        };
        let horizon = self.on_the_horizon();
        let stopped = stopped.lock();
        let sleeper = stopped.sleepers.first_key_value().map(|((due, _), _)| due.saturating_sub(stopped.now));
        [sleeper, horizon].into_iter().flatten().min()
    }

    /// Move a stopped clock to the next time something falls due, `limit` ahead at most, and wake what waits for it.
    /// Returns how far it moved; none: nothing falls due by then, and the clock was moved by all of `limit`. A running
    /// clock does not move.
    pub fn step(&self, limit: Duration) -> Option<Duration> {
        let Hands::Stopped(stopped) = &self.hands else {
            return None;
        };
        let moved = self.next_due().filter(|next| *next <= limit);
        let mut woken = Vec::new();
        let mut stopped = stopped.lock();
        stopped.now = stopped.now.saturating_add(moved.unwrap_or(limit));
        stopped.moves += 1;
        while stopped.sleepers.first_key_value().is_some_and(|((due, _), _)| *due <= stopped.now) {
            woken.extend(stopped.sleepers.pop_first().map(|(_, waker)| waker));
        }
        woken.extend(std::mem::take(&mut stopped.dozers).into_values());
        drop(stopped);
        woken.into_iter().for_each(Waker::wake);
        moved
    }

    /// Move a stopped clock, stopping at each time a sleep ends to wake it. What is woken runs only when this returns:
    /// to let it run in between, use `step`.
    pub fn advance(&self, duration: Duration) {
        let mut left = duration;
        while let Some(moved) = self.step(left) {
            left = left.saturating_sub(moved);
        }
    }
}

/// A sleep by a stopped clock.
struct Sleep<'a> {
    stopped: &'a Mutex<Stopped>,
    due: Duration,
    /// Its number, once it waits.
    number: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut stopped = self.stopped.lock();
        if stopped.now >= self.due {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or_else(|| stopped.number());
        stopped.sleepers.insert((self.due, number), context.waker().clone());
        drop(stopped);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.stopped.lock().sleepers.remove(&(self.due, number));
        }
    }
}

/// A wait for the next move of a stopped clock.
struct Doze<'a> {
    stopped: &'a Mutex<Stopped>,
    /// How often it had been moved when the wait began.
    moves: u64,
    /// Its number, once it waits.
    number: Option<u64>,
}

impl Future for Doze<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut stopped = self.stopped.lock();
        if stopped.moves != self.moves {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or_else(|| stopped.number());
        stopped.dozers.insert(number, context.waker().clone());
        drop(stopped);
        self.number = Some(number);
        Poll::Pending
    }
}

impl Drop for Doze<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.stopped.lock().dozers.remove(&number);
        }
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
