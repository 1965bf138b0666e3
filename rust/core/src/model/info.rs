//! `XINFO`: the figures of streams, groups and consumers.

use std::sync::Arc;

use super::argument::Range;
use super::body::Body;
use super::keyspace::Keyspace;
use super::pending::PendingEntry;
use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// `XINFO STREAM`, without what the model does not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// Entries.
    pub length: usize,
    /// Nodes that they are packed in: what an approximate trim removes is one at least.
    pub radix_tree_keys: usize,
    /// The id last given out.
    pub last_generated_id: EntryId,
    /// The greatest id that was deleted by name.
    pub max_deleted_entry_id: EntryId,
    /// Entries ever added.
    pub entries_added: u64,
    /// The first entry's id; `0-0` where there is none.
    pub recorded_first_entry_id: EntryId,
    /// Groups.
    pub groups: usize,
    /// The first entry.
    pub first_entry: Option<Arc<Body>>,
    /// The last entry.
    pub last_entry: Option<Arc<Body>>,
}

/// `XINFO GROUPS` of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Consumers.
    pub consumers: usize,
    /// Pending entries.
    pub pending: usize,
    /// Where it stands.
    pub last_delivered_id: EntryId,
    /// How many entries were added up to there; none: it can't be told.
    pub entries_read: Option<u64>,
    /// How many entries it has before it; none: it can't be told.
    pub lag: Option<i64>,
    /// Pending entries that were handed back (`nacked-count` of `XINFO STREAM FULL`).
    pub handed_back: usize,
}

/// `XINFO CONSUMERS` of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its name.
    pub name: String,
    /// Pending entries.
    pub pending: usize,
    /// Milliseconds since it last asked for something.
    pub idle: u64,
    /// Milliseconds since it last got something; none: it never did.
    pub inactive: Option<u64>,
}

impl Keyspace {
    /// `XINFO STREAM`.
    pub fn xinfo_stream(&self, key: &str) -> Result<StreamInfo> {
        let stream = self.stream(key)?.ok_or_else(refusal::no_key)?;
        let entries = &stream.entries;
        let mut all = entries.range(Range::ALL);
        let first = all.next().cloned();
        Ok(StreamInfo {
            length: entries.len(),
            radix_tree_keys: entries.nodes(),
            last_generated_id: entries.last,
            max_deleted_entry_id: entries.max_deleted,
            entries_added: entries.added,
            recorded_first_entry_id: entries.first(),
            groups: stream.groups.len(),
            last_entry: all.next_back().cloned().or_else(|| first.clone()),
            first_entry: first,
        })
    }

    /// `XINFO GROUPS`, by name.
    pub fn xinfo_groups(&self, key: &str) -> Result<Vec<GroupInfo>> {
        let stream = self.stream(key)?.ok_or_else(refusal::no_key)?;
        let groups = stream.groups.iter().map(|(name, group)| GroupInfo {
            name: name.clone(),
            consumers: group.consumers().len(),
            pending: group.len(),
            last_delivered_id: group.last,
            entries_read: group.read,
            lag: stream.entries.lag(group.last, group.read),
            handed_back: group.handed_back(),
        });
        Ok(groups.collect())
    }

    /// `XINFO CONSUMERS`, by name.
    pub fn xinfo_consumers(&self, key: &str, group: &str) -> Result<Vec<ConsumerInfo>> {
        let stream = self.stream(key)?.ok_or_else(refusal::no_key)?;
        let group = stream.groups.get(group).ok_or_else(|| refusal::no_such_group(key, group))?;
        let since = |time: u64| self.now().saturating_sub(time);
        let consumers = group.consumers().flatten().map(|consumer| ConsumerInfo {
            name: consumer.name.clone(),
            pending: consumer.pending,
            idle: since(consumer.seen),
            inactive: consumer.active.map(since),
        });
        Ok(consumers.collect())
    }

    /// The pending entries of a group in the order that claims take them; idle times are as claims tell them, so that
    /// what was handed back is as old as the epoch. No command shows this order; tests and tools want it.
    pub fn pending_by_age(&self, key: &str, group: &str) -> Result<Vec<PendingEntry>> {
        let (_, found) = self.group(key, group)?.ok_or_else(|| refusal::no_group(key, group))?;
        let entry = |(id, delivered): (EntryId, u64)| {
            found.get(id).map(|nack| PendingEntry {
                id,
                consumer: found.owner(nack).to_owned(),
                idle: i64::try_from(self.now().saturating_sub(delivered)).unwrap_or(i64::MAX),
                count: nack.count,
            })
        };
        Ok(found.by_age().filter_map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::argument::{AddId, Position};
    use crate::model::read::GroupRead;
    use crate::model::settle::HandBack;

    const fn id(ms: u64) -> EntryId {
        EntryId::new(ms, 0)
    }

    fn filled() -> Keyspace {
        let mut keyspace = Keyspace::default();
        keyspace.set_now(1_000);
        for ms in 1..=3 {
            assert!(keyspace.xadd("s", AddId::Exact(id(ms)), &[("f", "v")], None).is_ok());
        }
        for group in ["late", "early"] {
            let start = if group == "late" { Position::End } else { Position::After(EntryId::ZERO) };
            assert!(keyspace.xgroup_create("s", group, start, false, None).is_ok());
        }
        keyspace
    }

    #[test]
    fn a_stream_tells_its_history() {
        let mut keyspace = filled();
        assert_eq!(keyspace.xdel("s", &[id(1), id(3)]), Ok(2));
        let info = keyspace.xinfo_stream("s").ok();
        let figures = info.as_ref().map(|info| {
            (info.length, info.last_generated_id, info.max_deleted_entry_id, info.entries_added, info.groups)
        });
        assert_eq!(figures, Some((1, id(3), id(3), 3, 2)));
        let edges = info.map(|info| (info.first_entry, info.last_entry, info.recorded_first_entry_id));
        let edges =
            edges.map(|(first, last, recorded)| [first.map(|one| one.id()), last.map(|one| one.id()), Some(recorded)]);
        assert_eq!(edges, Some([Some(id(2)); 3]));
        assert_eq!(keyspace.xinfo_stream("none"), Err(refusal::no_key()));
    }

    #[test]
    fn groups_come_by_name_with_their_lag() {
        let mut keyspace = filled();
        let read = GroupRead { count: 2, ..GroupRead::new("s", "early", "c") };
        assert!(keyspace.xreadgroup(&read).is_ok());
        assert_eq!(keyspace.xnack("s", "early", HandBack::Fail, &[id(1)], false), Ok(1));
        let groups = keyspace.xinfo_groups("s").unwrap_or_default();
        let figures: Vec<_> = groups
            .iter()
            .map(|one| (one.name.as_str(), one.pending, one.handed_back, one.entries_read, one.lag))
            .collect();
        assert_eq!(figures, [("early", 2, 1, Some(2), Some(1)), ("late", 0, 0, None, Some(0))]);
        let order = keyspace.pending_by_age("s", "early").unwrap_or_default();
        assert_eq!(order.iter().map(|one| (one.id, one.idle)).collect::<Vec<_>>(), [(id(1), 1_000), (id(2), 0)]);
    }

    #[test]
    fn consumers_come_by_name_with_their_times() {
        let mut keyspace = filled();
        assert!(keyspace.xreadgroup(&GroupRead::new("s", "early", "b")).is_ok());
        keyspace.set_now(1_500);
        assert!(keyspace.xreadgroup(&GroupRead::new("s", "early", "a")).is_ok());
        keyspace.set_now(1_600);
        let info = |name: &str, pending, idle, inactive| ConsumerInfo { name: name.into(), pending, idle, inactive };
        let consumers = keyspace.xinfo_consumers("s", "early");
        assert_eq!(consumers, Ok(vec![info("a", 0, 100, None), info("b", 3, 600, Some(600))]));
        assert_eq!(keyspace.xinfo_consumers("s", "x"), Err(refusal::no_such_group("s", "x")));
    }
}
