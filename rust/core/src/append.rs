//! Entries to add to a stream.

use std::sync::Arc;

use bytes::Bytes;

use crate::entry::EntryId;

/// One entry to add.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Append {
    /// The stream.
    pub stream: Arc<str>,
    /// Name and value pairs. What entries have in common is shared.
    pub fields: Vec<(Bytes, Bytes)>,
    /// Trim the stream on the way.
    pub trim: Option<Trim>,
}

/// How `Append` trims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trim {
    /// `MAXLEN` or `MINID`.
    pub strategy: &'static str,
    /// The length or the id.
    pub threshold: String,
    /// Whether whole nodes only are trimmed, which is much cheaper.
    pub approximate: bool,
}

/// A letter that goes back into a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Its id among the letters.
    pub id: EntryId,
    /// The stream it goes into.
    pub to: String,
    /// With these fields.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The numbers that make it harmless to send entries twice: what was added under its number before is not added again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Goes up whenever a reply was lost, so that no later entry makes the server forget those that were under way.
    pub generation: u32,
    /// The number of the first entry; the others follow.
    pub first: u64,
}
