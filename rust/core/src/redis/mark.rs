//! Marks of messages, one script for many.

use std::time::Duration;

use ::redis::Value;

use super::scripts;
use super::store::RedisStore;
use super::value::{integer, items};
use crate::error::{Error, Result};
use crate::mark::{MarkKey, MarkState, MarkStep};

impl RedisStore {
    pub(super) async fn mark_step(
        &self,
        step: MarkStep,
        owner: &str,
        keys: &[MarkKey],
    ) -> Result<Vec<Result<MarkState>>> {
        let keys: Vec<_> = keys.iter().map(AsRef::as_ref).collect();
        let mut command = scripts::call(&scripts::MESSAGE, &keys);
        let (name, lives) = match step {
            MarkStep::Begin(lease) | MarkStep::Renew(lease) => ("begin", lease),
            MarkStep::Finish(ttl) => ("finish", ttl),
            MarkStep::Release => ("release", Duration::ZERO),
        };
        command.arg(name).arg(owner).arg(lives.as_millis().max(1).to_string());
        let reply = self.work.query(&command).await?;
        let states: Vec<_> = items(&reply).iter().filter_map(state).collect();
        if states.len() == keys.len() {
            Ok(states)
        } else {
            Err(Error::Protocol("marks were not answered with a state each".into()))
        }
    }
}

/// A state, or as text what the server said against it.
fn state(reply: &Value) -> Option<Result<MarkState>> {
    if let Value::BulkString(refusal) = reply {
        return Some(Err(Error::from_reply(&String::from_utf8_lossy(refusal))));
    }
    match integer(reply)? {
        0 => Some(Ok(MarkState::Working)),
        1 => Some(Ok(MarkState::Ours)),
        2 => Some(Ok(MarkState::Done)),
        _ => None,
    }
}
