//! The reading side of a model: what a socket of its own is to a server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::blocked::{Answer, Asked};
use super::faults::{Faults, Operation};
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
    faults: Arc<Faults>,
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
    pub(super) fn new(
        model: &Arc<Model>,
        origin: &Arc<Origin>,
        hash_keys: bool,
        abilities: &Abilities,
        faults: &Arc<Faults>,
    ) -> Self {
        Self {
            model: Arc::clone(model),
            client: model.new_client(),
            origin: Arc::clone(origin),
            hash_keys,
            claims: abilities.claim,
            max_size: abilities.max_size.then_some(MAX_SIZE),
            faults: Arc::clone(faults),
            ahead: None,
        }
    }

    fn ask(&self, want: Want) -> Asked {
        if want.claim.is_some() && !self.claims {
            return Asked::refused(&self.model, self.client, refusal::syntax());
        }
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let read = GroupRead {
            count: want.count,
            claim: want.claim.map(ms),
            max_size: self.max_size,
            ..GroupRead::new(&self.origin.stream, &self.origin.group, &self.origin.consumer)
        };
        // By a stopped clock a wait has no end of its own: see `answer`.
        let stopped = self.model.clock().is_stopped();
        let block = want.block.map(|block| if stopped { 0 } else { ms(block).max(1) });
        self.model.ask(self.client, &read, block)
    }
}

/// The answer to a read. By a stopped clock a wait ends when it is moved, and the reader asks again: that costs nothing
/// where time stands still, and the clock need not stop where a wait in vain would have ended.
async fn answer(model: &Model, client: i64, mut asked: Asked, block: Option<Duration>) -> Answer {
    let Some(block) = block.filter(|_| model.clock().is_stopped()) else {
        return asked.answer().await;
    };
    tokio::select! {
        biased;
        answer = asked.served() => answer,
        () = model.clock().doze(block) => {
            model.unblock(client);
            asked.served().await
        }
    }
}

#[async_trait]
impl EntryReader for ModelReader {
    async fn read(&mut self, want: Want, ahead: Option<Want>) -> Result<RawBatch> {
        // A server gives others a turn while it answers; so must this.
        tokio::task::yield_now().await;
        self.faults.check(Operation::Read)?;
        let asked = match self.ahead.take() {
            Some(asked) => asked,
            None => self.ask(want),
        };
        let answer = answer(&self.model, self.client, asked, want.block).await;
        if let Some(want) = ahead {
            self.ahead = Some(self.ask(want));
        }
        batch(&answer?, self.hash_keys)
    }

    fn id(&self) -> i64 {
        self.client
    }
}
