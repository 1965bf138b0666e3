//! The marks of starts: what the scripts of the server's store do with them, as one command each.

use super::keyspace::Keyspace;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::order::Verdict;
use crate::store::StartMark;

impl Keyspace {
    pub(super) fn start_marks(&self, key: &str, ids: &[EntryId]) -> Result<Vec<Option<String>>> {
        let mark = |id: &EntryId| Ok(self.hget(key, id.to_string().as_bytes())?.map(text));
        ids.iter().map(mark).collect()
    }

    pub(super) fn mark_starts(&mut self, owner: &Origin, key: &str, marks: &[StartMark]) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::with_capacity(marks.len());
        for mark in marks {
            let verdict = match self.check(owner, mark.id, mark.count) {
                // Nothing is pending in a group that is not there.
                Err(Error::NoGroup(_)) => return Ok(vec![Verdict::Gone; marks.len()]),
                checked => checked?,
            };
            let id = mark.id.to_string();
            if verdict == Verdict::Done && mark.text.is_empty() {
                self.hdel(key, &[id])?;
            } else if verdict == Verdict::Done {
                self.hset(key, id.as_bytes(), mark.text.as_bytes())?;
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    /// Take away the marks of what was acknowledged, and of those of the others that are not pending any more.
    pub(super) fn unmark_settled(
        &mut self,
        origin: &Origin,
        key: &str,
        ids: &[EntryId],
        acks: &[EntryId],
    ) -> Result<()> {
        let (acked, others): (Vec<EntryId>, Vec<EntryId>) = ids.iter().copied().partition(|id| acks.contains(id));
        let acked: Vec<_> = acked.iter().map(EntryId::to_string).collect();
        if !acked.is_empty() {
            self.hdel(key, &acked)?;
        }
        self.unmark_starts(origin, key, &others).map(drop)
    }

    pub(super) fn unmark_starts(&mut self, origin: &Origin, key: &str, ids: &[EntryId]) -> Result<usize> {
        let mut gone = Vec::new();
        for id in ids {
            if self.pending_entry(&origin.stream, &origin.group, *id)?.is_none() {
                gone.push(id.to_string());
            }
        }
        if gone.is_empty() { Ok(0) } else { self.hdel(key, &gone) }
    }

    /// All of them at once: nothing else runs meanwhile anyway.
    pub(super) fn marked_starts(&self, key: &str, _cursor: u64, _count: usize) -> Result<(Vec<EntryId>, u64)> {
        let marked = self.hgetall(key)?;
        Ok((marked.into_iter().filter_map(|(field, _)| EntryId::parse(field)).collect(), 0))
    }
}

fn text(mark: &[u8]) -> String {
    String::from_utf8_lossy(mark).into_owned()
}
