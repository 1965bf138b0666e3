//! The reading side of a model: what a socket of its own is to a server.

use std::sync::Arc;

use async_trait::async_trait;

use super::blocked::{Answer, Asked};
use super::read::GroupRead;
use super::{Delivery, Model, refusal};
use crate::batch::{Origin, RawBatch};
use crate::entry::Slot;
use crate::error::{Error, Result};
use crate::store::{Abilities, EntryReader, Want};

/// Where a reply ends, whatever the count: as much as is asked of a server.
const MAX_SIZE: usize = 64 * 1024 * 1024;

/// One subscription's reads.
#[derive(Debug)]
pub(super) struct ModelReader {
    model: Arc<Model>,
    client: i64,
    origin: Arc<Origin>,
    hash_keys: bool,
    claims: bool,
    max_size: Option<usize>,
    /// A read that was sent ahead.
    ahead: Option<Asked>,
}

/// Entries of a reply as one batch.
pub(super) fn batch(deliveries: &[Delivery], hash_keys: bool) -> Result<RawBatch> {
    let mut bytes =
        Vec::with_capacity(deliveries.iter().filter_map(|one| one.body.as_ref()).map(|body| body.size()).sum());
    let mut slots = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        let slot = match &delivery.body {
            Some(body) => body.copy_to(&mut bytes, hash_keys),
            None => Some(Slot { deleted: true, ..Slot::new(delivery.id) }),
        };
        let mut slot = slot.ok_or_else(|| Error::Protocol("a reply past 4 GiB".into()))?;
        slot.set_history(i64::try_from(delivery.idle).unwrap_or(i64::MAX), delivery.earlier);
        slots.push(slot);
    }
    Ok(RawBatch { bytes: bytes.into(), slots })
}

impl ModelReader {
    pub(super) fn new(model: &Arc<Model>, origin: &Arc<Origin>, hash_keys: bool, abilities: &Abilities) -> Self {
        Self {
            model: Arc::clone(model),
            client: model.new_client(),
            origin: Arc::clone(origin),
            hash_keys,
            claims: abilities.claim,
            max_size: abilities.max_size.then_some(MAX_SIZE),
            ahead: None,
        }
    }

    fn ask(&self, want: Want) -> Asked {
        if want.claim.is_some() && !self.claims {
            return Asked::refused(&self.model, self.client, refusal::syntax());
        }
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let read = GroupRead {
            count: want.count,
            claim: want.claim.map(ms),
            max_size: self.max_size,
            ..GroupRead::new(&self.origin.stream, &self.origin.group, &self.origin.consumer)
        };
        self.model.ask(self.client, &read, want.block.map(|block| ms(block).max(1)))
    }
}

#[async_trait]
impl EntryReader for ModelReader {
    async fn read(&mut self, want: Want, ahead: Option<Want>) -> Result<RawBatch> {
        // A server gives others a turn while it answers; so must this.
        tokio::task::yield_now().await;
        let asked = match self.ahead.take() {
            Some(asked) => asked,
            None => self.ask(want),
        };
        let answer: Answer = asked.answer().await;
        if let Some(want) = ahead {
            self.ahead = Some(self.ask(want));
        }
        batch(&answer?, self.hash_keys)
    }

    fn id(&self) -> i64 {
        self.client
    }
}
