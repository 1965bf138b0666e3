//! Delayed entries: parking them under their own id, handing over what is due. Call by call what the scripts do.

use std::time::Duration;

use super::argument::{AddId, Range};
use super::claim::Claim;
use super::delayed::{self, Member};
use super::keyspace::Keyspace;
use super::operations::{Step, Taken, score};
use super::pending::PendingEntry;
use crate::batch::Origin;
use crate::entry::{EntryId, Slot};
use crate::error::{Error, Result};
use crate::order::{Action, Order, Verdict};
use crate::store::{Look, Parked};

/// Raised counts that a look for a parked entry sees through: claimers that died before they looked.
const BACK: u32 = 4;
/// Due times of kept entries that a look for stale ones looks at.
const SWEPT: usize = 10;

/// Delayed entries that were due.
#[derive(Debug, Default)]
pub(super) struct Handed {
    pub(super) step: Step,
    pub(super) moved: usize,
    pub(super) next: Option<Duration>,
    pub(super) strange: usize,
    pub(super) seen: usize,
    pub(super) passed: usize,
    pub(super) waiting: usize,
}

/// The whole part of a score, which is a time in ms.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times are positive and far below 64 bits")]
fn time(score: f64) -> u64 {
    score.floor() as u64
}

fn count(entry: &PendingEntry) -> i64 {
    // Counts are cut at 32 bits: FATAL of `XNACK` sets the greatest there is.
    entry.count.min(u32::MAX.into())
}

impl Keyspace {
    /// Park what stands as its order says. All orders are of one owner.
    pub(super) fn park(&mut self, owner: &Origin, orders: &[&Order], delay_key: &str) -> Vec<Verdict> {
        self.try_park(owner, orders, delay_key).unwrap_or_else(|error| vec![Verdict::Refused(error); orders.len()])
    }

    fn try_park(&mut self, owner: &Origin, orders: &[&Order], delay_key: &str) -> Result<Vec<Verdict>> {
        let (mut verdicts, mut mine, mut set_back) = (Vec::new(), Vec::new(), Vec::new());
        for order in orders {
            let (&Action::Park { delay, resent }, id) = (&order.action, order.token.id()) else {
                continue;
            };
            let (verdict, stands_at) = self.standing(owner, order, 0)?;
            if verdict == Verdict::Done {
                let member = delayed::parked(id, &owner.group, order.count);
                // Sent before, and carried out then: it keeps its due time. One with a minus is from when it was kept.
                if !resent || self.zscore(delay_key, &member)?.is_none_or(|before| before < 0.0) {
                    self.zadd(delay_key, delayed::score(self.now(), delay), &member)?;
                }
                if stands_at > i64::from(order.count) {
                    set_back.push((id, order.count));
                } else {
                    mine.push(id);
                }
            }
            verdicts.push(verdict);
        }
        if !mine.is_empty() {
            let claim = Claim { just_id: true, ..Claim::default() };
            self.xclaim(&owner.stream, &owner.group, &owner.consumer, &claim, &mine)?;
        }
        // Their own process has claimed these once more, and finds them parked at the count they had.
        for (id, count) in set_back {
            let claim = Claim { count: Some(count.into()), just_id: true, ..Claim::default() };
            self.xclaim(&owner.stream, &owner.group, &owner.consumer, &claim, &[id])?;
        }
        Ok(verdicts)
    }

    /// Whether the entry is its owner's at the order's count, or at most `more` above it, and how it stands. Where the
    /// owner's name is this process's alone, the count may have been raised by any number of claims.
    fn standing(&self, owner: &Origin, order: &Order, more: i64) -> Result<(Verdict, i64)> {
        let Some(entry) = self.pending_entry(&owner.stream, &owner.group, order.token.id())? else {
            return Ok((Verdict::Gone, 0));
        };
        let (stands_at, least) = (count(&entry), i64::from(order.count));
        let counts = stands_at >= least && (!order.exact || stands_at <= least + more);
        let verdict = if entry.consumer == owner.consumer && counts { Verdict::Done } else { Verdict::Taken };
        Ok((verdict, stands_at))
    }

    /// Count a delivery more of what stands as its order says. `resent`: or stands so already.
    pub(super) fn count_again(&mut self, owner: &Origin, order: &Order, resent: bool, delay_key: &str) -> Verdict {
        self.try_count_again(owner, order, resent, delay_key).unwrap_or_else(Verdict::Refused)
    }

    fn try_count_again(&mut self, owner: &Origin, order: &Order, resent: bool, delay_key: &str) -> Result<Verdict> {
        let id = order.token.id();
        let (mut verdict, stands_at) = self.standing(owner, order, i64::from(resent))?;
        if verdict == Verdict::Done {
            // Sent before, and carried out then, or claimed once more by its own process meanwhile: it counts once.
            let count = Some(stands_at.max(i64::from(order.count) + 1));
            let claim = Claim { count, just_id: true, ..Claim::default() };
            if self.xclaim(&owner.stream, &owner.group, &owner.consumer, &claim, &[id])?.is_empty() {
                verdict = Verdict::Gone;
            }
            // It waits no more. A key of another type holds no due time of it either.
            let _ = self.zrem(delay_key, &delayed::parked(id, &owner.group, order.count));
        }
        Ok(verdict)
    }

    /// Write down when what its holder keeps is due, for whoever claims it should the holder be gone. The score has a
    /// minus before it: no timer hands it over. All orders are of one owner.
    pub(super) fn keep(&mut self, owner: &Origin, orders: &[&Order], delay_key: &str) -> Vec<Verdict> {
        self.try_keep(owner, orders, delay_key).unwrap_or_else(|error| vec![Verdict::Refused(error); orders.len()])
    }

    fn try_keep(&mut self, owner: &Origin, orders: &[&Order], delay_key: &str) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        for order in orders {
            let (&Action::Keep(delay), id) = (&order.action, order.token.id()) else {
                continue;
            };
            let verdict = self.check(owner, id, Some(order.count))?;
            let member = delayed::parked(id, &owner.group, order.count);
            // What was written before stays: that is this very due time, or the entry was parked meanwhile.
            if verdict == Verdict::Done && self.zscore(delay_key, &member)?.is_none() {
                self.zadd(delay_key, -delayed::score(self.now(), delay), &member)?;
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    /// Remove what is left of kept entries that were due, and are not pending any more or were delivered once more.
    /// Some at a time, the oldest first. Returns how many members were no entries of ours, and were put aside.
    fn sweep_kept(&mut self, origin: &Origin, delay_key: &str) -> Result<usize> {
        let from = -score(self.now(), Duration::from_millis(1));
        let due = self.zrange_within(delay_key, from..0.0, 0, usize::MAX)?;
        let mut strange = 0;
        for (member, _) in due.iter().rev().take(SWEPT) {
            match delayed::read(member) {
                Member::Parked { id, group, count: kept_at } if group == origin.group.as_bytes() => {
                    let pending = self.pending_if_any(origin, id)?;
                    if pending.is_none_or(|pending| count(&pending) != kept_at) {
                        self.zrem(delay_key, member)?;
                    }
                }
                Member::Parked { .. } => {}
                Member::Copy(_) | Member::Strange => {
                    self.zadd(delay_key, f64::INFINITY, member)?;
                    strange += 1;
                }
            }
        }
        Ok(strange)
    }

    /// Without the group nothing is pending.
    fn pending_if_any(&self, origin: &Origin, id: EntryId) -> Result<Option<PendingEntry>> {
        match self.pending_entry(&origin.stream, &origin.group, id) {
            Err(Error::NoGroup(_)) => Ok(None),
            pending => pending,
        }
    }

    /// Move copies that are due to the stream's end, and take over parked entries of the group that are.
    pub(super) fn due(&mut self, origin: &Origin, delay_key: &str, look: Look) -> Result<Handed> {
        let now = self.now();
        let whole = score(now, Duration::ZERO);
        let due = self.zrange_within(delay_key, 0.0..whole + 1.0, look.offset, look.limit)?;
        let strange = self.sweep_kept(origin, delay_key)?;
        let mut handed = Handed { seen: due.len(), strange, ..Handed::default() };
        for (member, score) in &due {
            match delayed::read(member) {
                Member::Copy(fields) => {
                    self.xadd(&origin.stream, AddId::Auto, &fields, None)?;
                    self.zrem(delay_key, member)?;
                    handed.moved += 1;
                }
                Member::Parked { id, group, count } if group == origin.group.as_bytes() => {
                    self.take_due(origin, delay_key, look, (member, *score), (id, count), &mut handed)?;
                }
                Member::Parked { .. } => handed.passed += 1,
                Member::Strange => {
                    // Not ours, so not ours to remove; but it must not stand before everything for ever.
                    self.zadd(delay_key, f64::INFINITY, member)?;
                    handed.strange += 1;
                }
            }
        }
        let next = self.zfirst_from(delay_key, whole + 1.0)?;
        handed.next = next.map(|score| Duration::from_millis(time(score).saturating_sub(now)));
        Ok(handed)
    }

    fn take_due(
        &mut self,
        origin: &Origin,
        delay_key: &str,
        look: Look,
        (member, score): (&[u8], f64),
        (id, parked_at): (EntryId, i64),
        handed: &mut Handed,
    ) -> Result<()> {
        let Origin { stream, group, consumer, .. } = origin;
        let Some(pending) = self.pending_if_any(origin, id)?.filter(|pending| count(pending) == parked_at) else {
            // Settled meanwhile, or somebody's who was not told of its delay.
            self.zrem(delay_key, member)?;
            return Ok(());
        };
        if handed.step.taken.len() + handed.step.deleted.len() >= look.room {
            handed.passed += 1;
            handed.waiting += 1;
            return Ok(());
        }
        if look.keeps_bodiless && self.xrange(stream, Range::one(id), None)?.is_empty() {
            return self.zrem(delay_key, member).map(drop);
        }
        let body = self.xclaim(stream, group, consumer, &Claim::default(), &[id])?.pop();
        self.zrem(delay_key, member)?;
        match body {
            Some(body) => {
                let idle = delayed::lain(score, self.now(), pending.idle);
                handed.step.taken.push(Taken { body, idle, earlier: count(&pending) });
            }
            None => handed.step.deleted.push(id),
        }
        Ok(())
    }

    /// Remove the parked entries of a group that is not there, among some of the members. Returns how many of these stay;
    /// none: there are no more to look at.
    pub(super) fn unpark(
        &mut self,
        origin: &Origin,
        delay_key: &str,
        offset: usize,
        limit: usize,
    ) -> Result<Option<usize>> {
        // Those of a group that is there are in use.
        if self.group(&origin.stream, &origin.group)?.is_some() {
            return Ok(None);
        }
        let members = self.zrange_within(delay_key, f64::NEG_INFINITY..f64::INFINITY, offset, limit)?;
        let mut stay = 0;
        for (member, _) in &members {
            match delayed::read(member) {
                Member::Parked { group, .. } if group == origin.group.as_bytes() => {
                    self.zrem(delay_key, member)?;
                }
                _ => stay += 1,
            }
        }
        Ok((members.len() == limit).then_some(stay))
    }

    /// Which of these claimed entries were parked. Those that are not due are parked again.
    pub(super) fn early(
        &mut self,
        origin: &Origin,
        delay_key: &str,
        claimed: &[Slot],
    ) -> Result<Vec<(EntryId, Parked)>> {
        let mut found = Vec::new();
        for slot in claimed {
            for count in (slot.earlier.saturating_sub(BACK).max(1)..=slot.earlier).rev() {
                let member = delayed::parked(slot.id, &origin.group, count);
                if let Some(score) = self.zscore(delay_key, &member)? {
                    found.push((slot.id, self.look_early(origin, delay_key, slot, (&member, score), count)?));
                    break;
                }
            }
        }
        Ok(found)
    }

    fn look_early(
        &mut self,
        origin: &Origin,
        delay_key: &str,
        slot: &Slot,
        (member, score): (&[u8], f64),
        parked_at: u32,
    ) -> Result<Parked> {
        let (now, kept, score) = (self.now(), score < 0.0, score.abs());
        if time(score) <= now {
            self.zrem(delay_key, member)?;
            let idle = i64::try_from(slot.idle_ms).unwrap_or(i64::MAX);
            return Ok(Parked::Due(u64::try_from(delayed::lain(score, now, idle)).unwrap_or(0)));
        }
        let Origin { stream, group, consumer, .. } = origin;
        let pending = self.pending_if_any(origin, slot.id)?;
        let earlier = i64::from(slot.earlier);
        if pending.is_some_and(|pending| pending.consumer == *consumer && count(&pending) == earlier + 1) {
            if kept || parked_at != slot.earlier {
                self.zrem(delay_key, member)?;
                self.zadd(delay_key, score, &delayed::parked(slot.id, group, slot.earlier))?;
            }
            let claim = Claim { count: Some(earlier), just_id: true, ..Claim::default() };
            self.xclaim(stream, group, consumer, &claim, &[slot.id])?;
        }
        Ok(Parked::Early)
    }
}

#[cfg(test)]
#[path = "due_tests.rs"]
mod tests;
