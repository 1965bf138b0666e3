//! Looking at a stream's groups and at what is pending in them.

use std::time::Duration;

use super::argument::Range;
use super::keyspace::Keyspace;
use crate::error::Result;
use crate::store::{GroupRow, PendingRow};

impl Keyspace {
    pub(super) fn group_rows(&self, key: &str) -> Result<Option<Vec<GroupRow>>> {
        if self.stream(key)?.is_none() {
            return Ok(None);
        }
        let rows = self.xinfo_groups(key)?.into_iter().map(|group| GroupRow {
            name: group.name,
            consumers: group.consumers as u64,
            pending: group.pending as u64,
            lag: group.lag.and_then(|lag| u64::try_from(lag).ok()),
            last: group.last_delivered_id,
        });
        Ok(Some(rows.collect()))
    }

    pub(super) fn pending_rows(&self, key: &str, group: &str, count: usize) -> Result<Vec<PendingRow>> {
        let rows = self.xpending_range(key, group, 0, Range::ALL, count, None)?.into_iter().map(|entry| PendingRow {
            id: entry.id,
            consumer: entry.consumer,
            idle: u64::try_from(entry.idle).ok().map(Duration::from_millis),
            deliveries: u64::try_from(entry.count).unwrap_or(0),
        });
        Ok(rows.collect())
    }
}
