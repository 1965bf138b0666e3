//! Commands that end a delivery: `XACK`, `XACKDEL`, `XNACK`.

use super::group::Group;
use super::keyspace::{Keyspace, Stream};
use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// What `XACKDEL` does about other groups that refer to the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum References {
    /// `KEEPREF`: delete it; what is pending elsewhere stays so, without a body.
    Keep,
    /// `DELREF`: delete it, and take it off their lists.
    Delete,
    /// `ACKED`: delete it only if no other group has it before it or pending.
    Acked,
}

/// What became of one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acked {
    /// It was not pending.
    Absent,
    /// Off the list, and deleted.
    Deleted,
    /// Off the list, and kept for other groups.
    Kept,
}

/// What becomes of the delivery count of an entry that is handed back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandBack {
    /// `SILENT`: the delivery does not count.
    Silent,
    /// `FAIL`: it counts.
    Fail,
    /// `FATAL`: the count is set to its maximum.
    Fatal,
    /// `RETRYCOUNT`: it is set to this.
    Count(i64),
}

impl HandBack {
    fn apply(self, count: i64) -> i64 {
        match self {
            Self::Silent => (count - 1).max(0),
            Self::Fail => count,
            Self::Fatal => i64::MAX,
            Self::Count(count) => count,
        }
    }
}

impl Stream {
    /// Whether a group has not read the entry yet, or has it pending.
    pub(super) fn is_referenced(&self, id: EntryId) -> bool {
        self.groups.values().any(|group| group.last < id || group.get(id).is_some())
    }
}

impl Keyspace {
    /// `XACK`. Returns how many were pending. A missing group has nothing pending.
    pub fn xack(&mut self, key: &str, group: &str, ids: &[EntryId]) -> Result<usize> {
        let Some((_, group)) = self.group_mut(key, group)? else {
            return Ok(0);
        };
        Ok(ids.iter().filter(|id| group.remove(**id)).count())
    }

    /// `XACKDEL`. One answer per id.
    pub fn xackdel(&mut self, key: &str, group: &str, references: References, ids: &[EntryId]) -> Result<Vec<Acked>> {
        let stream = self.stream_mut(key)?.filter(|stream| stream.groups.contains_key(group));
        let Some(stream) = stream else {
            return Ok(vec![Acked::Absent; ids.len()]);
        };
        let ack = |id: &EntryId| {
            if !stream.groups.get_mut(group).is_some_and(|group| group.remove(*id)) {
                return Acked::Absent;
            }
            if references == References::Acked && stream.is_referenced(*id) {
                return Acked::Kept;
            }
            if references == References::Delete {
                for group in stream.groups.values_mut() {
                    group.remove(*id);
                }
            }
            stream.entries.delete(*id);
            Acked::Deleted
        };
        Ok(ids.iter().map(ack).collect())
    }

    /// `XNACK`. Returns how many were handed back. `force`: entries that are not pending become so.
    pub fn xnack(&mut self, key: &str, group: &str, how: HandBack, ids: &[EntryId], force: bool) -> Result<usize> {
        let Some((entries, found)) = self.group_mut(key, group)? else {
            return Err(refusal::no_group(key, group));
        };
        if matches!(how, HandBack::Count(count) if count < 0) {
            return Err(refusal::server("ERR Invalid RETRYCOUNT value, must be >= 0"));
        }
        let hand_back = |group: &mut Group, id: EntryId| {
            if group.get(id).is_none() && (!force || !entries.contains(id)) {
                return false;
            }
            if let Some(nack) = group.put(id, None, 0) {
                nack.count = how.apply(nack.count);
            }
            true
        };
        let handed_back = ids.iter().filter(|id| hand_back(found, **id)).count();
        if handed_back > 0 {
            self.signal(key);
        }
        Ok(handed_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::argument::{AddId, Position};
    use crate::model::read::GroupRead;

    const fn id(ms: u64) -> EntryId {
        EntryId::new(ms, 0)
    }

    /// Entries 1 to 3; group `a` has them pending, group `b` has read nothing.
    fn pending() -> Keyspace {
        let mut keyspace = Keyspace::default();
        keyspace.set_now(1_000);
        for ms in 1..=3 {
            assert!(keyspace.xadd("s", AddId::Exact(id(ms)), &[("f", "v")], None).is_ok());
        }
        for group in ["a", "b"] {
            assert!(keyspace.xgroup_create("s", group, Position::After(EntryId::ZERO), false, None).is_ok());
        }
        assert!(keyspace.xreadgroup(&GroupRead::new("s", "a", "c")).is_ok_and(|read| read.is_some()));
        keyspace.take_ready();
        keyspace
    }

    fn nack(keyspace: &Keyspace, ms: u64) -> Option<(i64, u64, bool)> {
        let group = keyspace.group("s", "a").ok().flatten();
        group.and_then(|(_, group)| group.get(id(ms)).map(|nack| (nack.count, nack.delivered(), nack.owner.is_some())))
    }

    #[test]
    fn an_ack_takes_off_the_list_whoever_sends_it() {
        let mut keyspace = pending();
        assert_eq!(keyspace.xack("s", "a", &[id(1), id(1), id(9)]), Ok(1));
        assert_eq!((keyspace.xack("s", "none", &[id(1)]), keyspace.xack("none", "a", &[id(1)])), (Ok(0), Ok(0)));
        assert_eq!(keyspace.xlen("s"), Ok(3));
    }

    #[test]
    fn an_ack_that_deletes_minds_other_groups_as_told() {
        let mut keyspace = pending();
        let acked = keyspace.xackdel("s", "a", References::Acked, &[id(1), id(1)]);
        assert_eq!(acked, Ok(vec![Acked::Kept, Acked::Absent]));
        assert!(keyspace.xreadgroup(&GroupRead::new("s", "b", "c")).is_ok_and(|read| read.is_some()));
        assert_eq!(keyspace.xackdel("s", "b", References::Acked, &[id(1)]), Ok(vec![Acked::Deleted]));
        assert_eq!(keyspace.xackdel("s", "a", References::Delete, &[id(2)]), Ok(vec![Acked::Deleted]));
        assert_eq!(keyspace.xackdel("s", "b", References::Keep, &[id(2)]), Ok(vec![Acked::Absent]));
        assert_eq!(keyspace.xackdel("s", "b", References::Keep, &[id(3)]), Ok(vec![Acked::Deleted]));
        assert_eq!((nack(&keyspace, 3).is_some(), keyspace.xlen("s")), (true, Ok(0)));
        assert_eq!(keyspace.xackdel("none", "a", References::Keep, &[id(1)]), Ok(vec![Acked::Absent]));
    }

    #[test]
    fn handing_back_takes_the_owner_and_sets_the_count() {
        let mut keyspace = pending();
        for (how, count) in [
            (HandBack::Fail, 1),
            (HandBack::Silent, 0),
            (HandBack::Silent, 0),
            (HandBack::Count(7), 7),
            (HandBack::Fatal, i64::MAX),
        ] {
            assert_eq!(keyspace.xnack("s", "a", how, &[id(2)], false), Ok(1));
            assert_eq!(nack(&keyspace, 2), Some((count, 0, false)), "{how:?}");
        }
        assert_eq!(keyspace.take_ready(), ["s"]);
        let refused = keyspace.xnack("s", "a", HandBack::Count(-1), &[id(2)], false);
        assert!(refused.is_err_and(|error| error.to_string().contains("RETRYCOUNT")));
    }

    #[test]
    fn only_force_hands_back_what_is_not_pending() {
        let mut keyspace = pending();
        assert_eq!(keyspace.xack("s", "a", &[id(1), id(2)]), Ok(2));
        assert_eq!(keyspace.xnack("s", "a", HandBack::Fail, &[id(1)], false), Ok(0));
        assert!(keyspace.take_ready().is_empty());
        assert_eq!(keyspace.xnack("s", "a", HandBack::Fail, &[id(1), id(9)], true), Ok(1));
        assert_eq!(keyspace.xnack("s", "a", HandBack::Count(4), &[id(2)], true), Ok(1));
        assert_eq!((nack(&keyspace, 1), nack(&keyspace, 2)), (Some((0, 0, false)), Some((4, 0, false))));
        assert_eq!(keyspace.xnack("s", "x", HandBack::Fail, &[id(1)], true), Err(refusal::no_group("s", "x")));
    }
}
