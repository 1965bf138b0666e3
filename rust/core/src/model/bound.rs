//! Trimming what no group needs, as the script on a server does it.

use super::argument::{LAST, Range};
use super::entries::{Keep, TrimTo};
use super::info::GroupInfo;
use super::keyspace::Keyspace;
use super::settle::References;
use crate::entry::EntryId;
use crate::error::Result;
use crate::store::{Bound, Holder, Trimmed};

/// Entries of a first node that is not removed as a whole, per step.
const REST: usize = 100;

/// A group, and the first entry that it needs.
struct Need {
    group: GroupInfo,
    from: EntryId,
}

impl Keyspace {
    /// Remove entries that no group needs, `limit` at most, until the stream is within its bound.
    pub(super) fn trim_step(&mut self, key: &str, groups: &[String], bound: Bound, limit: usize) -> Result<Trimmed> {
        let length = self.xlen(key)?;
        let first = self.stream(key)?.map(|stream| stream.entries.first()).unwrap_or_default();
        let surplus = |most: u64| length.saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
        let (mut budget, mut cutoff) = (limit.max(1), None);
        match bound {
            Bound::Acked => {}
            Bound::Length(most) => budget = budget.min(surplus(most)),
            Bound::Age(age) => {
                let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                cutoff = Some(EntryId::new(self.now().saturating_sub(age), 0));
            }
        }
        if length == 0 || budget == 0 || cutoff.is_some_and(|cutoff| first >= cutoff) {
            return Ok(Trimmed::default());
        }
        let needs = self.needs(key, first)?;
        let is_ours = |need: &Need| groups.contains(&need.group.name);
        let Some(needed) = needs.iter().map(|need| need.from).min() else {
            return Ok(Trimmed::default());
        };
        if needs.iter().filter(|need| is_ours(need)).count() < groups.len() {
            return Ok(Trimmed::default());
        }
        let upto = cutoff.map_or(needed, |cutoff| cutoff.min(needed));
        let removed = self.trim_before(key, upto, budget)?;
        if removed > 0 {
            return Ok(Trimmed { removed, ..Trimmed::default() });
        }
        let ours = || needs.iter().filter(|need| is_ours(need));
        let (over, behind) = match bound {
            Bound::Age(_) => (1, cutoff.unwrap_or(LAST)),
            Bound::Length(most) => (surplus(most) as u64, needed.next()),
            Bound::Acked => {
                let lag = |need: &Need| need.group.lag.and_then(|lag| u64::try_from(lag).ok());
                let has = |need: &Need| need.group.pending as u64 + lag(need).unwrap_or(length as u64);
                let most = ours().map(has).max().unwrap_or(0);
                ((length as u64).saturating_sub(most), ours().map(|need| need.from).min().unwrap_or_default())
            }
        };
        let holders = needs.iter().filter(|need| need.from < behind && !(bound == Bound::Acked && is_ours(need)));
        let holders: Vec<_> = holders
            .map(|need| Holder {
                group: need.group.name.clone(),
                pending: need.group.pending as u64,
                lag: need.group.lag.and_then(|lag| u64::try_from(lag).ok()),
            })
            .collect();
        Ok(Trimmed { removed: 0, over: if holders.is_empty() { 0 } else { over }, holders })
    }

    /// From which entry on each group needs them.
    fn needs(&self, key: &str, first: EntryId) -> Result<Vec<Need>> {
        let mut needs = Vec::new();
        for group in self.xinfo_groups(key)? {
            let oldest = self.xpending_range(key, &group.name, 0, Range::from(first), 1, None)?.pop();
            let next = group.last_delivered_id.next();
            let undelivered = self.xrange(key, Range::from(next), Some(1))?.pop().map_or(next, |body| body.id());
            let from = oldest.map_or(undelivered, |oldest| oldest.id.min(undelivered));
            needs.push(Need { group, from });
        }
        Ok(needs)
    }

    fn trim_before(&mut self, key: &str, upto: EntryId, budget: usize) -> Result<usize> {
        let Some(stream) = self.stream_mut(key)? else {
            return Ok(0);
        };
        let entries = &mut stream.entries;
        let whole = entries.trim_within(TrimTo { keep: Keep::From(upto), approximate: true }, budget);
        if whole > 0 {
            return Ok(whole);
        }
        let before = entries.range(Range::ALL).take_while(|body| body.id() < upto).take(budget.min(REST)).count();
        let left = entries.len().saturating_sub(before) as u64;
        Ok(entries.trim(TrimTo { keep: Keep::Newest(left), approximate: false }))
    }

    /// Acknowledge; with `delete`, delete what no group needs any more.
    pub(super) fn acknowledge(&mut self, key: &str, group: &str, ids: &[EntryId], delete: bool) -> Result<()> {
        if delete {
            self.xackdel(key, group, References::Acked, ids).map(drop)
        } else {
            self.xack(key, group, ids).map(drop)
        }
    }

    /// `XDELEX ... ACKED`: delete what no group needs any more.
    pub(super) fn delete_unneeded(&mut self, key: &str, ids: &[EntryId]) -> Result<()> {
        if let Some(stream) = self.stream_mut(key)? {
            for id in ids {
                if !stream.is_referenced(*id) {
                    stream.entries.delete(*id);
                }
            }
        }
        Ok(())
    }
}
