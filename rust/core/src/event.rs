//! What the core has to tell the loop thread, all through one bell.

use std::sync::Arc;

use crate::entry::EntryId;
use crate::error::{Error, Result};

/// How serious a log line is; the numbers are those of Python's `logging`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// For those who look for a fault.
    Debug = 10,
    /// Normal life.
    Info = 20,
    /// Something to look at.
    Warning = 30,
    /// Something failed.
    Error = 40,
}

/// Whether a subscription makes progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It reads.
    Reading,
    /// It waits to try again, because of this.
    Retrying(Error),
    /// It was told to stop and has.
    Stopped,
    /// It cannot go on.
    Failed(Error),
}

/// One thing that happened. `consumer` is the number a subscription was registered under.
#[derive(Debug)]
pub enum Event {
    /// Entries wait and a lane was idle.
    Ready {
        /// Which subscription.
        consumer: usize,
    },
    /// Entries are owned by someone else now.
    Lost {
        /// Which subscription.
        consumer: usize,
        /// Which entries.
        ids: Vec<EntryId>,
    },
    /// The server answered acks that someone waits for.
    Acked {
        /// Which subscription.
        consumer: usize,
        /// Which entries.
        ids: Vec<EntryId>,
    },
    /// The server refused acks that someone waits for; their entries stay pending.
    Refused {
        /// Which subscription.
        consumer: usize,
        /// Which entries.
        ids: Vec<EntryId>,
    },
    /// A subscription's state changed.
    State {
        /// Which subscription.
        consumer: usize,
        /// What it is now.
        state: State,
    },
    /// A publish was answered.
    Published {
        /// The ticket it was queued under.
        ticket: u64,
        /// One result per message.
        results: Vec<Result<EntryId>>,
        /// Whether the caller published a list.
        many: bool,
    },
    /// A wait that was asked for is over.
    Alarm {
        /// Which subscription.
        consumer: usize,
    },
    /// A subscription asks something of the loop thread.
    Asked {
        /// Which subscription.
        consumer: usize,
        /// What it knows its question by.
        ticket: u64,
    },
    /// A line for the log.
    Log {
        /// How serious.
        level: Level,
        /// What happened and what to do.
        message: String,
    },
}

/// Where events go.
pub trait Events: Send + Sync + std::fmt::Debug + 'static {
    /// Queue an event and ring.
    fn post(&self, event: Event);
    /// For how long the loop has not answered a ring; nothing while it does. Rings, so that the next call knows.
    fn stalled(&self) -> std::time::Duration;
}

/// A shared sink.
pub type Sink = Arc<dyn Events>;
