//! Marks of messages: what the script does on a server, call by call.

use super::keyspace::Keyspace;
use crate::error::Result;
use crate::mark::{MarkState, MarkStep};

const DONE: &[u8] = b"done";

fn working(owner: &str) -> Vec<u8> {
    [b"working ", owner.as_bytes()].concat()
}

impl Keyspace {
    /// One step of one mark.
    pub(super) fn mark(&mut self, step: MarkStep, owner: &str, key: &str) -> Result<MarkState> {
        let ours = working(owner);
        let found = self.get(key)?;
        if found == Some(DONE) {
            return Ok(MarkState::Done);
        }
        if found.is_some_and(|mark| mark != ours) {
            return Ok(MarkState::Working);
        }
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        match step {
            MarkStep::Begin(lease) | MarkStep::Renew(lease) => self.set_for(key, &ours, ms(lease)),
            MarkStep::Finish(ttl) => self.set_for(key, DONE, ms(ttl)),
            MarkStep::Release => {
                self.del(&[key]);
            }
        }
        Ok(MarkState::Ours)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::refusal;

    const BEGIN: MarkStep = MarkStep::Begin(Duration::from_millis(100));
    const FINISH: MarkStep = MarkStep::Finish(Duration::from_secs(1));

    #[test]
    fn a_mark_is_its_owners_until_its_lease_ends() {
        let mut keyspace = Keyspace::default();
        assert_eq!(keyspace.mark(BEGIN, "a", "k"), Ok(MarkState::Ours));
        keyspace.set_now(60);
        assert_eq!(keyspace.mark(BEGIN, "a", "k"), Ok(MarkState::Ours), "renewed");
        keyspace.set_now(159);
        for step in [BEGIN, FINISH, MarkStep::Release] {
            assert_eq!(keyspace.mark(step, "b", "k"), Ok(MarkState::Working));
        }
        assert_eq!(keyspace.get("k"), Ok(Some(&b"working a"[..])), "a foreign mark is never touched");
        keyspace.set_now(160);
        assert_eq!(keyspace.mark(BEGIN, "b", "k"), Ok(MarkState::Ours));
        assert_eq!(keyspace.mark(FINISH, "a", "k"), Ok(MarkState::Working));
    }

    #[test]
    fn what_is_done_stays_so_for_its_time() {
        let mut keyspace = Keyspace::default();
        assert_eq!(keyspace.mark(FINISH, "a", "k"), Ok(MarkState::Ours), "its lease had ended");
        for step in [BEGIN, FINISH, MarkStep::Release] {
            assert_eq!(keyspace.mark(step, "a", "k"), Ok(MarkState::Done));
        }
        keyspace.set_now(1_000);
        assert_eq!(keyspace.mark(BEGIN, "b", "k"), Ok(MarkState::Ours));
    }

    #[test]
    fn a_released_mark_is_free() {
        let mut keyspace = Keyspace::default();
        assert_eq!(keyspace.mark(BEGIN, "a", "k"), Ok(MarkState::Ours));
        assert_eq!(keyspace.mark(MarkStep::Release, "a", "k"), Ok(MarkState::Ours));
        assert_eq!((keyspace.kind("k"), keyspace.mark(BEGIN, "b", "k")), ("none", Ok(MarkState::Ours)));
        assert_eq!(keyspace.mark(MarkStep::Release, "c", "none"), Ok(MarkState::Ours), "nothing to take away");
    }

    #[test]
    fn a_key_of_another_type_is_refused() {
        let mut keyspace = Keyspace::default();
        assert_eq!(keyspace.zadd("k", 1.0, b"m"), Ok(true));
        assert_eq!(keyspace.mark(BEGIN, "a", "k"), Err(refusal::wrong_type()));
    }
}
