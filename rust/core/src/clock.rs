//! All time of the core: idle, delays, backoff, lease timers and lag ask this one object.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A monotonic clock that also knows the server's time of day.
#[derive(Debug)]
pub struct Clock {
    origin: Instant,
    /// The server's time of day at `origin`, in milliseconds.
    server_origin_ms: AtomicI64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A clock that begins now and takes the local time of day for the server's until it is told better.
    pub fn new() -> Self {
        let local = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            origin: Instant::now(),
            server_origin_ms: AtomicI64::new(i64::try_from(local.as_millis()).unwrap_or(i64::MAX)),
        }
    }

    /// Milliseconds since the clock began.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The server's time of day, in milliseconds since the epoch.
    pub fn server_ms(&self) -> u64 {
        let origin = self.server_origin_ms.load(Ordering::Relaxed);
        u64::try_from(origin).unwrap_or(0).saturating_add(self.now_ms())
    }

    /// Learn the server's time of day, measured just now.
    pub fn set_server_ms(&self, server_ms: u64) {
        let origin = i64::try_from(server_ms).unwrap_or(i64::MAX) - i64::try_from(self.now_ms()).unwrap_or(i64::MAX);
        self.server_origin_ms.store(origin, Ordering::Relaxed);
    }

    /// Wait.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
