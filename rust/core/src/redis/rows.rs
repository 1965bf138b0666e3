//! Looking at a stream's groups and at what is pending in them.

use std::time::Duration;

use ::redis::{Value, cmd};

use super::store::RedisStore;
use super::value::{self, integer, items};
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::store::{GroupRow, PendingRow};

fn unsigned(reply: &Value) -> Option<u64> {
    integer(reply).and_then(|number| u64::try_from(number).ok())
}

fn group(reply: &Value) -> Option<GroupRow> {
    let number = |name: &str| value::field(reply, name).and_then(unsigned);
    Some(GroupRow {
        name: value::text(value::field(reply, "name")?),
        consumers: number("consumers")?,
        pending: number("pending")?,
        lag: number("lag"),
        last: EntryId::parse(value::bytes(value::field(reply, "last-delivered-id")?))?,
    })
}

fn pending(reply: &Value) -> Option<PendingRow> {
    let [id, consumer, idle, deliveries] = items(reply) else {
        return None;
    };
    Some(PendingRow {
        id: value::id(id)?,
        consumer: value::text(consumer),
        // -1 for one that was handed back.
        idle: unsigned(idle).map(Duration::from_millis),
        deliveries: unsigned(deliveries)?,
    })
}

impl RedisStore {
    pub(super) async fn group_rows(&self, stream: &str) -> Result<Option<Vec<GroupRow>>> {
        match self.work.query(cmd("XINFO").arg("GROUPS").arg(stream)).await {
            Ok(reply) => Ok(Some(items(&reply).iter().filter_map(group).collect())),
            Err(Error::Server(text)) if text.contains("no such key") => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn pending_rows(&self, stream: &str, group: &str, count: usize) -> Result<Vec<PendingRow>> {
        let mut command = cmd("XPENDING");
        command.arg(stream).arg(group).arg("-").arg("+").arg(count);
        let reply = self.work.query(&command).await?;
        Ok(items(&reply).iter().filter_map(pending).collect())
    }
}
