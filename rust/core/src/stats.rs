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

/// A number, mostly one that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Add.
    pub fn add(&self, by: usize) {
        self.0.fetch_add(by as u64, Ordering::Relaxed);
    }

    /// Set it, where it is no sum but what was seen last.
    pub fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
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
    /// Given up, and a letter written in their place.
    dead_lettered,
    /// Asked to be retried.
    retried,
    /// Given up before their handler was called, their attempts used up.
    exhausted,
    /// Of the acknowledged ones, those whose reply was published in the same step.
    replied,
    /// Outcomes that the server refused to carry out; their entries stay pending.
    refused,
    /// Left pending by their handler or its failure.
    left,
    /// Found to be owned by someone else.
    lost,
    /// Given back at stop without having been started.
    released,
    /// Claimed while already in this process, and not handled twice.
    duplicates,
    /// Of messages that were handled before: acknowledged without a call of the handler.
    duplicates_done,
    /// Of messages that are being handled: they wait for that.
    duplicates_waiting,
    /// Failures of the store that keeps the marks.
    mark_errors,
    /// Copies made by another group's retry, acknowledged unseen.
    foreign_copies,
    /// Pending entries whose body was gone.
    deleted,
    /// Consumers of ended processes that were deleted.
    forgotten,
    /// Entries trimmed from the stream.
    trimmed,
    /// Entries beyond the stream's bound that some group needs, when this process looked last.
    held_back,
    /// Reads sent.
    reads,
    /// Commands sent to settle, pipelined ones counted singly.
    settles,
    /// Reads that failed.
    read_errors,
    /// Connections made again.
    reconnects,
}

#[cfg(test)]
mod tests {
    use super::Stats;

    #[test]
    fn a_snapshot_names_every_counter_and_its_number() {
        let stats = Stats::default();
        stats.read.add(3);
        stats.read.add(4);
        stats.reconnects.add(1);
        let snapshot = stats.snapshot();
        let of = |wanted: &str| snapshot.iter().find(|(name, _)| *name == wanted).map(|(_, number)| *number);
        assert_eq!((of("read"), of("reconnects"), of("acked"), of("none such")), (Some(7), Some(1), Some(0), None));
        let mut names: Vec<_> = snapshot.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), snapshot.len());
        assert_eq!(snapshot.iter().map(|(_, number)| number).sum::<u64>(), 8);
    }

    #[test]
    fn threads_lose_no_count() {
        let stats = Stats::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| stats.acked.add(2)));
            }
        });
        assert_eq!(stats.acked.get(), 8000);
    }
}
