//! `XPENDING`: what a group's consumers have and have not settled.

use super::argument::Range;
use super::keyspace::Keyspace;
use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// `XPENDING key group`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingSummary {
    /// How many entries.
    pub count: usize,
    /// The smallest and the greatest id.
    pub edges: Option<(EntryId, EntryId)>,
    /// Consumers that have some, by name, and how many. What was handed back is nobody's.
    pub consumers: Vec<(String, usize)>,
}

/// One pending entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingEntry {
    /// Its id.
    pub id: EntryId,
    /// Who has it; empty once it was handed back.
    pub consumer: String,
    /// Milliseconds since its last delivery; -1 once it was handed back.
    pub idle: i64,
    /// Deliveries.
    pub count: i64,
}

impl Keyspace {
    /// `XPENDING key group`.
    pub fn xpending(&self, key: &str, group: &str) -> Result<PendingSummary> {
        let (_, group) = self.group(key, group)?.ok_or_else(|| refusal::no_group(key, group))?;
        let mut all = group.range(Range::ALL).map(|(id, _)| id);
        let first = all.next();
        let edges = first.map(|first| (first, all.next_back().unwrap_or(first)));
        let consumers = group.consumers().flatten().filter(|consumer| consumer.pending > 0);
        Ok(PendingSummary {
            count: group.len(),
            edges,
            consumers: consumers.map(|consumer| (consumer.name.clone(), consumer.pending)).collect(),
        })
    }

    /// `XPENDING key group [IDLE min_idle] start end count [consumer]`. What was handed back is idle enough.
    pub fn xpending_range(
        &self,
        key: &str,
        group: &str,
        min_idle: u64,
        range: Range,
        count: usize,
        consumer: Option<&str>,
    ) -> Result<Vec<PendingEntry>> {
        let now = self.now();
        let (_, group) = self.group(key, group)?.ok_or_else(|| refusal::no_group(key, group))?;
        let number = match consumer.map(|name| group.find(name)) {
            Some(None) => return Ok(Vec::new()),
            other => other.flatten(),
        };
        let pending = group
            .range(range)
            .filter(|(_, nack)| number.is_none() || nack.owner == number)
            .filter(|(_, nack)| nack.owner.is_none() || now.saturating_sub(nack.delivered()) >= min_idle)
            .take(count)
            .map(|(id, nack)| PendingEntry {
                id,
                consumer: group.owner(nack).to_owned(),
                idle: match nack.owner {
                    None => -1,
                    Some(_) => i64::try_from(now.saturating_sub(nack.delivered())).unwrap_or(i64::MAX),
                },
                count: nack.count,
            });
        Ok(pending.collect())
    }

    /// The one pending entry with this id.
    pub(super) fn pending_entry(&self, key: &str, group: &str, id: EntryId) -> Result<Option<PendingEntry>> {
        Ok(self.xpending_range(key, group, 0, Range::one(id), 1, None)?.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::argument::{AddId, Position};
    use crate::model::claim::{Claim, Delivered};
    use crate::model::read::GroupRead;
    use crate::model::settle::HandBack;

    const fn id(ms: u64) -> EntryId {
        EntryId::new(ms, 0)
    }

    fn pending() -> Keyspace {
        let mut keyspace = Keyspace::default();
        keyspace.set_now(1_000);
        assert!(keyspace.xgroup_create("s", "g", Position::End, true, None).is_ok());
        for ms in 1..=4 {
            assert!(keyspace.xadd("s", AddId::Exact(id(ms)), &[("f", "v")], None).is_ok());
        }
        for (consumer, count) in [("b", 1), ("a", 2), ("z", 1)] {
            let read = GroupRead { count, ..GroupRead::new("s", "g", consumer) };
            assert!(keyspace.xreadgroup(&read).is_ok_and(|read| read.is_some()));
        }
        let old = Claim { delivered: Delivered::Ago(400), just_id: true, ..Claim::default() };
        assert_eq!(keyspace.xclaim("s", "g", "a", &old, &[id(3)]).map(|claimed| claimed.len()), Ok(1));
        assert_eq!(keyspace.xnack("s", "g", HandBack::Fail, &[id(4)], false), Ok(1));
        keyspace
    }

    #[test]
    fn the_summary_names_who_has_something() {
        let keyspace = pending();
        let summary = keyspace.xpending("s", "g").unwrap_or_default();
        let consumers = vec![("a".to_owned(), 2), ("b".to_owned(), 1)];
        assert_eq!(summary, PendingSummary { count: 4, edges: Some((id(1), id(4))), consumers });
        assert_eq!(keyspace.xpending("s", "x"), Err(refusal::no_group("s", "x")));
    }

    #[test]
    fn a_range_tells_owner_idle_time_and_count() {
        let keyspace = pending();
        let range = |min_idle, from, count, consumer| -> Vec<_> {
            let range = Range::from(id(from));
            let found = keyspace.xpending_range("s", "g", min_idle, range, count, consumer).unwrap_or_default();
            found.into_iter().map(|one| (one.id.ms, one.consumer, one.idle, one.count)).collect()
        };
        let (a, b) = (|| "a".to_owned(), || "b".to_owned());
        let all = [(1, b(), 0, 1), (2, a(), 0, 1), (3, a(), 400, 1), (4, String::new(), -1, 1)];
        assert_eq!(range(0, 0, 9, None), all);
        assert_eq!(range(0, 2, 2, None), all[1..3]);
        assert_eq!(range(400, 0, 9, None), all[2..]);
        assert_eq!(range(0, 0, 9, Some("a")), all[1..3]);
        assert!(range(0, 0, 9, Some("none")).is_empty() && range(0, 0, 0, None).is_empty());
    }
}
