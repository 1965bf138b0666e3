//! Looking at a server from outside the flow of entries: for tests.

use async_trait::async_trait;

use crate::entry::EntryId;
use crate::error::Result;

/// An entry: its id, and its fields in order.
pub type Seen = (EntryId, Vec<(Vec<u8>, Vec<u8>)>);

/// An entry on a pending list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPending {
    /// Its id.
    pub id: EntryId,
    /// Who has it; empty once it was handed back.
    pub consumer: String,
    /// Milliseconds since its last delivery; -1 once it was handed back.
    pub idle_ms: i64,
    /// Deliveries.
    pub count: i64,
}

/// What a test may ask of a server, and do to it.
#[async_trait]
pub trait Inspect: Send + Sync + std::fmt::Debug + 'static {
    /// All entries of a stream, the oldest first; none where there is no such key.
    async fn entries(&self, stream: &str) -> Result<Vec<Seen>>;
    /// A group's pending list by id; empty where there is no such group.
    async fn pending(&self, stream: &str, group: &str) -> Result<Vec<SeenPending>>;
    /// Take an entry over as this consumer, whoever has it: a delivery like any other. False: it is not pending.
    async fn steal(&self, stream: &str, group: &str, consumer: &str, id: EntryId) -> Result<bool>;
    /// How many delayed entries are due.
    async fn due(&self, delay_key: &str) -> Result<usize>;
    /// Delete keys.
    async fn delete(&self, keys: Vec<String>) -> Result<()>;
}
