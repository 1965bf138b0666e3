//! From the inbox into the lanes: each delivery in the partition of its key, which Python may compute.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ruststream_core::entry::KEYLESS;
use ruststream_core::inbox::Arrival;
use ruststream_core::lanes::Lanes;
use ruststream_core::token::Token;

use crate::consumer::Consumer;
use crate::context::Context;

/// One queued delivery, and the key that was computed for it, or why it could not be.
pub(crate) struct Queued {
    pub(crate) token: Token,
    /// The source wants to know when it starts.
    pub(crate) watched: bool,
    pub(crate) key: PyResult<Option<Py<PyBytes>>>,
}

impl Consumer {
    /// Put what has come into the lanes' queues.
    pub(crate) fn queue(this: &Bound<'_, Self>, arrival: Arrival, key_of: Option<&Py<PyAny>>) {
        match arrival {
            Arrival::Batch(batch) => Self::queue_all(this, batch.tokens(), false, key_of),
            Arrival::Tokens { tokens, watched } => Self::queue_all(this, tokens.into_iter(), watched, key_of),
        }
    }

    fn queue_all(
        this: &Bound<'_, Self>,
        tokens: impl Iterator<Item = Token>,
        watched: bool,
        key_of: Option<&Py<PyAny>>,
    ) {
        let consumer = this.get();
        let unkeyed = consumer.marks.is_some() && consumer.asked.has_failed_keys();
        // The key of its mark, without which it must not run.
        let failure = |token: &Token| unkeyed.then(|| consumer.asked.failed_key(token)).flatten();
        let Some(key_of) = key_of else {
            let mut lanes = consumer.lanes.lock();
            for token in tokens {
                let partition = if consumer.by_key { token.slot().partition } else { KEYLESS };
                let key = failure(&token).map_or(Ok(None), Err);
                push(&mut lanes, partition, Queued { token, watched, key });
            }
            return;
        };
        for token in tokens {
            let key = failure(&token).map_or_else(|| computed_key(this, &token, key_of), Err);
            let partition = match &key {
                Ok(Some(key)) => ruststream_core::partition::partition(key.as_bytes(this.py())),
                Ok(None) | Err(_) => KEYLESS,
            };
            push(&mut this.get().lanes.lock(), partition, Queued { token, watched, key });
        }
    }
}

/// Queue a delivery behind the others of its partition, or before them if the partition is kept for it.
#[inline]
fn push(lanes: &mut Lanes<Queued>, partition: u16, queued: Queued) {
    let again = queued.token.comes_again();
    match lanes.kept_for(queued.token.id()) {
        Some(kept) => lanes.put_back(kept, queued),
        None => lanes.push(partition, again, queued),
    }
}

/// The key that `by_key` computes. What that raises is the delivery's failure, dealt with when its turn comes.
fn computed_key(this: &Bound<'_, Consumer>, token: &Token, key_of: &Py<PyAny>) -> PyResult<Option<Py<PyBytes>>> {
    let context = Bound::new(this.py(), Context::new(token.clone(), KEYLESS, this.clone().unbind()))?;
    let key = key_of.bind(this.py()).call1((context,))?;
    if key.is_none() { Ok(None) } else { Ok(Some(key.cast_into::<PyBytes>()?.unbind())) }
}
