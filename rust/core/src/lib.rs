//! The engine of `ruststream`: consumes stream groups, settles what handlers said, keeps leases, publishes.
//!
//! The modules in the order an entry passes them:
//! `redis` or another [`store::StreamStore`] reads bytes, `reply` walks them into slots, `batch` holds them,
//! `stream` decides what is taken in, `inbox` and `lanes` hand it to the loop thread, `settle` carries the
//! outcomes back. [`subscription::Subscription`] ties them together and knows no broker; a [`source::Source`] does.
#![forbid(unsafe_code)]

pub mod append;
pub mod backoff;
pub mod batch;
pub mod clock;
pub mod credit;
pub mod entry;
pub mod error;
pub mod event;
pub mod gather;
pub mod header;
pub mod held;
pub mod inbox;
pub mod inspect;
pub mod kept;
pub mod lanes;
pub mod letter;
pub mod mark;
pub mod model;
pub mod order;
pub mod partition;
pub mod publish;
pub mod pump;
pub mod redis;
mod refused;
pub mod reply;
mod resp;
pub mod settle;
pub mod source;
pub mod stats;
pub mod store;
pub mod stream;
pub mod subscription;
pub mod token;
