//! Room for entries that are read and not yet settled. What bounds memory, and what the reader waits for.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The bytes of replies that one subscription holds at most, but for the read that goes past it. Entries of one reply
/// share its buffer, so a few slow ones can hold many buffers: their number alone does not bound the memory.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// The credits of one subscription.
#[derive(Debug)]
pub struct Credits {
    maximum: usize,
    used: AtomicUsize,
    bytes: AtomicUsize,
    /// How many wait for room.
    waiting: AtomicUsize,
    room: Notify,
}

impl Credits {
    /// Room for `maximum` entries.
    pub fn new(maximum: usize) -> Self {
        Self {
            maximum,
            used: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            room: Notify::new(),
        }
    }

    /// How many entries are in flight.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// The bytes of the replies that they share.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    /// How many more may be read.
    pub fn room(&self) -> usize {
        if self.bytes() >= MAX_BYTES { 0 } else { self.maximum.saturating_sub(self.used()) }
    }

    /// Whether a read that waits for room for `wanted` entries has it.
    pub fn has(&self, wanted: usize) -> bool {
        self.room() >= wanted.min(self.maximum)
    }

    /// Count entries that were read, and the buffer that holds them.
    pub fn take(&self, entries: usize, bytes: usize) {
        self.used.fetch_add(entries, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Give back the room of entries that are settled.
    pub fn give(&self, entries: usize) {
        self.used.fetch_sub(entries, Ordering::SeqCst);
        self.notify();
    }

    /// Give back a buffer all of whose entries are done.
    pub fn give_bytes(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.notify();
    }

    fn notify(&self) {
        // One order for all: room given here and not seen by `wait` means that it is counted here.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.room.notify_waiters();
        }
    }

    /// Wait until `wanted` entries may be read; `wanted` is at most the maximum.
    pub async fn wait(&self, wanted: usize) {
        if self.has(wanted) {
            return;
        }
        let _waiting = Waiting::new(&self.waiting);
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            // Between the look and the wait room may have come: look again before sleeping.
            if self.has(wanted) {
                return;
            }
            room.await;
        }
    }
}

/// Counts one who waits, until the wait ends or is given up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn the_reader_waits_for_half_a_read() {
        let credits = Arc::new(Credits::new(10));
        credits.take(10, 0);
        let waiting = tokio::spawn({
            let credits = Arc::clone(&credits);
            async move { credits.wait(5).await }
        });
        tokio::task::yield_now().await;
        credits.give(4);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        credits.give(1);
        assert!(waiting.await.is_ok());
        assert_eq!(credits.room(), 5);
    }

    #[tokio::test]
    async fn large_bodies_use_up_the_room_as_well() {
        let credits = Credits::new(10);
        credits.take(1, MAX_BYTES);
        assert_eq!(credits.room(), 0);
        credits.give_bytes(MAX_BYTES);
        assert_eq!(credits.room(), 9);
    }

    #[tokio::test]
    async fn more_than_the_maximum_is_never_waited_for() {
        Credits::new(3).wait(100).await;
    }
}
