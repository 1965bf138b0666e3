//! What feeds a subscription and carries out its outcomes: a stream's group here, a shard reader beside it.
//!
//! Lanes, credits, settlement and drain know nothing else of a broker.

use std::sync::Arc;

use async_trait::async_trait;

use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::Result;
use crate::settle::Work;
use crate::subscription::Subscription;
use crate::token::Token;

/// Where a subscription's entries come from and where their outcomes go.
#[async_trait]
pub trait Source: Send + Sync + std::fmt::Debug + 'static {
    /// Whether a retried entry stays where it is. Without a delay it needs no command then, and comes back by itself.
    fn retries_in_place(&self) -> bool;
    /// An entry was let go of without a command: it stays pending for whoever recovers it.
    fn left(&self, token: &Token);
    /// What a reader of this name left pending and has not been settled here since.
    fn all_left(&self, _reader: &Origin) -> Vec<EntryId> {
        Vec::new()
    }
    /// A handler ended after its entry had become someone else's. `handled`: it would have been acknowledged.
    fn ended_late(&self, _token: &Token, _handled: bool) {}
    /// Check the server and make ready to read.
    async fn open(&self, subscription: &Arc<Subscription>) -> Result<()>;
    /// Feed the subscription until it is told to stop; returns once the last reply was taken in.
    async fn read(&self, subscription: &Arc<Subscription>) -> Result<()>;
    /// Carry out outcomes. What is left in `work` after an error has no known result and is tried again.
    async fn settle(&self, subscription: &Subscription, work: &mut Work) -> Result<()>;
    /// Give back entries that were never started. Returns how many were still ours.
    async fn release(&self, subscription: &Subscription, tokens: &[Token]) -> Result<usize>;
    /// Whether each attempt that fails is counted on the server, so that no outcome is carried out without a command.
    fn counts_attempts(&self) -> bool {
        false
    }
    /// Attempts of this delivery's entry, this one included.
    fn attempts(&self, token: &Token) -> u32 {
        token.delivery_count()
    }
    /// A watched delivery has started, or entries are done: what was held back may look again. Called very often.
    fn moved_on(&self) {}
    /// What is held back from the lanes, to be given back; none of it is handed over any more.
    fn withheld(&self) -> Vec<Token> {
        Vec::new()
    }
    /// Return once nothing is held back from the lanes.
    async fn let_through(&self, _: &Subscription) {}
    /// Keep what is held: leases and other timers, until the subscription is closed.
    async fn tend(&self, subscription: &Arc<Subscription>);
    /// Leave nothing of this reader behind, after a clean stop. Its timers and its reads have ended.
    async fn depart(&self, _subscription: &Subscription) {}
}
