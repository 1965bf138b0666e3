//! Counters of one subscription: atomics only, read by whoever asks.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What one subscription has done so far.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Stats {
            /// All counters with their names.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Add.
    pub fn add(&self, by: usize) {
        self.0.fetch_add(by as u64, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Entries taken in.
    read,
    /// Of these, taken over from a pending list.
    claimed,
    /// Acknowledged, and answered by the server.
    acked,
    /// Dropped, and answered by the server.
    dropped,
    /// Asked to be retried.
    retried,
    /// Left pending by their handler or its failure.
    left,
    /// Found to be owned by someone else.
    lost,
    /// Given back at stop without having been started.
    released,
    /// Claimed while already in this process, and not handled twice.
    duplicates,
    /// Copies made by another group's retry, acknowledged unseen.
    foreign_copies,
    /// Pending entries whose body was gone.
    deleted,
    /// Reads sent.
    reads,
    /// Commands sent to settle, pipelined ones counted singly.
    settles,
    /// Reads that failed.
    read_errors,
    /// Connections made again.
    reconnects,
}
