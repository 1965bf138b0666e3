//! Consumers of a group: who is there, who lives, and deleting those that do not.

use std::time::Duration;

use ::redis::Value;

use super::scripts;
use super::store::RedisStore;
use super::value::{self, integer, items};
use crate::error::{Error, Result};
use crate::store::ConsumerRow;

/// What the reply of a stream that is not there comes to.
fn there(reply: Result<Value>) -> Result<Value> {
    match reply {
        Err(Error::Server(text)) if text.contains("no such key") => Ok(Value::Nil),
        reply => reply,
    }
}

fn row(reply: &Value) -> Option<ConsumerRow> {
    let number = |name: &str| value::field(reply, name).and_then(integer).and_then(|found| u64::try_from(found).ok());
    Some(ConsumerRow {
        name: value::text(value::field(reply, "name")?),
        pending: number("pending")?,
        idle: Duration::from_millis(number("idle")?),
        // -1 for one that never got anything.
        inactive: number("inactive").map(Duration::from_millis),
    })
}

impl RedisStore {
    pub(super) async fn consumer_rows(&self, stream: &str, group: &str, living: &[&str]) -> Result<Vec<ConsumerRow>> {
        let mut command = scripts::call(&scripts::CONSUMERS, &[stream]);
        command.arg(group).arg(living);
        let reply = there(self.work.query(&command).await)?;
        Ok(items(&reply).iter().filter_map(row).collect())
    }

    pub(super) async fn forget(
        &self,
        stream: &str,
        group: &str,
        names: &[&str],
        idle: Duration,
    ) -> Result<Vec<String>> {
        let mut command = scripts::call(&scripts::FORGET, &[stream]);
        command.arg(group).arg(idle.as_millis().to_string()).arg(names);
        let reply = there(self.work.query(&command).await)?;
        Ok(items(&reply).iter().map(value::text).collect())
    }
}
