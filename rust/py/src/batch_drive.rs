//! The inner loop of a lane whose handler takes batches: gather, decode, call, settle, next.

use std::sync::atomic::Ordering;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use ruststream_core::entry::KEYLESS;
use ruststream_core::event::Event;
use ruststream_core::gather::Look;
use ruststream_core::token::Token;

use crate::batch_context::{BatchContext, Element};
use crate::binding::{Batching, Binding};
use crate::call;
use crate::consumer::Consumer;
use crate::context::Context;
use crate::drive::{self, Acks, Call, SLICE};
use crate::queue::Queued;

/// What is ready for a worker that asks.
enum Taken {
    Nothing,
    Entries(Vec<Queued>, Vec<u16>),
}

/// Run ready batches until one needs Python's care: as `drive::drive`, with a `BatchContext` for the `Context`.
pub(crate) fn drive(
    slf: &Bound<'_, Consumer>,
    binding: &Binding,
    batching: &Batching,
    cancelling: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    let (py, this) = (slf.py(), slf.get());
    let said = |more: bool| Ok(more.into_pyobject(py)?.to_owned().into_any().unbind());
    let started = Instant::now();
    loop {
        let (entries, partitions) = match take(slf, binding, batching) {
            Taken::Nothing => return said(false),
            Taken::Entries(entries, partitions) => (entries, partitions),
        };
        let messages = PyList::empty(py);
        let elements = match decode(slf, binding, batching, entries, &messages) {
            Ok(elements) => elements,
            Err(error) => {
                this.finish_all(&partitions);
                return Err(error);
            }
        };
        if elements.is_empty() {
            this.finish_all(&partitions);
        } else {
            let batch = Bound::new(py, BatchContext::new(elements, partitions, slf.clone().unbind()))?;
            let coroutine = call::two(binding.invoke.bind(py), &messages, &batch);
            // The handler alone holds the list now, and may empty it.
            drop(messages);
            match drive::step(binding, batch.as_any(), coroutine) {
                Call::Done => ack(this, batch.get()),
                Call::Stopped(stop) => return Ok(stop?.into_any().unbind()),
            }
            this.finish_all(&batch.get().partitions);
        }
        if cancelling.call0()?.is_truthy()? || started.elapsed() > SLICE {
            return said(true);
        }
    }
}

/// Acknowledge what was not settled yet: one lock and one wake for all.
pub(crate) fn ack(consumer: &Consumer, batch: &BatchContext) {
    let mut acks = Acks::new(consumer);
    for token in batch.tokens() {
        acks.push(token);
    }
}

/// Sort in what has come, and take a batch if there is one.
fn take(slf: &Bound<'_, Consumer>, binding: &Binding, batching: &Batching) -> Taken {
    let this = slf.get();
    while let Some(arrival) = this.subscription.inbox.pop() {
        Consumer::queue(slf, arrival, binding.key_of.as_ref());
    }
    let look = {
        let mut lanes = this.lanes.lock();
        let mut gather = batching.gather.lock();
        let most = gather.most();
        let last = this.no_more_comes() || this.hurry.swap(false, Ordering::AcqRel);
        let look = gather.look(lanes.ready_up_to(most), last, this.subscription.clock.now_ms());
        if look == Look::Take {
            let (mut entries, mut partitions) = (Vec::with_capacity(most.min(lanes.len())), Vec::new());
            lanes.take_many(most, &mut entries, &mut partitions);
            return Taken::Entries(entries, partitions);
        }
        look
    };
    if let Look::Wait(Some(wait)) = look {
        let consumer = this.subscription.id;
        this.ring_after(wait, Event::Ready { consumer });
    }
    Taken::Nothing
}

/// Decode what is still ours into `messages`. What does not decode is settled alone, by what its failure says.
fn decode(
    slf: &Bound<'_, Consumer>,
    binding: &Binding,
    batching: &Batching,
    entries: Vec<Queued>,
    messages: &Bound<'_, PyList>,
) -> PyResult<Vec<Element>> {
    let (py, this) = (slf.py(), slf.get());
    let decode = batching.decode.as_ref().map(|decode| decode.bind(py));
    let mut elements = Vec::with_capacity(entries.len());
    for Queued { token, watched, key } in entries {
        if token.is_lost() || !token.begin() {
            this.subscription.skip(&token);
            continue;
        }
        if watched {
            this.subscription.source.moved_on();
        }
        if let (Some(decode), Ok(_)) = (decode, &key)
            && !token.payload().is_empty()
            && let Ok(message) = call::one(decode, &PyBytes::new(py, token.payload()))
        {
            messages.append(message)?;
            elements.push(Element { token, key: key.ok().flatten() });
            continue;
        }
        let context = context(slf, &token)?;
        let message = key.and_then(|key| {
            if let Some(key) = &key {
                let _ = context.get().key.set(py, key.clone_ref(py));
            }
            Ok((key, batching.extract.bind(py).call1((&context,))?))
        });
        match message {
            Ok((key, message)) => {
                messages.append(message)?;
                elements.push(Element { token, key });
            }
            Err(error) => {
                binding.owner.bind(py).call_method1("raised", (context, error.into_value(py)))?;
            }
        }
    }
    Ok(elements)
}

fn context<'py>(slf: &Bound<'py, Consumer>, token: &Token) -> PyResult<Bound<'py, Context>> {
    Bound::new(slf.py(), Context::new(token.clone(), KEYLESS, slf.clone().unbind()))
}
