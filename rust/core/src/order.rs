//! What is to be done with an entry that was delivered, and what became of that.

use std::sync::Arc;
use std::time::Duration;

use crate::append::Append;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::letter::Letter;
use crate::token::Token;

/// What to do with one entry, after checking that it is still its holder's.
#[derive(Debug, Clone)]
pub struct Order {
    /// The entry.
    pub token: Token,
    /// Who must own it for the order to be carried out.
    pub owner: Arc<Origin>,
    /// The delivery count it stands at, as far as this process knows.
    pub count: u32,
    /// Its owner's name may be another process's too: only what stands at this count is moved. Otherwise its own process
    /// may have claimed it once more: what is parked is set back to this count. `Keep` always goes by it, acks never do.
    pub exact: bool,
    /// What to do.
    pub action: Action,
    /// Attempts so far, which a copy carries on; none where they are not capped.
    pub attempts: Option<u32>,
}

/// How an owner-checked order ends an entry's delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Off the pending list.
    Ack,
    /// A copy at the stream's end, and off the pending list, in one step.
    Copy,
    /// Into the sorted set of delayed entries, and off the pending list, in one step.
    Delay(Duration),
    /// It stays pending, and counts as delivered once more, to its owner.
    Again {
        /// It was sent before, and nobody knows whether it was carried out: if so, it counts once.
        resent: bool,
    },
    /// It stays pending under its own id; its due time goes into the sorted set of delayed entries.
    Park {
        /// From now.
        delay: Duration,
        /// It was sent before, and nobody knows whether it was carried out: if so, its due time stays.
        resent: bool,
    },
    /// It stays pending, with its owner, who runs it again after so long. Its due time goes into the sorted set of
    /// delayed entries, for whoever claims it should the owner be gone by then; it is not handed over from there.
    /// `Again` removes it. What an earlier order has put there stays.
    Keep(Duration),
    /// A reply to a stream's end, and off the pending list, in one step.
    Reply(Arc<Append>),
    /// A letter in its place, and off the pending list, in one step.
    Bury(Arc<Letter>),
}

/// Fields of the largest entry that is copied: a server's script can take no more, since Lua's stack ends near 8,000
/// strings.
pub(crate) const MAX_COPY: usize = 3500;

/// The fields of a copy, unless they are too many.
pub(crate) fn copyable(fields: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    if fields.len() > MAX_COPY {
        return Err(Error::Server(format!("an entry of {} fields is too large to be copied", fields.len())));
    }
    Ok(fields)
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Carried out.
    Done,
    /// It was not on the pending list any more. For acks also: the group is gone.
    Gone,
    /// Someone else owns it.
    Taken,
    /// The server refused it; the entry is still pending, unless its group is what is missing.
    Refused(Error),
}

/// What is kept beside a stream for one of its groups, as far as settling touches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideKeys<'a> {
    /// The sorted set of delayed entries.
    pub delay_key: &'a str,
    /// The hash of the marks of starts, and the entries whose marks go once they are pending no more.
    pub marks: Option<(&'a str, &'a [EntryId])>,
}
