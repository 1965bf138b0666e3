//! The marks of starts: a hash with a field per entry that is not settled.

use std::collections::HashSet;

use ::redis::{Cmd, Pipeline, Value, cmd};

use super::scripts;
use super::settle::verdict;
use super::store::{RedisStore, with_count, with_id};
use super::value::{self, items};
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::order::Verdict;
use crate::store::StartMark;

/// Ids per command.
const IDS: usize = 500;

/// Take away the marks of these: at once of those that were acknowledged, whoever had them; of the others as far as they
/// are not pending any more (1.3 us each to look).
pub(super) fn push_unmarks(pipeline: &mut Pipeline, origin: &Origin, key: &str, (ids, acks): (&[EntryId], &[EntryId])) {
    let acks: HashSet<_> = acks.iter().collect();
    let (acked, others): (Vec<_>, Vec<_>) = ids.iter().partition(|id| acks.contains(id));
    for ids in acked.chunks(IDS) {
        let mut command = cmd("HDEL");
        command.arg(key);
        for id in ids {
            with_id(&mut command, *id);
        }
        pipeline.add_command(command);
    }
    for ids in others.chunks(IDS) {
        pipeline.add_command(unmark_command(origin, key, ids));
    }
}

/// Takes away the marks of those that are not pending, which it looks at by itself.
fn unmark_command(origin: &Origin, key: &str, ids: &[EntryId]) -> Cmd {
    let mut command = scripts::call(&scripts::UNMARK, &[&origin.stream, key]);
    command.arg(&origin.group);
    for id in ids {
        with_id(&mut command, *id);
    }
    command
}

impl RedisStore {
    pub(super) async fn get_marks(&self, key: &str, ids: &[EntryId]) -> Result<Vec<Option<String>>> {
        let mut command = cmd("HMGET");
        command.arg(key);
        for id in ids {
            with_id(&mut command, *id);
        }
        let reply = self.work.query(&command).await?;
        let text = |value: &Value| (*value != Value::Nil).then(|| value::text(value));
        Ok(items(&reply).iter().map(text).collect())
    }

    pub(super) async fn put_marks(&self, owner: &Origin, key: &str, marks: &[StartMark]) -> Result<Vec<Verdict>> {
        let mut command = scripts::call(&scripts::MARK, &[&owner.stream, key]);
        command.arg(&owner.group).arg(&owner.consumer);
        for mark in marks {
            with_id(&mut command, mark.id);
            with_count(&mut command, mark.count);
            command.arg(&mark.text);
        }
        match self.work.query(&command).await {
            Ok(reply) => Ok(items(&reply).iter().map(verdict).collect()),
            // Nothing is pending in a group that is not there.
            Err(Error::NoGroup(_)) => Ok(vec![Verdict::Gone; marks.len()]),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn remove_marks(&self, origin: &Origin, key: &str, ids: &[EntryId]) -> Result<usize> {
        let reply = self.work.query(&unmark_command(origin, key, ids)).await?;
        Ok(value::integer(&reply).and_then(|removed| usize::try_from(removed).ok()).unwrap_or(0))
    }

    /// What is no entry id in the hash is not ours, and left alone.
    pub(super) async fn list_marks(&self, key: &str, cursor: u64, count: usize) -> Result<(Vec<EntryId>, u64)> {
        let mut command = cmd("HSCAN");
        command.arg(key).arg(cursor).arg("COUNT").arg(count);
        let reply = self.work.query(&command).await?;
        let [next, pairs] = items(&reply) else {
            return Err(Error::Protocol("HSCAN was not answered with two elements".into()));
        };
        let ids = items(pairs).chunks_exact(2).filter_map(|pair| value::id(&pair[0])).collect();
        let next = std::str::from_utf8(value::bytes(next)).ok().and_then(|text| text.parse().ok());
        Ok((ids, next.unwrap_or(0)))
    }
}
