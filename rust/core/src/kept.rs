//! Entries that are run again before anything else of their key, and wait for that.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::batch::Token;
use crate::entry::EntryId;

/// One that waits.
#[derive(Debug, Clone)]
pub struct Head {
    /// The delivery that asked for it.
    pub token: Token,
    /// When it asked, in milliseconds of the clock.
    pub since_ms: u64,
    /// When it is to run again.
    pub due_ms: u64,
}

/// The heads of one subscription's keys that wait, by when they are due.
#[derive(Debug, Default)]
pub struct Kept {
    heads: Mutex<BTreeMap<(u64, EntryId), Head>>,
    /// Rung when one was added, or lost.
    pub(crate) changed: Notify,
}

impl Kept {
    /// Keep one.
    pub(crate) fn add(&self, head: Head) {
        self.heads.lock().insert((head.due_ms, head.token.id()), head);
        self.changed.notify_waiters();
    }

    /// Those that are due, or someone else's by now.
    pub(crate) fn take_due(&self, now_ms: u64) -> Vec<Head> {
        let mut heads = self.heads.lock();
        let (due, waiting) = std::mem::take(&mut *heads)
            .into_iter()
            .partition(|(_, head)| head.due_ms <= now_ms || head.token.is_lost());
        *heads = waiting;
        BTreeMap::into_values(due).collect()
    }

    /// When the next one is due, in milliseconds of the clock.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.heads.lock().first_key_value().map(|((due_ms, _), _)| *due_ms)
    }

    /// All that wait.
    pub(crate) fn take_all(&self) -> Vec<Head> {
        std::mem::take(&mut *self.heads.lock()).into_values().collect()
    }
}
