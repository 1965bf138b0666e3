//! Looking at a model.

use async_trait::async_trait;

use super::argument::Range;
use super::claim::Claim;
use super::store::ModelStore;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::inspect::{Inspect, Seen, SeenPending};

#[async_trait]
impl Inspect for ModelStore {
    async fn entries(&self, stream: &str) -> Result<Vec<Seen>> {
        self.model().run(|keyspace| {
            let Some(stream) = keyspace.stream(stream)? else {
                return Ok(Vec::new());
            };
            let seen = stream
                .entries
                .range(Range::ALL)
                .map(|body| (body.id(), body.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()));
            Ok(seen.collect())
        })
    }

    async fn pending(&self, stream: &str, group: &str) -> Result<Vec<SeenPending>> {
        let found =
            self.model().run(|keyspace| keyspace.xpending_range(stream, group, 0, Range::ALL, usize::MAX, None));
        let found = match found {
            Err(Error::NoGroup(_)) => return Ok(Vec::new()),
            found => found?,
        };
        let seen = found.into_iter().map(|one| SeenPending {
            id: one.id,
            consumer: one.consumer,
            idle_ms: one.idle,
            count: one.count,
        });
        Ok(seen.collect())
    }

    async fn steal(&self, stream: &str, group: &str, consumer: &str, id: EntryId) -> Result<bool> {
        let claim = Claim::default();
        self.model().run(|keyspace| Ok(!keyspace.xclaim(stream, group, consumer, &claim, &[id])?.is_empty()))
    }

    async fn due(&self, delay_key: &str) -> Result<usize> {
        self.model().run(|keyspace| {
            #[expect(clippy::cast_precision_loss, reason = "scores are floating point numbers on the server too")]
            let behind_now = keyspace.now() as f64 + 1.0;
            Ok(keyspace.zrange_within(delay_key, 0.0..behind_now, 0, usize::MAX)?.len())
        })
    }

    async fn delete(&self, keys: Vec<String>) -> Result<()> {
        self.model().run(|keyspace| keyspace.del(&keys.iter().map(String::as_str).collect::<Vec<_>>()));
        Ok(())
    }
}
