//! The forms an id takes in commands, read as the server reads them.

use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// The greatest id there can be.
pub const LAST: EntryId = EntryId::new(u64::MAX, u64::MAX);

/// `ms-seq`, or `ms` alone, whose sequence is then `missing`.
fn id(text: &str, missing: u64) -> Result<EntryId> {
    let id = EntryId::parse(text.as_bytes()).ok_or_else(refusal::bad_id)?;
    Ok(if text.contains('-') { id } else { EntryId::new(id.ms, missing) })
}

/// The id of a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddId {
    /// `*`: by the clock.
    Auto,
    /// `ms-*`: the next sequence of this millisecond.
    Ms(u64),
    /// `ms-seq`.
    Exact(EntryId),
}

impl AddId {
    /// Read `*`, `ms-*`, `ms-seq` or `ms`.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "*" {
            return Ok(Self::Auto);
        }
        match text.strip_suffix("-*") {
            Some(ms) => Ok(Self::Ms(ms.parse().map_err(|_| refusal::bad_id())?)),
            None => id(text, 0).map(Self::Exact),
        }
    }
}

/// Where a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// `$`: behind the last entry there ever was.
    End,
    /// Behind this id.
    After(EntryId),
}

impl Position {
    /// What `XGROUP CREATE` takes: `$`, `ms-seq` or `ms`.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "$" { Ok(Self::End) } else { id(text, 0).map(Self::After) }
    }

    /// What `XGROUP SETID` takes: `-` and `+` as well.
    pub fn parse_any(text: &str) -> Result<Self> {
        match text {
            "-" => Ok(Self::After(EntryId::ZERO)),
            "+" => Ok(Self::After(LAST)),
            other => Self::parse(other),
        }
    }
}

/// The first and the last id of a range, both within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first id.
    pub start: EntryId,
    /// The last id.
    pub end: EntryId,
}

impl Range {
    /// All ids.
    pub const ALL: Self = Self { start: EntryId::ZERO, end: LAST };

    /// One id.
    pub const fn one(id: EntryId) -> Self {
        Self { start: id, end: id }
    }

    /// From behind an id on.
    pub fn after(id: EntryId) -> Result<Self> {
        if id == LAST {
            Err(refusal::server("ERR invalid start ID for the interval"))
        } else {
            Ok(Self::from(id.next()))
        }
    }

    /// From an id on.
    pub const fn from(start: EntryId) -> Self {
        Self { start, end: LAST }
    }

    /// Read two bounds: `-`, `+`, `ms-seq`, `ms`, and `(id` to leave the id itself out.
    pub fn parse(start: &str, end: &str) -> Result<Self> {
        let start = match start.strip_prefix('(').filter(|rest| !rest.is_empty()) {
            Some(rest) => Self::after(id(rest, 0)?)?.start,
            None => Self::bound(start, 0)?,
        };
        let end = match end.strip_prefix('(').filter(|rest| !rest.is_empty()) {
            Some(rest) => match id(rest, u64::MAX)? {
                EntryId::ZERO => return Err(refusal::server("ERR invalid end ID for the interval")),
                end => end.previous(),
            },
            None => Self::bound(end, u64::MAX)?,
        };
        Ok(Self { start, end })
    }

    fn bound(text: &str, missing: u64) -> Result<EntryId> {
        match text {
            "-" => Ok(EntryId::ZERO),
            "+" => Ok(LAST),
            other => id(other, missing),
        }
    }

    /// Whether no id lies in it.
    pub fn is_empty(self) -> bool {
        self.start > self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64, seq: u64) -> EntryId {
        EntryId::new(ms, seq)
    }

    #[test]
    fn reads_the_ids_of_new_entries() {
        assert_eq!(AddId::parse("*"), Ok(AddId::Auto));
        assert_eq!(AddId::parse("7-*"), Ok(AddId::Ms(7)));
        assert_eq!(AddId::parse("7"), Ok(AddId::Exact(at(7, 0))));
        assert_eq!(AddId::parse("7-3"), Ok(AddId::Exact(at(7, 3))));
        for bad in ["", "-", "+", "$", "7-", "-*", "x-*", "7-3-1", "**"] {
            assert_eq!(AddId::parse(bad), Err(refusal::bad_id()), "{bad}");
        }
    }

    #[test]
    fn reads_where_a_group_stands() {
        assert_eq!(Position::parse("$"), Ok(Position::End));
        assert_eq!(Position::parse("5"), Ok(Position::After(at(5, 0))));
        assert_eq!((Position::parse("-"), Position::parse("+")), (Err(refusal::bad_id()), Err(refusal::bad_id())));
        assert_eq!(Position::parse_any("-"), Ok(Position::After(EntryId::ZERO)));
        assert_eq!(Position::parse_any("+"), Ok(Position::After(LAST)));
    }

    #[test]
    fn reads_ranges_with_open_and_missing_ends() {
        assert_eq!(Range::parse("-", "+"), Ok(Range::ALL));
        assert_eq!(Range::parse("5", "5"), Ok(Range { start: at(5, 0), end: at(5, u64::MAX) }));
        assert_eq!(Range::parse("(5-1", "(6-0"), Ok(Range { start: at(5, 2), end: at(5, u64::MAX) }));
        assert!(Range::parse("(5", "5-0").is_ok_and(Range::is_empty));
        let last = LAST.to_string();
        assert!(Range::parse(&format!("({last}"), "+").is_err_and(|error| error.to_string().contains("start ID")));
        assert!(Range::parse("-", "(0-0").is_err_and(|error| error.to_string().contains("end ID")));
        for bad in ["(", "(-", "(+", "a"] {
            assert_eq!(Range::parse(bad, "+"), Err(refusal::bad_id()), "{bad}");
        }
    }
}
