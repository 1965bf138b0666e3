//! A stream's entries and the figures the server keeps about them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::argument::{AddId, Range};
use super::body::Body;
use super::node::Node;
use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// The longest sum of an entry's strings.
const MAX_ENTRY: usize = 1 << 30;
/// How many entries one approximate trim removes at most, where it was not said.
const TRIM_LIMIT: usize = 10_000;

/// What a trim leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// So many entries, the newest (`MAXLEN`).
    Newest(u64),
    /// Entries from this id on (`MINID`).
    From(EntryId),
}

/// How a stream is trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimTo {
    /// What is left.
    pub keep: Keep,
    /// `~`: only whole nodes are removed, so that more may be left.
    pub approximate: bool,
}

/// Entries by id, and their history.
#[derive(Debug, Default)]
pub(super) struct Entries {
    bodies: BTreeMap<EntryId, Arc<Body>>,
    nodes: VecDeque<Node>,
    /// The last id given out.
    pub(super) last: EntryId,
    /// The greatest id that was deleted by name; trimming does not count.
    pub(super) max_deleted: EntryId,
    /// How many were ever added.
    pub(super) added: u64,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.bodies.len()
    }

    /// How many nodes they are packed in.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&Arc<Body>> {
        self.bodies.get(&id)
    }

    pub(super) fn contains(&self, id: EntryId) -> bool {
        self.bodies.contains_key(&id)
    }

    pub(super) fn range(&self, range: Range) -> impl DoubleEndedIterator<Item = &Arc<Body>> {
        let range = if range.is_empty() { Range::one(EntryId::ZERO) } else { range };
        self.bodies.range(range.start..=range.end).map(|(_, body)| body)
    }

    /// The id of the first entry; `0-0` where there is none.
    pub(super) fn first(&self) -> EntryId {
        self.bodies.first_key_value().map_or(EntryId::ZERO, |(id, _)| *id)
    }

    fn next_id(&self, now: u64, wanted: AddId) -> Option<EntryId> {
        let last = self.last;
        let id = match wanted {
            AddId::Auto if now > last.ms => EntryId::new(now, 0),
            AddId::Auto => last.next(),
            AddId::Ms(ms) if ms == last.ms => EntryId::new(ms, last.seq.checked_add(1)?),
            AddId::Ms(ms) => EntryId::new(ms, 0),
            AddId::Exact(id) => id,
        };
        (id > last).then_some(id)
    }

    /// Add an entry at the time `now`.
    pub(super) fn append<N, V>(&mut self, now: u64, wanted: AddId, fields: &[(N, V)]) -> Result<EntryId>
    where
        N: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        if self.last == super::argument::LAST {
            let text = "ERR The stream has exhausted the last possible ID, unable to add more items";
            return Err(refusal::server(text));
        }
        let id = self.next_id(now, wanted).ok_or_else(|| {
            refusal::server("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        })?;
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        if fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ENTRY {
            return Err(refusal::server("ERR Elements are too large to be stored"));
        }
        if !self.nodes.back().is_some_and(|node| node.has_room(&fields)) {
            self.nodes.push_back(Node::new(id, &fields));
        }
        if let Some(node) = self.nodes.back_mut() {
            node.add(id, &fields);
        }
        self.bodies.insert(id, Body::new(id, &fields));
        self.added += 1;
        self.last = id;
        Ok(id)
    }

    /// Delete one entry. False: it was not there.
    pub(super) fn delete(&mut self, id: EntryId) -> bool {
        if self.bodies.remove(&id).is_none() {
            return false;
        }
        let behind = self.nodes.partition_point(|node| node.begins_by(id));
        if let Some(at) = behind.checked_sub(1) {
            self.nodes[at].live -= 1;
            if self.nodes[at].live == 0 {
                self.nodes.remove(at);
            }
        }
        self.max_deleted = self.max_deleted.max(id);
        true
    }

    /// Remove entries from the front. Returns how many.
    pub(super) fn trim(&mut self, to: TrimTo) -> usize {
        self.trim_within(to, TRIM_LIMIT)
    }

    /// The same with a `LIMIT`, which counts for approximate trims.
    pub(super) fn trim_within(&mut self, to: TrimTo, limit: usize) -> usize {
        let mut removed = 0;
        while let Some(node) = self.nodes.front() {
            let live = node.live;
            let whole = match to.keep {
                Keep::Newest(length) if self.surplus(length) == 0 => break,
                Keep::Newest(length) => self.surplus(length) >= live,
                Keep::From(id) => node.last < id,
            };
            if to.approximate && (!whole || removed + live > limit) {
                break;
            }
            let here = match to.keep {
                _ if whole => live,
                Keep::Newest(length) => self.surplus(length),
                Keep::From(id) => self.bodies.range(..id).count(),
            };
            for _ in 0..here {
                self.bodies.pop_first();
            }
            removed += here;
            if !whole {
                // A node of deleted entries only may be left; the next trim takes it along.
                if let Some(node) = self.nodes.front_mut() {
                    node.live -= here;
                }
                break;
            }
            self.nodes.pop_front();
        }
        removed
    }

    fn surplus(&self, length: u64) -> usize {
        self.len().saturating_sub(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Whether an entry behind `id` (itself included) was deleted by name, as far as the server can tell.
    pub(super) fn is_holed_from(&self, id: EntryId) -> bool {
        self.len() > 0 && self.max_deleted != EntryId::ZERO && id <= self.max_deleted
    }

    /// How many entries were added up to `id`, where that can be told.
    pub(super) fn distance(&self, id: EntryId) -> Option<u64> {
        let first = self.first();
        let length = self.len() as u64;
        if self.added == 0 {
            Some(0)
        } else if length == 0 && id <= self.last {
            Some(self.added)
        } else if id != EntryId::ZERO && id < self.max_deleted {
            None
        } else if id >= self.last {
            (id == self.last).then_some(self.added)
        } else if self.max_deleted == EntryId::ZERO || self.max_deleted < first {
            match id.cmp(&first) {
                std::cmp::Ordering::Less => Some(self.added.saturating_sub(length)),
                std::cmp::Ordering::Equal => Some(self.added.saturating_sub(length) + 1),
                std::cmp::Ordering::Greater => None,
            }
        } else {
            None
        }
    }

    /// How many entries a group that stands at `last` and has read `read` has before it, where that can be told.
    pub(super) fn lag(&self, last: EntryId, read: Option<u64>) -> Option<i64> {
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        if self.added == 0 || self.len() == 0 {
            return Some(0);
        }
        if last < self.first() && self.max_deleted < self.first() {
            return Some(count(self.len() as u64));
        }
        let read = read.filter(|_| !self.is_holed_from(last)).or_else(|| self.distance(last))?;
        Some(count(self.added) - count(read))
    }
}

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
