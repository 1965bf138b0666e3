//! Commands that change who owns pending entries: `XCLAIM`, `XAUTOCLAIM`.

use std::sync::Arc;

use super::argument::Range;
use super::body::Body;
use super::keyspace::Keyspace;
use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// When a claimed entry counts as delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivered {
    /// Now.
    #[default]
    Now,
    /// `IDLE`: so many milliseconds ago.
    Ago(i64),
    /// `TIME`: at this time of day, in milliseconds.
    At(i64),
}

/// Options of `XCLAIM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claim {
    /// Only entries that lay pending for so many milliseconds.
    pub min_idle: u64,
    /// When they count as delivered.
    pub delivered: Delivered,
    /// `RETRYCOUNT`: set the delivery count; a negative one is ignored.
    pub count: Option<i64>,
    /// Claim entries that are not pending, too.
    pub force: bool,
    /// `JUSTID`: do not count a delivery.
    pub just_id: bool,
}

/// What `XAUTOCLAIM` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Autoclaimed {
    /// Where the next step begins; `0-0`: the end was reached.
    pub cursor: EntryId,
    /// What was taken over. `JUSTID` does not keep the bodies back here.
    pub bodies: Vec<Arc<Body>>,
    /// Entries without a body; they are off the list now.
    pub deleted: Vec<EntryId>,
}

/// Pending entries that `XAUTOCLAIM` looks at for each one it may take.
const LOOK: usize = 10;

impl Claim {
    /// The delivery time it sets. One that makes no sense becomes now.
    fn time(&self, now: u64) -> u64 {
        let now_signed = i64::try_from(now).unwrap_or(i64::MAX);
        let time = match self.delivered {
            Delivered::Now => now_signed,
            Delivered::Ago(idle) => now_signed.wrapping_sub(idle),
            Delivered::At(time) => time,
        };
        u64::try_from(time).unwrap_or(now).min(now)
    }
}

impl Keyspace {
    /// `XCLAIM`. Returns what is the consumer's now. Entries whose body is gone are taken off the list.
    pub fn xclaim(
        &mut self,
        key: &str,
        group: &str,
        consumer: &str,
        claim: &Claim,
        ids: &[EntryId],
    ) -> Result<Vec<Arc<Body>>> {
        let now = self.now();
        let time = claim.time(now);
        let (entries, group) = self.group_mut(key, group)?.ok_or_else(|| refusal::no_group(key, group))?;
        let consumer = group.seen(consumer, now);
        let mut claimed = Vec::new();
        for id in ids {
            let Some(body) = entries.get(*id) else {
                group.remove(*id);
                continue;
            };
            let known = group.get(*id).copied();
            match known {
                None if !claim.force => continue,
                Some(nack) if nack.owner.is_some() && now.saturating_sub(nack.delivered()) < claim.min_idle => continue,
                _ => {}
            }
            if let Some(nack) = group.put(*id, Some(consumer), time) {
                if known.is_none() {
                    nack.count = 1;
                }
                match claim.count.filter(|count| *count >= 0) {
                    Some(count) => nack.count = count,
                    None if claim.just_id => {}
                    None => nack.counted(),
                }
            }
            group.active(consumer, now);
            claimed.push(Arc::clone(body));
        }
        Ok(claimed)
    }

    /// `XAUTOCLAIM` from `start` on, `count` entries at most (0 is refused; the server's default is 100).
    #[expect(clippy::too_many_arguments, reason = "they are the command's")]
    pub fn xautoclaim(
        &mut self,
        key: &str,
        group: &str,
        consumer: &str,
        min_idle: u64,
        start: EntryId,
        count: usize,
        just_id: bool,
    ) -> Result<Autoclaimed> {
        if count == 0 {
            return Err(refusal::server("ERR COUNT must be > 0"));
        }
        let now = self.now();
        let (entries, group) = self.group_mut(key, group)?.ok_or_else(|| refusal::no_group(key, group))?;
        let consumer = group.seen(consumer, now);
        let mut left = count;
        let mut looks = count.saturating_mul(LOOK);
        let mut cursor = EntryId::ZERO;
        let mut taken = Vec::new();
        let mut deleted = Vec::new();
        for (id, nack) in group.range(Range::from(start)) {
            if looks == 0 || left == 0 {
                cursor = id;
                break;
            }
            looks -= 1;
            match entries.get(id) {
                None => deleted.push(id),
                Some(_) if nack.owner.is_some() && now.saturating_sub(nack.delivered()) < min_idle => continue,
                Some(body) => taken.push(Arc::clone(body)),
            }
            left -= 1;
        }
        for body in &taken {
            if let Some(nack) = group.put(body.id(), Some(consumer), now)
                && !just_id
            {
                nack.counted();
            }
            group.active(consumer, now);
        }
        for id in &deleted {
            group.remove(*id);
        }
        Ok(Autoclaimed { cursor, bodies: taken, deleted })
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
