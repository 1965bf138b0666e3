//! A stream server within the process, with the semantics of Redis 8.10: what tests, trials and demos run on.
//!
//! [`Keyspace`] is the data, one method per command. A [`Model`] shares it between clients, blocks those that wait, and
//! takes its time from a [`Clock`]. [`ModelStore`] is what the rest of the core sees: the second `StreamStore`.
//! Nothing survives the process, and nothing depends on the order of a hash table: the same commands at the same times
//! have the same results.

mod argument;
mod blocked;
mod body;
mod bound;
mod claim;
mod consumers;
mod delayed;
mod due;
mod entries;
mod faults;
mod group;
mod groups;
mod hash;
mod info;
mod inspect;
mod keyspace;
mod letters;
mod marks;
mod models;
mod node;
mod operations;
mod orders;
mod pending;
mod read;
mod reader;
mod refusal;
mod rows;
mod settle;
mod sorted;
mod starts;
mod store;
mod write;

pub use argument::{AddId, LAST, Position, Range};
pub use blocked::{Answer, Asked};
pub use body::Body;
pub use claim::{Autoclaimed, Claim, Delivered};
pub use entries::{Keep, TrimTo};
pub use faults::{Faults, Operation};
pub use info::{ConsumerInfo, GroupInfo, StreamInfo};
pub use keyspace::Keyspace;
pub use models::{Model, Models};
pub use pending::{PendingEntry, PendingSummary};
pub use read::{Delivery, From, GroupRead};
pub use settle::{Acked, HandBack, References};
pub use store::ModelStore;
