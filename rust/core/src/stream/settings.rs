//! What the user chose for one stream subscription; validated before it comes here.

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::mark::{MarkKeys, MarkStore};
use crate::settle::Outcome;
use crate::store::Bound;

/// Which entries a subscription reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Never-delivered ones.
    New,
    /// Pending ones that lay idle.
    Reclaim,
    /// Both, in one command (`XREADGROUP ... CLAIM`).
    Claiming,
    /// Both, on every server.
    Recovering,
}

/// How often the handler of one entry may be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cap {
    /// Attempts, the first one included.
    pub attempts: u32,
    /// What becomes of an entry that has used them up.
    pub exhausted: Outcome,
    /// The hash of the starts of entries that are not settled.
    pub key: String,
    /// Handlers that run at once.
    pub workers: usize,
}

/// Settings of one stream subscription.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they are the user's independent switches")]
pub struct StreamSettings {
    /// What to read.
    pub mode: Mode,
    /// How long an entry lies pending before it is recovered.
    pub min_idle: Option<Duration>,
    /// Entries per read.
    pub count: usize,
    /// How long a read waits on the server.
    pub block: Duration,
    /// Where a group that is created here begins.
    pub start_id: String,
    /// Where the group's cursor is moved at each start.
    pub start_at: Option<String>,
    /// Create the group if it is missing.
    pub create_group: bool,
    /// Create it again if it goes missing later.
    pub recreate_group: bool,
    /// Compute the partition of each key.
    pub by_key: bool,
    /// When a loop that does not turn has its entries given up.
    pub renew_stalled: Option<Duration>,
    /// The sorted set of delayed entries.
    pub delay_key: String,
    /// The stream of dead letters.
    pub dead_letter: Option<Arc<str>>,
    /// The consumer name was chosen by the user: entries of an earlier life may be pending under it.
    pub fixed_consumer: bool,
    /// After how long without a sign of life a consumer of an ended process is deleted.
    pub forget_after: Duration,
    /// What the stream is kept within.
    pub trim: Option<Bound>,
    /// The most attempts of one entry, where there is such a limit.
    pub cap: Option<Cap>,
    /// Waits between attempts to reach the server.
    pub reconnect: Backoff,
}

/// What the user chose for the marks of one subscription.
#[derive(Debug)]
pub struct MarkSettings {
    /// Where they are kept.
    pub store: Arc<dyn MarkStore>,
    /// What computes their keys, where that is not done here.
    pub keys: Option<Arc<dyn MarkKeys>>,
    /// Stands before every key: stream, group and subscription.
    pub prefix: String,
    /// This consumer in this life.
    pub owner: String,
    /// How long a working mark lasts without a renewal.
    pub lease: Duration,
    /// How long a done one is kept.
    pub ttl: Duration,
    /// Entries that wait for another one of their message, at most, where the rest may come back by recovery. None:
    /// nobody brings them back, so all of them wait here.
    pub most_waiting: Option<usize>,
}
