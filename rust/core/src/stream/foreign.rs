//! Copies that retries of other groups made: they are acknowledged unseen. A copy for a group that the stream does not
//! have is an ordinary entry, as where a group was renamed, or the stream is the mirror of another one.

use std::collections::HashSet;

use parking_lot::Mutex;

use super::StreamSource;
use crate::backoff::Quiet;
use crate::batch::RawBatch;
use crate::entry::{Slot, Span};
use crate::error::{Error, Result};
use crate::event::Level;
use crate::subscription::Subscription;

/// How long a group that was there is taken to be there, in milliseconds of the clock. One that was not is asked for
/// again with the next read that brings a copy for it: it may have been made, and have retried, since.
const KNOWN_MS: u64 = 10_000;

/// What is known of the stream's other groups, and how often to speak of them.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// The groups there were, and when.
    groups: Mutex<(u64, HashSet<String>)>,
    unseen: Quiet,
    ownerless: Quiet,
}

/// The other group that a retry made this entry for.
fn other<'a>(slot: &Slot, bytes: &'a [u8], group: &str) -> Option<&'a [u8]> {
    let of = slot.copy_of.of(bytes);
    (slot.copy_of.is_some() && of != group.as_bytes()).then_some(of)
}

fn is_in(groups: &HashSet<String>, group: &[u8]) -> bool {
    groups.contains(&*String::from_utf8_lossy(group))
}

impl Foreign {
    /// Take copies for groups that the stream does not have for ordinary entries. One question for all of a read.
    pub(super) async fn adopt(
        &self,
        source: &StreamSource,
        subscription: &Subscription,
        raw: &mut RawBatch,
    ) -> Result<()> {
        let (bytes, group) = (raw.bytes.clone(), subscription.origin.group.as_str());
        let named: HashSet<&[u8]> = raw.slots.iter().filter_map(|slot| other(slot, &bytes, group)).collect();
        if named.is_empty() || self.has_all(&named, subscription.clock.now_ms()) {
            return Ok(());
        }
        let stream = &subscription.origin.stream;
        let groups = match source.store.list_groups(stream).await {
            Ok(Some(groups)) => groups,
            Err(error @ Error::Lost(_)) => return Err(error),
            // One who may read need not be allowed to look: then the copies are what they say.
            Ok(None) | Err(_) => return Ok(()),
        };
        let there: HashSet<String> = groups.into_iter().map(|group| group.name).collect();
        let (mut adopted, mut first) = (0, None);
        for slot in &mut raw.slots {
            if let Some(group) = other(slot, &bytes, group).filter(|group| !is_in(&there, group)) {
                slot.copy_of = Span::NONE;
                adopted += 1;
                first = first.or(Some(group));
            }
        }
        *self.groups.lock() = (subscription.clock.now_ms(), there);
        if let Some(group) = first {
            subscription.log_paced(&self.ownerless, Level::Info, || {
                let group = String::from_utf8_lossy(group);
                format!("{adopted} copies are for groups that the stream does not have ({group}), and are handled here")
            });
        }
        Ok(())
    }

    fn has_all(&self, named: &HashSet<&[u8]>, now: u64) -> bool {
        let groups = self.groups.lock();
        now.saturating_sub(groups.0) < KNOWN_MS && named.iter().all(|group| is_in(&groups.1, group))
    }

    /// Leave out the copies that are other groups'. Returns them.
    pub(super) fn leave_out(&self, subscription: &Subscription, raw: &mut RawBatch) -> Vec<Slot> {
        let (bytes, group) = (raw.bytes.clone(), subscription.origin.group.as_str());
        let is_foreign = |slot: &mut Slot| !slot.deleted && other(slot, &bytes, group).is_some();
        let left: Vec<_> = raw.slots.extract_if(.., is_foreign).collect();
        if let Some(group) = left.first().and_then(|slot| other(slot, &bytes, group)) {
            subscription.stats.foreign_copies.add(left.len());
            subscription.log_paced(&self.unseen, Level::Info, || {
                let (count, group) = (left.len(), String::from_utf8_lossy(group));
                format!("{count} copies that retries of other groups made ({group}) are acknowledged unseen")
            });
        }
        left
    }
}
