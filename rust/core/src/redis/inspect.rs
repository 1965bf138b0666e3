//! Looking at a server: plain commands.

use ::redis::cmd;
use async_trait::async_trait;

use super::store::{RedisStore, with_id};
use super::value::{bytes, id, integer, items, text};
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::inspect::{Inspect, Seen, SeenPending};

/// Entries that one look shows at most.
const MOST: usize = 100_000;

#[async_trait]
impl Inspect for RedisStore {
    async fn entries(&self, stream: &str) -> Result<Vec<Seen>> {
        let reply = self.work.query(cmd("XRANGE").arg(stream).arg("-").arg("+").arg("COUNT").arg(MOST)).await?;
        let seen = items(&reply).iter().filter_map(|entry| {
            let [entry_id, fields] = items(entry) else { return None };
            let pairs = items(fields).chunks_exact(2);
            Some((id(entry_id)?, pairs.map(|pair| (bytes(&pair[0]).to_vec(), bytes(&pair[1]).to_vec())).collect()))
        });
        Ok(seen.collect())
    }

    async fn pending(&self, stream: &str, group: &str) -> Result<Vec<SeenPending>> {
        let reply = self.work.query(cmd("XPENDING").arg(stream).arg(group).arg("-").arg("+").arg(MOST)).await;
        let reply = match reply {
            Err(Error::NoGroup(_)) => return Ok(Vec::new()),
            reply => reply?,
        };
        let seen = items(&reply).iter().filter_map(|row| {
            let [entry_id, consumer, idle, count] = items(row) else { return None };
            let (idle_ms, count) = (integer(idle)?, integer(count)?);
            Some(SeenPending { id: id(entry_id)?, consumer: text(consumer), idle_ms, count })
        });
        Ok(seen.collect())
    }

    async fn steal(&self, stream: &str, group: &str, consumer: &str, id: EntryId) -> Result<bool> {
        let mut command = cmd("XCLAIM");
        command.arg(stream).arg(group).arg(consumer).arg(0);
        with_id(&mut command, id);
        Ok(!items(&self.work.query(&command).await?).is_empty())
    }

    async fn due(&self, delay_key: &str) -> Result<usize> {
        let now = crate::store::StreamStore::time_ms(self).await?;
        let reply = self.work.query(cmd("ZCOUNT").arg(delay_key).arg(0).arg(now)).await?;
        Ok(integer(&reply).and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
    }

    async fn delete(&self, keys: Vec<String>) -> Result<()> {
        for key in keys {
            self.work.query(cmd("DEL").arg(key)).await?;
        }
        Ok(())
    }
}
