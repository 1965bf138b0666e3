//! The keys of one model, their types, and the time its commands see.

use std::collections::{BTreeMap, BTreeSet};

use super::delayed::{self, Member};
use super::entries::Entries;
use super::group::Group;
use super::hash::Hash;
use super::refusal;
use super::sorted::SortedSet;
use crate::entry::EntryId;
use crate::error::Result;

/// A stream: its entries, and the groups that read it.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) entries: Entries,
    pub(super) groups: BTreeMap<String, Group>,
}

#[derive(Debug)]
enum Value {
    Stream(Box<Stream>),
    Sorted(SortedSet),
    Hash(Hash),
    Text(Vec<u8>),
}

/// Keys and their values, with one method per command. A method is what one command is on a server: nothing else
/// happens meanwhile, and it has its whole effect or, where it is refused, none.
///
/// Time stands still between two calls of `set_now`. Whoever lets clients block on a keyspace asks `take_ready` after
/// each command which keys to look at again; `Model` does.
#[derive(Debug, Default)]
pub struct Keyspace {
    now: u64,
    keys: BTreeMap<String, Value>,
    /// When keys expire, and by when which do.
    expires: BTreeMap<String, u64>,
    expiring: BTreeSet<(u64, String)>,
    ready: Vec<String>,
}

impl Keyspace {
    /// The time of day, in milliseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Set the time of day for the commands that follow. It does not go back. What has expired by then is gone.
    pub fn set_now(&mut self, now: u64) {
        self.now = self.now.max(now);
        while self.expiring.first().is_some_and(|(when, _)| *when <= self.now) {
            if let Some((_, key)) = self.expiring.pop_first() {
                self.expires.remove(&key);
                self.del(&[&key]);
            }
        }
    }

    /// `TIME`: seconds, and microseconds within them.
    pub fn time(&self) -> (u64, u64) {
        (self.now / 1000, self.now % 1000 * 1000)
    }

    /// When something falls due after `now`: a pending entry as old as somebody asked for, a delayed one.
    pub(super) fn next_due(&self, now: u64) -> Option<u64> {
        // An entry that is parked until later is of no interest before, however old it gets.
        let parked = self.parked();
        let ripe =
            |(name, group): (&String, &Group)| group.next_ripe(now, |id| parked.contains(&(name.as_bytes(), id)));
        let due = |value: &Value| match value {
            Value::Stream(stream) => stream.groups.iter().filter_map(ripe).min(),
            Value::Sorted(sorted) => sorted.next_above(now).map(whole_ms),
            Value::Hash(_) | Value::Text(_) => None,
        };
        self.keys.values().filter_map(due).min()
    }

    /// Groups and ids of what is parked.
    #[expect(clippy::cast_precision_loss, reason = "a time of day in milliseconds is exact")]
    fn parked(&self) -> BTreeSet<(&[u8], EntryId)> {
        let sets = self.keys.values().filter_map(|value| match value {
            Value::Sorted(sorted) => Some(sorted),
            _ => None,
        });
        let members = sets.flat_map(SortedSet::iter).filter(|(_, score)| *score > self.now as f64);
        let parked = members.filter_map(|(member, _)| match delayed::read(member) {
            Member::Parked { id, group, .. } => Some((group, id)),
            _ => None,
        });
        parked.collect()
    }

    /// `TYPE`.
    pub fn kind(&self, key: &str) -> &'static str {
        match self.keys.get(key) {
            None => "none",
            Some(Value::Stream(_)) => "stream",
            Some(Value::Sorted(_)) => "zset",
            Some(Value::Hash(_)) => "hash",
            Some(Value::Text(_)) => "string",
        }
    }

    /// `KEYS *`, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// `DEL`. Returns how many keys were there.
    pub fn del(&mut self, keys: &[&str]) -> usize {
        let mut deleted = 0;
        for key in keys {
            self.persist(key);
            if let Some(value) = self.keys.remove(*key) {
                deleted += 1;
                if matches!(value, Value::Stream(_)) {
                    self.signal(key);
                }
            }
        }
        deleted
    }

    /// `FLUSHALL`.
    pub fn flush(&mut self) {
        let keys: Vec<_> = self.keys.keys().cloned().collect();
        self.del(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// `SET`: whatever the key held is gone.
    pub fn set(&mut self, key: &str, text: &[u8]) {
        self.persist(key);
        self.keys.insert(key.to_owned(), Value::Text(text.to_owned()));
        self.signal(key);
    }

    /// `SET` with `PX`: gone after so many milliseconds.
    pub fn set_for(&mut self, key: &str, text: &[u8], ms: u64) {
        self.set(key, text);
        let when = self.now.saturating_add(ms);
        self.expires.insert(key.to_owned(), when);
        self.expiring.insert((when, key.to_owned()));
    }

    /// `PTTL`: milliseconds until the key expires; none where it does not.
    pub fn expires_in(&self, key: &str) -> Option<u64> {
        self.expires.get(key).map(|when| when.saturating_sub(self.now))
    }

    fn persist(&mut self, key: &str) {
        if let Some(when) = self.expires.remove(key) {
            self.expiring.remove(&(when, key.to_owned()));
        }
    }

    /// `GET`.
    pub fn get(&self, key: &str) -> Result<Option<&[u8]>> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(refusal::wrong_type()),
        }
    }

    /// Clients that are blocked on this key must be looked at again.
    pub(super) fn signal(&mut self, key: &str) {
        if !self.ready.iter().any(|ready| ready == key) {
            self.ready.push(key.to_owned());
        }
    }

    /// The keys that were signalled since this was asked last.
    pub(super) fn take_ready(&mut self) -> Vec<String> {
        std::mem::take(&mut self.ready)
    }

    pub(super) fn is_stream(&self, key: &str) -> bool {
        matches!(self.keys.get(key), Some(Value::Stream(_)))
    }

    pub(super) fn stream(&self, key: &str) -> Result<Option<&Stream>> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(Value::Stream(stream)) => Ok(Some(stream)),
            Some(_) => Err(refusal::wrong_type()),
        }
    }

    pub(super) fn stream_mut(&mut self, key: &str) -> Result<Option<&mut Stream>> {
        match self.keys.get_mut(key) {
            None => Ok(None),
            Some(Value::Stream(stream)) => Ok(Some(stream)),
            Some(_) => Err(refusal::wrong_type()),
        }
    }

    /// The stream of this key, made where there is none.
    pub(super) fn make_stream(&mut self, key: &str) -> Result<&mut Stream> {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), Value::Stream(Box::default()));
        }
        self.stream_mut(key)?.ok_or_else(refusal::no_key)
    }

    /// A group of this key, where there is one.
    pub(super) fn group(&self, key: &str, group: &str) -> Result<Option<(&Entries, &Group)>> {
        let stream = self.stream(key)?;
        Ok(stream.and_then(|stream| stream.groups.get(group).map(|group| (&stream.entries, group))))
    }

    /// The same, to change it.
    pub(super) fn group_mut(&mut self, key: &str, group: &str) -> Result<Option<(&mut Entries, &mut Group)>> {
        let Some(stream) = self.stream_mut(key)? else {
            return Ok(None);
        };
        let Stream { entries, groups } = stream;
        Ok(groups.get_mut(group).map(|group| (entries, group)))
    }

    pub(super) fn sorted(&self, key: &str) -> Result<Option<&SortedSet>> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(Value::Sorted(sorted)) => Ok(Some(sorted)),
            Some(_) => Err(refusal::wrong_type()),
        }
    }

    /// Change the sorted set of this key, made where there is none. An empty one is no key.
    pub(super) fn change_sorted<T>(&mut self, key: &str, change: impl FnOnce(&mut SortedSet) -> T) -> Result<T> {
        let value = self.keys.entry(key.to_owned()).or_insert_with(|| Value::Sorted(SortedSet::default()));
        let Value::Sorted(sorted) = value else {
            return Err(refusal::wrong_type());
        };
        let changed = change(sorted);
        if sorted.len() == 0 {
            self.keys.remove(key);
        }
        Ok(changed)
    }

    pub(super) fn hash(&self, key: &str) -> Result<Option<&Hash>> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(Value::Hash(hash)) => Ok(Some(hash)),
            Some(_) => Err(refusal::wrong_type()),
        }
    }

    /// Change the hash of this key, made where there is none. An empty one is no key.
    pub(super) fn change_hash<T>(&mut self, key: &str, change: impl FnOnce(&mut Hash) -> T) -> Result<T> {
        let value = self.keys.entry(key.to_owned()).or_insert_with(|| Value::Hash(Hash::default()));
        let Value::Hash(hash) = value else {
            return Err(refusal::wrong_type());
        };
        let changed = change(hash);
        if hash.is_empty() {
            self.keys.remove(key);
        }
        Ok(changed)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of day, in milliseconds")]
fn whole_ms(score: f64) -> u64 {
    score as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_type_until_it_is_deleted() {
        let mut keyspace = Keyspace::default();
        keyspace.set("k", b"v");
        assert_eq!((keyspace.kind("k"), keyspace.get("k")), ("string", Ok(Some(&b"v"[..]))));
        assert_eq!(keyspace.make_stream("k").err(), Some(refusal::wrong_type()));
        assert_eq!(keyspace.change_sorted("k", |_| ()), Err(refusal::wrong_type()));
        assert_eq!((keyspace.del(&["k", "k", "other"]), keyspace.kind("k")), (1, "none"));
        assert!(keyspace.make_stream("k").is_ok() && keyspace.is_stream("k"));
        assert_eq!(keyspace.get("k"), Err(refusal::wrong_type()));
        keyspace.flush();
        assert_eq!(keyspace.keys().count(), 0);
    }

    #[test]
    fn an_empty_sorted_set_is_no_key() {
        let mut keyspace = Keyspace::default();
        assert_eq!(keyspace.change_sorted("z", |sorted| sorted.len()), Ok(0));
        assert_eq!(keyspace.kind("z"), "none");
    }

    #[test]
    fn only_streams_that_go_are_signalled() {
        let mut keyspace = Keyspace::default();
        assert!(keyspace.make_stream("s").is_ok());
        keyspace.change_sorted("z", |sorted| sorted.add(1.0, b"m")).unwrap_or_default();
        keyspace.del(&["s", "z"]);
        assert_eq!(keyspace.take_ready(), ["s"]);
        assert!(keyspace.take_ready().is_empty());
    }

    #[test]
    fn a_key_that_expires_is_gone_by_then_unless_it_was_set_again() {
        let mut keyspace = Keyspace::default();
        keyspace.set_for("a", b"1", 10);
        keyspace.set_for("b", b"1", 10);
        keyspace.set_for("c", b"1", 10);
        keyspace.set("b", b"2");
        keyspace.set_now(5);
        keyspace.set_for("c", b"2", 10);
        assert_eq!(
            (keyspace.expires_in("a"), keyspace.expires_in("b"), keyspace.expires_in("c")),
            (Some(5), None, Some(10))
        );
        keyspace.set_now(10);
        assert_eq!(keyspace.keys().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!((keyspace.del(&["c"]), keyspace.expires_in("c")), (1, None));
        keyspace.set("c", b"3");
        keyspace.set_now(99);
        assert_eq!(keyspace.keys().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn time_does_not_go_back() {
        let mut keyspace = Keyspace::default();
        keyspace.set_now(1_234);
        keyspace.set_now(99);
        assert_eq!((keyspace.now(), keyspace.time()), (1_234, (1, 234_000)));
    }
}
