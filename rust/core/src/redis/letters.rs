//! Dead letters: written in an entry's place, read, and put back.

use ::redis::{Cmd, Pipeline, Value, cmd};

use super::scripts;
use super::settle::order_command;
use super::store::{RedisStore, with_id};
use super::value::{self, integer};
use crate::append::Replay;
use crate::batch::RawBatch;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::letter::Letter;
use crate::order::{Order, copyable};

/// The one step that writes a letter and acknowledges its entry.
pub(super) fn bury(order: &Order, letter: &Letter) -> Result<Cmd> {
    let fields = copyable(letter.fields(&order.token, &order.owner, order.count))?;
    let mut command = order_command(&scripts::BURY, order, letter.to());
    command.arg(u8::from(order.token.copy_of().is_some()));
    for (name, value) in &fields {
        command.arg(name).arg(value);
    }
    Ok(command)
}

fn replay(letters: &str, replay: &Replay) -> Cmd {
    let mut command = scripts::call(&scripts::REPLAY, &[letters, &replay.to]);
    with_id(&mut command, replay.id);
    for (name, value) in &replay.fields {
        command.arg(name).arg(value);
    }
    command
}

impl RedisStore {
    pub(super) async fn entries_after(&self, stream: &str, cursor: EntryId, count: usize) -> Result<RawBatch> {
        let mut command = cmd("XRANGE");
        command.arg(stream).arg(format!("({cursor}")).arg("+").arg("COUNT").arg(count);
        Ok(value::plain_entries(&self.work.query(&command).await?))
    }

    pub(super) async fn length_of(&self, stream: &str) -> Result<usize> {
        let reply = self.work.query(cmd("XLEN").arg(stream)).await?;
        integer(&reply)
            .and_then(|length| usize::try_from(length).ok())
            .ok_or_else(|| Error::Protocol("XLEN was not answered with a number".into()))
    }

    pub(super) async fn put_back(&self, letters: &str, replays: &[Replay]) -> Result<Vec<Result<Option<EntryId>>>> {
        let mut pipeline = Pipeline::with_capacity(replays.len());
        for one in replays {
            pipeline.add_command(replay(letters, one));
        }
        let replies = self.work.pipeline(&pipeline).await?;
        let id = |reply: Value| match reply {
            Value::Nil => Ok(None),
            reply => value::id(&reply).map(Some).ok_or_else(|| Error::Protocol("a replay answered no id".into())),
        };
        Ok(replies.into_iter().map(|reply| reply.and_then(id)).collect())
    }
}
