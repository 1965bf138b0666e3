//! `XGROUP`: groups and their consumers.

use super::argument::Position;
use super::group::Group;
use super::keyspace::{Keyspace, Stream};
use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// Where a position lies in this stream.
fn resolve(stream: &Stream, position: Position) -> EntryId {
    match position {
        Position::End => stream.entries.last,
        Position::After(id) => id,
    }
}

impl Keyspace {
    /// `XGROUP CREATE`. `make`: with the stream, where there is none. `read`: `ENTRIESREAD`.
    pub fn xgroup_create(
        &mut self,
        key: &str,
        group: &str,
        position: Position,
        make: bool,
        read: Option<u64>,
    ) -> Result<()> {
        if !make && self.stream(key)?.is_none() {
            return Err(refusal::no_key_for_a_group());
        }
        let stream = self.make_stream(key)?;
        if stream.groups.contains_key(group) {
            return Err(refusal::group_exists());
        }
        let last = resolve(stream, position);
        let read = read.map(|read| read.min(stream.entries.added));
        stream.groups.insert(group.to_owned(), Group::new(last, read));
        Ok(())
    }

    /// `XGROUP SETID`. What is pending stays as it is; blocked readers notice at the next entry only, as on the server.
    pub fn xgroup_setid(&mut self, key: &str, group: &str, position: Position, read: Option<u64>) -> Result<()> {
        let stream = self.existing(key)?;
        let last = resolve(stream, position);
        let read = read.map(|read| read.min(stream.entries.added));
        let found = stream.groups.get_mut(group).ok_or_else(|| refusal::no_such_group(key, group))?;
        (found.last, found.read) = (last, read);
        Ok(())
    }

    /// `XGROUP DESTROY`. False: there was none.
    pub fn xgroup_destroy(&mut self, key: &str, group: &str) -> Result<bool> {
        let destroyed = self.existing(key)?.groups.remove(group).is_some();
        if destroyed {
            self.signal(key);
        }
        Ok(destroyed)
    }

    /// `XGROUP CREATECONSUMER`. False: it was there.
    pub fn xgroup_create_consumer(&mut self, key: &str, group: &str, consumer: &str) -> Result<bool> {
        let now = self.now();
        Ok(self.existing_group(key, group)?.create(consumer, now).is_some())
    }

    /// `XGROUP DELCONSUMER`. Returns how many entries were pending under its name; they are off the list.
    pub fn xgroup_delete_consumer(&mut self, key: &str, group: &str, consumer: &str) -> Result<usize> {
        Ok(self.existing_group(key, group)?.delete(consumer))
    }

    fn existing(&mut self, key: &str) -> Result<&mut Stream> {
        self.stream_mut(key)?.ok_or_else(refusal::no_key_for_a_group)
    }

    fn existing_group(&mut self, key: &str, group: &str) -> Result<&mut Group> {
        self.existing(key)?.groups.get_mut(group).ok_or_else(|| refusal::no_such_group(key, group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::model::argument::AddId;

    #[test]
    fn a_group_is_made_once_and_with_its_stream_only_if_asked() {
        let mut keyspace = Keyspace::default();
        let refused = keyspace.xgroup_create("s", "g", Position::End, false, None);
        assert_eq!(refused, Err(refusal::no_key_for_a_group()));
        assert_eq!(keyspace.xgroup_create("s", "g", Position::End, true, None), Ok(()));
        assert_eq!(keyspace.xgroup_create("s", "g", Position::End, true, None), Err(refusal::group_exists()));
        keyspace.set("text", b"");
        let refused = keyspace.xgroup_create("text", "g", Position::End, true, None);
        assert_eq!(refused, Err(refusal::wrong_type()));
    }

    #[test]
    fn a_group_moves_and_goes() {
        let mut keyspace = Keyspace::default();
        assert!(keyspace.xadd("s", AddId::Ms(5), &[("f", "v")], None).is_ok());
        assert!(keyspace.xgroup_create("s", "g", Position::End, false, Some(9)).is_ok());
        let stands = |keyspace: &Keyspace| {
            let group = keyspace.group("s", "g").ok().flatten();
            group.map(|(_, group)| (group.last, group.read))
        };
        assert_eq!(stands(&keyspace), Some((EntryId::new(5, 0), Some(1))));
        assert!(keyspace.xgroup_setid("s", "g", Position::After(EntryId::ZERO), None).is_ok());
        assert_eq!(stands(&keyspace), Some((EntryId::ZERO, None)));
        keyspace.take_ready();
        assert_eq!((keyspace.xgroup_destroy("s", "g"), keyspace.take_ready()), (Ok(true), vec!["s".to_owned()]));
        assert_eq!((keyspace.xgroup_destroy("s", "g"), keyspace.take_ready()), (Ok(false), vec![]));
        let gone = keyspace.xgroup_setid("s", "g", Position::End, None);
        assert!(matches!(gone, Err(Error::NoGroup(_))));
    }

    #[test]
    fn consumers_are_made_and_deleted_by_name() {
        let mut keyspace = Keyspace::default();
        assert!(keyspace.xgroup_create("s", "g", Position::End, true, None).is_ok());
        assert_eq!(keyspace.xgroup_create_consumer("s", "g", "c"), Ok(true));
        assert_eq!(keyspace.xgroup_create_consumer("s", "g", "c"), Ok(false));
        assert_eq!(keyspace.xgroup_delete_consumer("s", "g", "c"), Ok(0));
        assert_eq!(keyspace.xgroup_delete_consumer("s", "g", "c"), Ok(0));
        let missing = keyspace.xgroup_create_consumer("s", "other", "c");
        assert_eq!(missing, Err(refusal::no_such_group("s", "other")));
    }
}
