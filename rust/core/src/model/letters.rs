//! Dead letters: what the scripts do with them, as one command each.

use super::argument::{AddId, Range};
use super::keyspace::Keyspace;
use crate::append::Replay;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::Result;
use crate::letter::{self, Letter, Reason};
use crate::order::{Order, Verdict, copyable};

impl Keyspace {
    /// Write a letter in an entry's place, and acknowledge it.
    pub(super) fn bury(&mut self, order: &Order, letter: &Letter) -> Result<Verdict> {
        let owner = &order.owner;
        let fields = copyable(letter.fields(&order.token, owner, order.count))?;
        let verdict = self.check_order(order)?;
        if verdict != Verdict::Done {
            return Ok(verdict);
        }
        self.add_letter(letter.to(), fields)?;
        self.done_with(order)
    }

    /// Write a letter in the place of an entry whose body is gone. False: its body is there.
    pub(super) fn bury_bodiless(&mut self, letters: &str, owner: &Origin, id: EntryId, count: i64) -> Result<bool> {
        if !self.xrange(&owner.stream, Range::one(id), None)?.is_empty() {
            return Ok(false);
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.add_letter(letters, letter::headers(Reason::Deleted, owner, id, count, None))?;
        self.xack(&owner.stream, &owner.group, &[id])?;
        Ok(true)
    }

    fn add_letter(&mut self, letters: &str, mut fields: Vec<(Vec<u8>, Vec<u8>)>) -> Result<EntryId> {
        fields.push((letter::named("time-ms"), self.now().to_string().into_bytes()));
        self.xadd(letters, AddId::Auto, &fields, None)
    }

    /// Put a letter back, and delete it. None: it is not there any more.
    pub(super) fn replay(&mut self, letters: &str, replay: &Replay) -> Result<Option<EntryId>> {
        if self.xrange(letters, Range::one(replay.id), None)?.is_empty() {
            return Ok(None);
        }
        let id = self.xadd(&replay.to, AddId::Auto, &replay.fields, None)?;
        self.xdel(letters, &[replay.id])?;
        Ok(Some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_goes_back_once_and_stays_where_that_is_refused() {
        let mut keyspace = Keyspace::default();
        let fields = vec![(b"_payload".to_vec(), b"x".to_vec())];
        let ids: Vec<_> = (0..2).filter_map(|_| keyspace.xadd("s.dlq", AddId::Auto, &fields, None).ok()).collect();
        keyspace.set("text", b"text");
        let to = |at: usize, to: &str| Replay { id: ids[at], to: to.into(), fields: fields.clone() };
        assert!(keyspace.replay("s.dlq", &to(0, "text")).is_err_and(|error| error.to_string().contains("WRONGTYPE")));
        assert!(keyspace.replay("s.dlq", &to(0, "s")).is_ok_and(|id| id.is_some()));
        assert_eq!(keyspace.replay("s.dlq", &to(0, "s")), Ok(None));
        assert_eq!((keyspace.xlen("s"), keyspace.xlen("s.dlq")), (Ok(1), Ok(1)));
    }
}
