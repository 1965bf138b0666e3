//! Commands on entries: `XADD`, `XLEN`, `XRANGE`, `XDEL`, `XTRIM`.

use std::sync::Arc;

use super::argument::{AddId, Range};
use super::body::Body;
use super::entries::{Keep, TrimTo};
use super::keyspace::Keyspace;
use super::refusal;
use crate::append::Trim;
use crate::entry::EntryId;
use crate::error::Result;

impl TrimTo {
    /// Read what a publisher was told.
    pub fn parse(trim: &Trim) -> Result<Self> {
        let keep = match trim.strategy {
            "MAXLEN" => match trim.threshold.parse::<i64>().map(u64::try_from) {
                Ok(Ok(length)) => Keep::Newest(length),
                Ok(Err(_)) => return Err(refusal::server("ERR The MAXLEN argument must be >= 0.")),
                Err(_) => return Err(refusal::not_an_integer()),
            },
            "MINID" => match AddId::parse(&trim.threshold)? {
                AddId::Exact(id) => Keep::From(id),
                AddId::Auto | AddId::Ms(_) => return Err(refusal::bad_id()),
            },
            // The server takes an option that it does not know for the id.
            _ => return Err(refusal::bad_id()),
        };
        Ok(Self { keep, approximate: trim.approximate })
    }
}

impl Keyspace {
    /// `XADD`, with `MAXLEN` or `MINID` where there is a trim.
    pub fn xadd<N, V>(&mut self, key: &str, id: AddId, fields: &[(N, V)], trim: Option<TrimTo>) -> Result<EntryId>
    where
        N: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        if fields.is_empty() {
            return Err(refusal::server("ERR wrong number of arguments for 'xadd' command"));
        }
        if id == AddId::Exact(EntryId::ZERO) {
            return Err(refusal::server("ERR The ID specified in XADD must be greater than 0-0"));
        }
        let now = self.now();
        let entries = &mut self.make_stream(key)?.entries;
        let id = entries.append(now, id, fields)?;
        if let Some(to) = trim {
            entries.trim(to);
        }
        self.signal(key);
        Ok(id)
    }

    /// `XLEN`.
    pub fn xlen(&self, key: &str) -> Result<usize> {
        Ok(self.stream(key)?.map_or(0, |stream| stream.entries.len()))
    }

    /// `XRANGE`; no count means all.
    pub fn xrange(&self, key: &str, range: Range, count: Option<usize>) -> Result<Vec<Arc<Body>>> {
        let entries = self.stream(key)?.into_iter().flat_map(|stream| stream.entries.range(range));
        Ok(entries.take(count.unwrap_or(usize::MAX)).cloned().collect())
    }

    /// `XREVRANGE`, the same from the end.
    pub fn xrevrange(&self, key: &str, range: Range, count: Option<usize>) -> Result<Vec<Arc<Body>>> {
        let entries = self.stream(key)?.into_iter().flat_map(|stream| stream.entries.range(range).rev());
        Ok(entries.take(count.unwrap_or(usize::MAX)).cloned().collect())
    }

    /// `XDEL`. Returns how many were there. What is pending stays so, without a body.
    pub fn xdel(&mut self, key: &str, ids: &[EntryId]) -> Result<usize> {
        let Some(stream) = self.stream_mut(key)? else {
            return Ok(0);
        };
        Ok(ids.iter().filter(|id| stream.entries.delete(**id)).count())
    }

    /// `XTRIM`. Returns how many were removed. What is pending stays so, without a body.
    pub fn xtrim(&mut self, key: &str, to: TrimTo) -> Result<usize> {
        Ok(self.stream_mut(key)?.map_or(0, |stream| stream.entries.trim(to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: [(&str, &str); 1] = [("f", "v")];

    fn parse(strategy: &'static str, threshold: &str) -> Result<TrimTo> {
        TrimTo::parse(&Trim { strategy, threshold: threshold.into(), approximate: false })
    }

    #[test]
    fn an_entry_is_added_found_and_deleted() {
        let mut keyspace = Keyspace::default();
        keyspace.set_now(7);
        assert_eq!(keyspace.xadd("s", AddId::Auto, &FIELDS, None), Ok(EntryId::new(7, 0)));
        assert_eq!(keyspace.xadd("s", AddId::Auto, &FIELDS, None), Ok(EntryId::new(7, 1)));
        assert_eq!(keyspace.take_ready(), ["s"]);
        let found = keyspace.xrange("s", Range::ALL, Some(1)).unwrap_or_default();
        assert_eq!(found.iter().map(|body| body.id()).collect::<Vec<_>>(), [EntryId::new(7, 0)]);
        let last = keyspace.xrevrange("s", Range::ALL, Some(1)).unwrap_or_default();
        assert_eq!(last.iter().map(|body| body.id()).collect::<Vec<_>>(), [EntryId::new(7, 1)]);
        assert_eq!(keyspace.xdel("s", &[EntryId::new(7, 0), EntryId::new(7, 0), EntryId::new(8, 0)]), Ok(1));
        assert_eq!((keyspace.xlen("s"), keyspace.xlen("none")), (Ok(1), Ok(0)));
    }

    #[test]
    fn a_refused_entry_makes_no_stream() {
        let mut keyspace = Keyspace::default();
        let none: [(&str, &str); 0] = [];
        assert!(keyspace.xadd("s", AddId::Exact(EntryId::ZERO), &FIELDS, None).is_err());
        assert!(keyspace.xadd("s", AddId::Auto, &none, None).is_err());
        assert_eq!(keyspace.kind("s"), "none");
        keyspace.set("s", b"");
        assert_eq!(keyspace.xadd("s", AddId::Auto, &FIELDS, None), Err(refusal::wrong_type()));
    }

    #[test]
    fn a_publishers_trim_is_read_as_the_server_reads_it() {
        assert_eq!(parse("MAXLEN", "5"), Ok(TrimTo { keep: Keep::Newest(5), approximate: false }));
        assert_eq!(parse("MINID", "5").map(|to| to.keep), Ok(Keep::From(EntryId::new(5, 0))));
        assert!(parse("MAXLEN", "-1").is_err_and(|error| error.to_string().contains(">= 0")));
        assert_eq!(parse("MAXLEN", "x"), Err(refusal::not_an_integer()));
        assert_eq!((parse("MINID", "*"), parse("OTHER", "1")), (Err(refusal::bad_id()), Err(refusal::bad_id())));
    }
}
