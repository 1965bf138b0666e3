//! The steps that a server needs scripts for, done as one command each. They do what the scripts do, call by call, so
//! that both refuse the same and leave the same behind.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::argument::{AddId, Range};
use super::body::Body;
use super::claim::{Claim, Delivered};
use super::delayed;
use super::entries::TrimTo;
use super::keyspace::Keyspace;
use super::pending::PendingEntry;
use super::settle::HandBack;
use crate::append::Append;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::order::{Action, MAX_COPY, Order, Verdict, copyable};
use crate::store::{Page, Pending};

/// Entries a scan looks at for each one it may take, as `XAUTOCLAIM` does.
const LOOK: usize = 10;
/// Entries without a body that a scan takes off the list for each one it may take, where no letters are written.
const BODILESS: usize = 3;

/// An entry that a scan took over.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) body: Arc<Body>,
    pub(super) idle: i64,
    pub(super) earlier: i64,
}

/// One step of a scan.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) taken: Vec<Taken>,
    pub(super) cursor: Option<EntryId>,
    pub(super) deleted: Vec<EntryId>,
    pub(super) refused: Option<(usize, Error)>,
}

impl Step {
    /// How many entries without a body it has come across.
    fn bodiless(&self) -> usize {
        self.deleted.len() + self.refused.as_ref().map_or(0, |(refused, _)| *refused)
    }
}

/// Without the group nothing is pending any more: there is nothing left to acknowledge.
fn unacked(error: Error) -> Verdict {
    match error {
        Error::NoGroup(_) => Verdict::Gone,
        error => Verdict::Refused(error),
    }
}

#[expect(clippy::cast_precision_loss, reason = "scores are floating point numbers on the server too")]
pub(super) fn score(now: u64, delay: Duration) -> f64 {
    now as f64 + u64::try_from(delay.as_millis()).unwrap_or(u64::MAX) as f64
}

impl Keyspace {
    /// Whether the entry is its owner's, and at this count if there is one.
    pub(super) fn check(&self, owner: &Origin, id: EntryId, count: Option<u32>) -> Result<Verdict> {
        // Counts are cut at 32 bits: FATAL of `XNACK` sets the greatest there is.
        let counts =
            |entry: &PendingEntry| count.is_none_or(|count| entry.count.min(u32::MAX.into()) == i64::from(count));
        Ok(match self.pending_entry(&owner.stream, &owner.group, id)? {
            None => Verdict::Gone,
            Some(entry) if entry.consumer == owner.consumer && counts(&entry) => Verdict::Done,
            Some(_) => Verdict::Taken,
        })
    }

    /// Whether the entry stands as the order says.
    pub(super) fn check_order(&self, order: &Order) -> Result<Verdict> {
        self.check(&order.owner, order.token.id(), order.exact.then_some(order.count))
    }

    /// Acknowledge what is its order's owner's, whatever the count. All orders are of one owner.
    pub(super) fn checked_acks(&mut self, owner: &Origin, orders: &[&Order]) -> Vec<Verdict> {
        let checked: Result<Vec<_>> = orders.iter().map(|order| self.check(owner, order.token.id(), None)).collect();
        let verdicts = match checked {
            Ok(verdicts) => verdicts,
            Err(error) => return vec![unacked(error); orders.len()],
        };
        let mine = orders.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Done);
        let mine: Vec<_> = mine.map(|(order, _)| order.token.id()).collect();
        match self.xack(&owner.stream, &owner.group, &mine) {
            Ok(_) => verdicts,
            Err(error) => vec![unacked(error); orders.len()],
        }
    }

    /// Copy an entry to the stream's end, now or later, and acknowledge it.
    pub(super) fn retry(&mut self, order: &Order, delay_key: &str) -> Verdict {
        self.try_retry(order, delay_key).unwrap_or_else(Verdict::Refused)
    }

    fn try_retry(&mut self, order: &Order, delay_key: &str) -> Result<Verdict> {
        let (owner, id) = (&order.owner, order.token.id());
        let fields = copyable(order.token.copied_fields(&owner.group, order.attempts))?;
        let verdict = self.check_order(order)?;
        if verdict != Verdict::Done {
            return Ok(verdict);
        }
        if let Action::Delay(delay) = order.action {
            let id = id.to_string();
            let mut parts: Vec<&[u8]> = vec![id.as_bytes(), owner.group.as_bytes()];
            parts.extend(fields.iter().flat_map(|(name, value)| [name.as_slice(), value.as_slice()]));
            let due = score(self.now(), delay);
            self.zadd(delay_key, due, &delayed::pack(parts.into_iter()))?;
        } else {
            self.xadd(&owner.stream, AddId::Auto, &fields, None)?;
        }
        self.done_with(order)
    }

    /// Acknowledge what was copied.
    pub(super) fn done_with(&mut self, order: &Order) -> Result<Verdict> {
        let (owner, id) = (&order.owner, order.token.id());
        self.xack(&owner.stream, &owner.group, &[id])?;
        if order.token.copy_of().is_some() {
            // A copy was made for this group alone: nobody else needs it.
            self.xdel(&owner.stream, &[id])?;
        }
        Ok(Verdict::Done)
    }

    /// Add an entry, trimming its stream where it says so.
    pub(super) fn append(&mut self, entry: &Append) -> Result<EntryId> {
        let trim = entry.trim.as_ref().map(TrimTo::parse).transpose()?;
        self.xadd(&entry.stream, AddId::Auto, &entry.fields, trim)
    }

    /// Refuse what `append` would refuse.
    pub(super) fn check_append(&self, entry: &Append) -> Result<()> {
        self.stream(&entry.stream)?;
        entry.trim.as_ref().map(TrimTo::parse).transpose()?;
        Ok(())
    }

    /// Add a reply, and acknowledge the entry that it replies to.
    pub(super) fn reply(&mut self, order: &Order, reply: &Append) -> Verdict {
        self.try_reply(order, reply).unwrap_or_else(Verdict::Refused)
    }

    fn try_reply(&mut self, order: &Order, reply: &Append) -> Result<Verdict> {
        let (owner, id) = (&order.owner, order.token.id());
        if reply.fields.len() > MAX_COPY {
            let fields = reply.fields.len();
            let text = format!("a reply of {fields} fields is too large to be sent with the ack");
            return Ok(Verdict::Refused(Error::Server(text)));
        }
        let verdict = self.check_order(order)?;
        if verdict == Verdict::Done {
            self.append(reply)?;
            self.xack(&owner.stream, &owner.group, &[id])?;
        }
        Ok(verdict)
    }

    /// Whether the entry is this consumer's; none: it is not pending.
    fn is_owned(&self, origin: &Origin, id: EntryId) -> Result<Option<bool>> {
        let entry = self.pending_entry(&origin.stream, &origin.group, id)?;
        Ok(entry.map(|entry| entry.consumer == origin.consumer))
    }

    /// Make entries young again without counting a delivery. Returns those that are another consumer's.
    pub(super) fn renew(&mut self, origin: &Origin, ids: &[EntryId]) -> Result<Vec<EntryId>> {
        let (mut mine, mut taken) = (Vec::new(), Vec::new());
        for id in ids {
            match self.is_owned(origin, *id)? {
                Some(true) => mine.push(*id),
                Some(false) => taken.push(*id),
                None => {}
            }
        }
        if !mine.is_empty() {
            let claim = Claim { just_id: true, ..Claim::default() };
            self.xclaim(&origin.stream, &origin.group, &origin.consumer, &claim, &mine)?;
        }
        Ok(taken)
    }

    /// Give entries back, claimable at once and at the count they had. Returns how many were this consumer's.
    pub(super) fn release(&mut self, origin: &Origin, xnack: bool, entries: &[(EntryId, u32)]) -> Result<usize> {
        let Origin { stream, group, consumer, .. } = origin;
        let mut mine = Vec::new();
        for (id, earlier) in entries {
            if self.is_owned(origin, *id)? != Some(true) {
                continue;
            }
            mine.push(*id);
            if !xnack {
                let count = Some(i64::from(*earlier));
                let claim = Claim { delivered: Delivered::At(0), count, just_id: true, ..Claim::default() };
                self.xclaim(stream, group, consumer, &claim, &[*id])?;
            }
        }
        if xnack && !mine.is_empty() {
            self.xnack(stream, group, HandBack::Silent, &mine, false)?;
        }
        Ok(mine.len())
    }

    /// Take over pending entries, one page of them.
    pub(super) fn scan(&mut self, origin: &Origin, which: &Pending, page: Page<'_>) -> Result<Step> {
        match which {
            Pending::Idle(min_idle) => self.scan_idle(origin, *min_idle, page),
            Pending::Own { held, uncounted } => self.take_own(origin, held, *uncounted, page),
        }
    }

    fn scan_idle(&mut self, origin: &Origin, min_idle: Duration, page: Page<'_>) -> Result<Step> {
        let Page { cursor, count, dead_letter, .. } = page;
        let min_idle = i64::try_from(min_idle.as_millis()).unwrap_or(i64::MAX);
        if let Some((_, group)) = self.group_mut(&origin.stream, &origin.group)? {
            group.takes_over(min_idle.unsigned_abs());
        }
        let look = count.saturating_mul(LOOK);
        let seen = self.xpending_range(&origin.stream, &origin.group, 0, Range::after(cursor)?, look, None)?;
        let mut step = Step { cursor: Some(cursor), ..Step::default() };
        let mut full = false;
        let most = if dead_letter.is_some() { count } else { count.saturating_mul(BODILESS) };
        for entry in &seen {
            if entry.idle >= min_idle || entry.idle < 0 {
                full = step.taken.len() == count || step.bodiless() == most;
                if full {
                    break;
                }
                self.take(origin, entry, false, dead_letter, &mut step)?;
            }
            step.cursor = Some(entry.id);
        }
        if !full && seen.len() < look {
            step.cursor = None;
        }
        Ok(step)
    }

    /// The next `count` entries under the consumer's name, but for those that are held.
    fn take_own(&mut self, origin: &Origin, held: &HashSet<EntryId>, uncounted: bool, page: Page<'_>) -> Result<Step> {
        let Page { cursor, count, dead_letter, .. } = page;
        let Origin { stream, group, consumer, .. } = origin;
        let seen = self.xpending_range(stream, group, 0, Range::after(cursor)?, count, Some(consumer))?;
        let last = seen.last().filter(|_| seen.len() == count).map(|entry| entry.id);
        let mut step = Step { cursor: last, ..Step::default() };
        for entry in seen.iter().filter(|entry| !held.contains(&entry.id)) {
            self.take(origin, entry, uncounted, dead_letter, &mut step)?;
        }
        Ok(step)
    }

    fn take(
        &mut self,
        origin: &Origin,
        entry: &PendingEntry,
        uncounted: bool,
        dead_letter: Option<&str>,
        step: &mut Step,
    ) -> Result<()> {
        if let Some(letters) = dead_letter {
            match self.bury_bodiless(letters, origin, entry.id, entry.count) {
                Ok(false) => {}
                Ok(true) => {
                    step.deleted.push(entry.id);
                    return Ok(());
                }
                Err(error) => {
                    step.refused = Some((step.refused.take().map_or(1, |(refused, _)| refused + 1), error));
                    return Ok(());
                }
            }
        }
        let claim = Claim { count: uncounted.then_some(entry.count), ..Claim::default() };
        let earlier = entry.count - i64::from(uncounted);
        match self.xclaim(&origin.stream, &origin.group, &origin.consumer, &claim, &[entry.id])?.pop() {
            Some(body) => step.taken.push(Taken { body, idle: entry.idle, earlier }),
            None => step.deleted.push(entry.id),
        }
        Ok(())
    }
}
