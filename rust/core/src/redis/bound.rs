//! Keeping a stream within its bound: deleting what is acknowledged, and trimming what nobody needs.

use ::redis::{Pipeline, Value, cmd};

use super::scripts;
use super::store::{RedisStore, with_id};
use super::value::{self, integer, items};
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::order::Order;
use crate::store::{Bound, Holder, Trimmed};

/// Ids per command.
const IDS: usize = 1000;

/// Delete what was acknowledged by scripts, as far as no group needs it any more.
pub(super) fn push_deletes(pipeline: &mut Pipeline, stream: &str, orders: &[Order]) {
    for chunk in orders.chunks(IDS) {
        let mut command = cmd("XDELEX");
        command.arg(stream).arg("ACKED").arg("IDS").arg(chunk.len());
        for order in chunk {
            with_id(&mut command, order.token.id());
        }
        pipeline.add_command(command);
    }
}

/// Acknowledge, and delete what no group needs any more.
pub(super) fn push_acks(pipeline: &mut Pipeline, stream: &str, group: &str, acks: &[EntryId]) {
    for chunk in acks.chunks(IDS) {
        let mut command = cmd("XACKDEL");
        command.arg(stream).arg(group).arg("ACKED").arg("IDS").arg(chunk.len());
        for id in chunk {
            with_id(&mut command, *id);
        }
        pipeline.add_command(command);
    }
}

fn holder(reply: &Value) -> Option<Holder> {
    let [group, pending, lag] = items(reply) else {
        return None;
    };
    let number = |value: &Value| integer(value).and_then(|number| u64::try_from(number).ok());
    Some(Holder { group: value::text(group), pending: number(pending)?, lag: number(lag) })
}

impl RedisStore {
    pub(super) async fn trim_step(
        &self,
        stream: &str,
        groups: &[String],
        bound: Bound,
        limit: usize,
    ) -> Result<Trimmed> {
        let (policy, figure) = match bound {
            Bound::Acked => ("acked", 0),
            Bound::Length(length) => ("length", u128::from(length)),
            Bound::Age(age) => ("age", age.as_millis()),
        };
        let mut command = scripts::call(&scripts::TRIM, &[stream]);
        command.arg(policy).arg(figure.to_string()).arg(limit.max(1)).arg(groups);
        let reply = self.work.query(&command).await?;
        let [removed, over, holders] = items(&reply) else {
            return Err(Error::Protocol("a trim was not answered with three elements".into()));
        };
        Ok(Trimmed {
            removed: integer(removed).and_then(|number| usize::try_from(number).ok()).unwrap_or(0),
            over: integer(over).and_then(|number| u64::try_from(number).ok()).unwrap_or(0),
            holders: items(holders).iter().filter_map(holder).collect(),
        })
    }
}
