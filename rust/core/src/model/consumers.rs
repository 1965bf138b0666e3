//! Consumers of a group, as the scripts on a server look at them.

use std::time::Duration;

use super::keyspace::Keyspace;
use crate::error::Result;
use crate::store::ConsumerRow;

impl Keyspace {
    /// The group's consumers as they were, having noted that those of `living` live.
    pub(super) fn consumer_rows(&mut self, key: &str, group: &str, living: &[&str]) -> Result<Vec<ConsumerRow>> {
        if self.stream(key)?.is_none() {
            return Ok(Vec::new());
        }
        let now = self.now();
        let rows = self.xinfo_consumers(key, group)?;
        if let Some((_, group)) = self.group_mut(key, group)? {
            for row in rows.iter().filter(|row| living.contains(&row.name.as_str())) {
                group.seen(&row.name, now);
            }
        }
        let row = |row: super::info::ConsumerInfo| ConsumerRow {
            name: row.name,
            pending: row.pending as u64,
            idle: Duration::from_millis(row.idle),
            inactive: row.inactive.map(Duration::from_millis),
        };
        Ok(rows.into_iter().map(row).collect())
    }

    /// Delete those that have nothing pending and were not heard of for so long.
    pub(super) fn forget(&mut self, key: &str, group: &str, names: &[&str], idle: Duration) -> Result<Vec<String>> {
        if self.stream(key)?.is_none() {
            return Ok(Vec::new());
        }
        let mut forgotten = Vec::new();
        for row in self.xinfo_consumers(key, group)? {
            let quiet = row.pending == 0 && u128::from(row.idle) >= idle.as_millis();
            if quiet && names.contains(&row.name.as_str()) {
                self.xgroup_delete_consumer(key, group, &row.name)?;
                forgotten.push(row.name);
            }
        }
        Ok(forgotten)
    }
}
