//! Hashes, as far as the marks of starts need them.

use std::collections::BTreeMap;

use super::keyspace::Keyspace;
use crate::error::Result;

/// Values by the names of their fields.
pub(super) type Hash = BTreeMap<Vec<u8>, Vec<u8>>;

impl Keyspace {
    /// `HSET` of one field. True: it is new.
    pub fn hset(&mut self, key: &str, field: &[u8], value: &[u8]) -> Result<bool> {
        self.change_hash(key, |hash| hash.insert(field.to_owned(), value.to_owned()).is_none())
    }

    /// `HGET`.
    pub fn hget(&self, key: &str, field: &[u8]) -> Result<Option<&[u8]>> {
        Ok(self.hash(key)?.and_then(|hash| hash.get(field)).map(Vec::as_slice))
    }

    /// `HDEL`. Returns how many fields were there.
    pub fn hdel<F: AsRef<[u8]>>(&mut self, key: &str, fields: &[F]) -> Result<usize> {
        self.change_hash(key, |hash| fields.iter().filter(|field| hash.remove(field.as_ref()).is_some()).count())
    }

    /// `HGETALL`, by name.
    pub fn hgetall(&self, key: &str) -> Result<Vec<(&[u8], &[u8])>> {
        let hash = self.hash(key)?.into_iter().flatten();
        Ok(hash.map(|(field, value)| (field.as_slice(), value.as_slice())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::refusal;

    #[test]
    fn a_hash_is_there_while_it_has_a_field() {
        let mut keyspace = Keyspace::default();
        assert_eq!((keyspace.hset("h", b"a", b"1"), keyspace.hset("h", b"a", b"2")), (Ok(true), Ok(false)));
        assert_eq!((keyspace.hget("h", b"a"), keyspace.hget("h", b"b")), (Ok(Some(&b"2"[..])), Ok(None)));
        assert_eq!((keyspace.kind("h"), keyspace.hgetall("h")), ("hash", Ok(vec![(&b"a"[..], &b"2"[..])])));
        assert_eq!((keyspace.hdel("h", &["a", "b"]), keyspace.hdel("h", &["a"])), (Ok(1), Ok(0)));
        assert_eq!((keyspace.kind("h"), keyspace.hgetall("h")), ("none", Ok(vec![])));
    }

    #[test]
    fn another_type_is_refused() {
        let mut keyspace = Keyspace::default();
        keyspace.set("k", b"text");
        assert_eq!(keyspace.hset("k", b"a", b"1"), Err(refusal::wrong_type()));
        assert_eq!(keyspace.hget("k", b"a"), Err(refusal::wrong_type()));
        assert_eq!(keyspace.hdel("k", &["a"]), Err(refusal::wrong_type()));
    }
}
