//! Sorted sets, as far as delayed entries need them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::keyspace::Keyspace;
use super::refusal;
use crate::error::Result;

/// A score with a total order; what is not a number is refused before it comes here.
#[derive(Debug, Clone, Copy)]
struct Score(f64);

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Zero and minus zero are one score.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

/// Members by score, then by their bytes.
#[derive(Debug, Default)]
pub(super) struct SortedSet {
    scores: BTreeMap<Vec<u8>, Score>,
    order: BTreeSet<(Score, Vec<u8>)>,
}

impl SortedSet {
    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    /// Add a member or change its score. True: it is new.
    pub(super) fn add(&mut self, score: f64, member: &[u8]) -> bool {
        let score = Score(score);
        let before = self.scores.insert(member.to_owned(), score);
        if let Some(before) = before {
            self.order.remove(&(before, member.to_owned()));
        }
        self.order.insert((score, member.to_owned()));
        before.is_none()
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        self.order.remove(&(score, member.to_owned()))
    }

    /// The first whole score above this one.
    #[expect(clippy::cast_precision_loss, reason = "a time of day in milliseconds is exact")]
    pub(super) fn next_above(&self, score: u64) -> Option<f64> {
        let whole = self.order.iter().map(|(score, _)| score.0.floor());
        whole.take_while(|next| next.is_finite()).find(|next| *next > score as f64)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], f64)> {
        self.order.iter().map(|(score, member)| (member.as_slice(), score.0))
    }
}

impl Keyspace {
    /// `ZADD` of one member. True: it is new.
    pub fn zadd(&mut self, key: &str, score: f64, member: &[u8]) -> Result<bool> {
        self.sorted(key)?;
        if score.is_nan() {
            return Err(refusal::server("ERR value is not a valid float"));
        }
        self.change_sorted(key, |sorted| sorted.add(score, member))
    }

    /// `ZREM` of one member. True: it was there.
    pub fn zrem(&mut self, key: &str, member: &[u8]) -> Result<bool> {
        self.change_sorted(key, |sorted| sorted.remove(member))
    }

    /// `ZCARD`.
    pub fn zcard(&self, key: &str) -> Result<usize> {
        Ok(self.sorted(key)?.map_or(0, SortedSet::len))
    }

    /// `ZSCORE`.
    pub fn zscore(&self, key: &str, member: &[u8]) -> Result<Option<f64>> {
        Ok(self.sorted(key)?.and_then(|sorted| sorted.scores.get(member)).map(|score| score.0))
    }

    /// `ZRANGEBYSCORE key scores.start (scores.end WITHSCORES LIMIT offset limit`.
    pub fn zrange_within(
        &self,
        key: &str,
        scores: Range<f64>,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, f64)>> {
        let members = self.sorted(key)?.into_iter().flat_map(SortedSet::iter);
        let within = members.skip_while(|(_, score)| *score < scores.start);
        let due = within.take_while(|(_, score)| *score < scores.end).skip(offset).take(limit);
        Ok(due.map(|(member, score)| (member.to_owned(), score)).collect())
    }

    /// The score of `ZRANGEBYSCORE key first (+inf LIMIT 0 1`.
    pub fn zfirst_from(&self, key: &str, first: f64) -> Result<Option<f64>> {
        let Some(sorted) = self.sorted(key)? else {
            return Ok(None);
        };
        let next = sorted.order.range((Score(first), Vec::new())..).next();
        Ok(next.map(|(score, _)| score.0).filter(|score| score.is_finite()))
    }

    /// `ZRANGE key first last WITHSCORES`; a negative index counts from the end.
    pub fn zrange(&self, key: &str, first: i64, last: i64) -> Result<Vec<(Vec<u8>, f64)>> {
        let Some(sorted) = self.sorted(key)? else {
            return Ok(Vec::new());
        };
        let length = i64::try_from(sorted.len()).unwrap_or(i64::MAX);
        let from_start = |index: i64| if index < 0 { index + length } else { index };
        let (first, last) = (from_start(first).max(0), from_start(last));
        let skip = usize::try_from(first).unwrap_or(usize::MAX);
        let take = usize::try_from(last.saturating_sub(first).saturating_add(1)).unwrap_or(0);
        Ok(sorted.iter().skip(skip).take(take).map(|(member, score)| (member.to_owned(), score)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(keyspace: &Keyspace, first: i64, last: i64) -> Vec<String> {
        let members = keyspace.zrange("z", first, last).unwrap_or_default();
        members.into_iter().map(|(member, _)| String::from_utf8_lossy(&member).into_owned()).collect()
    }

    #[test]
    fn members_stand_by_score_and_then_by_bytes() {
        let mut keyspace = Keyspace::default();
        for (score, member) in [(2.0, "b"), (2.0, "a"), (1.0, "z"), (-0.0, "n"), (0.0, "m")] {
            assert_eq!(keyspace.zadd("z", score, member.as_bytes()), Ok(true));
        }
        assert_eq!(members(&keyspace, 0, -1), ["m", "n", "z", "a", "b"]);
        assert_eq!(keyspace.zadd("z", 3.0, b"a"), Ok(false));
        assert_eq!((members(&keyspace, -2, 9), members(&keyspace, 3, 1)), (vec!["b".into(), "a".into()], vec![]));
        let within = |scores| keyspace.zrange_within("z", scores, 1, 2);
        assert_eq!(within(f64::NEG_INFINITY..1.0), Ok(vec![(b"n".to_vec(), -0.0)]));
        assert_eq!((within(1.0..2.0), within(0.5..2.5)), (Ok(vec![]), Ok(vec![(b"b".to_vec(), 2.0)])));
        assert_eq!((keyspace.zscore("z", b"z"), keyspace.zscore("z", b"none")), (Ok(Some(1.0)), Ok(None)));
        assert_eq!((keyspace.zfirst_from("z", 1.5), keyspace.zfirst_from("z", 3.5)), (Ok(Some(2.0)), Ok(None)));
        assert_eq!((keyspace.zrem("z", b"m"), keyspace.zrem("z", b"m")), (Ok(true), Ok(false)));
        assert_eq!((keyspace.zcard("z"), keyspace.zcard("none")), (Ok(4), Ok(0)));
    }

    #[test]
    fn a_key_of_another_type_is_refused() {
        let mut keyspace = Keyspace::default();
        keyspace.set("z", b"");
        let wrong = refusal::wrong_type();
        assert_eq!(keyspace.zadd("z", 1.0, b"m"), Err(wrong.clone()));
        assert_eq!(keyspace.zcard("z"), Err(wrong.clone()));
        assert_eq!(keyspace.zrem("z", b"m"), Err(wrong));
        assert!(keyspace.zadd("y", f64::NAN, b"m").is_err() && keyspace.kind("y") == "none");
    }
}
