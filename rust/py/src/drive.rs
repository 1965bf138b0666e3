//! The inner loop of a lane: take, decode, call, settle, next; in native code as long as handlers do not wait.
//!
//! A lane's Python is only needed where a handler suspends, returns an outcome or raises. The handler still runs inside
//! the lane's task and in a context of its own, so `asyncio.timeout`, `TaskGroup` and `current_task()` behave.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use ruststream_core::lanes::Lanes;
use ruststream_core::subscription::Settled;
use ruststream_core::token::Token;

use crate::binding::Binding;
use crate::consumer::Consumer;
use crate::context::Context;
use crate::queue::Queued;
use crate::{batch_drive, call, runtime};

const SUSPENDED: u8 = 0;
const RETURNED: u8 = 1;
const RAISED: u8 = 2;

/// Why a drive stopped, by the names in the module.
pub(crate) const STOPS: [(&str, u8); 3] = [("SUSPENDED", SUSPENDED), ("RETURNED", RETURNED), ("RAISED", RAISED)];

/// A lane lets others run after so many deliveries, or after so long.
const BUDGET: u32 = 64;
pub(crate) const SLICE: Duration = Duration::from_millis(5);
/// The time is looked at every so many deliveries.
const LOOK: u32 = 8;

/// Run ready deliveries until one needs Python's care: see `Consumer.drive` in the stub.
pub(crate) fn drive(slf: &Bound<'_, Consumer>, cancelling: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    runtime::check()?;
    let py = slf.py();
    let this = slf.get();
    let Some(binding) = this.binding.lock().clone() else {
        return Err(PyRuntimeError::new_err("bind the consumer before its lanes run"));
    };
    if let Some(batching) = &binding.batching {
        return batch_drive::drive(slf, &binding, batching, cancelling);
    }
    let mut acks = Acks::new(this);
    let mut finished = None;
    let started = Instant::now();
    for turn in 1..=BUDGET {
        let Some((context, failed)) = next(slf, &binding, finished.take())? else {
            return Ok(false.into_pyobject(py)?.to_owned().into_any().unbind());
        };
        match failed.map_or_else(|| call(&binding, &context), |error| raised(context.as_any(), error)) {
            Call::Done => acks.push(&context.get().token),
            Call::Stopped(stop) => return Ok(stop?.into_any().unbind()),
        }
        finished = Some(context.get().partition);
        // 25 ns, for a handler that asked for its own cancellation and did not wait for it: the lane takes it back.
        if cancelling.call0()?.is_truthy()? {
            break;
        }
        if turn % LOOK == 0 && started.elapsed() > SLICE {
            break;
        }
    }
    if let Some(partition) = finished {
        this.lanes.lock().finish(partition);
    }
    Ok(true.into_pyobject(py)?.to_owned().into_any().unbind())
}

/// Acks of one drive, handed over when it ends, however it ends: one lock and one wake for all of them.
pub(crate) struct Acks<'a> {
    consumer: &'a Consumer,
    tokens: Vec<Token>,
}

impl<'a> Acks<'a> {
    pub(crate) fn new(consumer: &'a Consumer) -> Self {
        let tokens = std::mem::take(&mut *consumer.acks.lock());
        Self { consumer, tokens }
    }

    #[inline]
    pub(crate) fn push(&mut self, token: &Token) {
        let subscription = &self.consumer.subscription;
        match subscription.begin_settle(token) {
            Settled::Taken => self.tokens.push(token.clone()),
            // There is nothing to send for the entry.
            Settled::NotOurs => subscription.source.ended_late(token, true),
            // Settled by hand, and nothing more was asked for.
            Settled::Twice => {}
        }
    }
}

impl Drop for Acks<'_> {
    fn drop(&mut self) {
        self.consumer.subscription.settler.acks(&mut self.tokens);
        *self.consumer.acks.lock() = std::mem::take(&mut self.tokens);
    }
}

/// Free the partition of the last delivery and take the next one.
#[inline]
fn next<'py>(
    slf: &Bound<'py, Consumer>,
    binding: &Binding,
    mut finished: Option<u16>,
) -> PyResult<Option<(Bound<'py, Context>, Option<PyErr>)>> {
    let this = slf.get();
    loop {
        // What has come is sorted in first: a fresh entry must not wait in the inbox for a crowd in the lanes to end.
        while this.subscription.inbox.is_waiting()
            && let Some(arrival) = this.subscription.inbox.pop()
        {
            Consumer::queue(slf, arrival, binding.key_of.as_ref());
        }
        let taken = {
            let mut lanes = this.lanes.lock();
            if let Some(partition) = finished.take() {
                lanes.finish(partition);
            }
            take_ours(this, &mut lanes)
        };
        if let Some((partition, queued)) = taken {
            let context = Context::new(queued.token, partition, slf.clone().unbind());
            let failed = match queued.key {
                Ok(None) => None,
                Ok(Some(key)) => {
                    let _ = context.key.set(slf.py(), key);
                    None
                }
                Err(error) => Some(error),
            };
            return Ok(Some((Bound::new(slf.py(), context)?, failed)));
        }
        let Some(arrival) = this.subscription.inbox.pop() else {
            return Ok(None);
        };
        Consumer::queue(slf, arrival, binding.key_of.as_ref());
    }
}

/// The next delivery that is still ours to run.
#[inline]
fn take_ours(consumer: &Consumer, lanes: &mut Lanes<Queued>) -> Option<(u16, Queued)> {
    loop {
        let (partition, queued) = lanes.take()?;
        if !queued.token.is_lost() && queued.token.begin() {
            if queued.watched {
                consumer.subscription.source.moved_on();
            }
            return Some((partition, queued));
        }
        consumer.subscription.skip(&queued.token);
        lanes.finish(partition);
    }
}

pub(crate) enum Call<'py> {
    /// It returned None.
    Done,
    /// Python must look at it.
    Stopped(PyResult<Bound<'py, PyTuple>>),
}

fn raised<'py>(context: &Bound<'py, PyAny>, error: PyErr) -> Call<'py> {
    let py = context.py();
    Call::Stopped((RAISED, context, error.into_value(py)).into_pyobject(py))
}

#[inline]
fn call<'py>(binding: &Binding, context: &Bound<'py, Context>) -> Call<'py> {
    step(binding, context.as_any(), coroutine(binding, context))
}

/// Run a coroutine up to where it waits, in variables of its own. `context` is what Python is told of it.
#[inline]
pub(crate) fn step<'py>(
    binding: &Binding,
    context: &Bound<'py, PyAny>,
    coroutine: PyResult<Bound<'py, PyAny>>,
) -> Call<'py> {
    let py = context.py();
    let coroutine = match coroutine {
        Ok(coroutine) => coroutine,
        Err(error) => return raised(context, error),
    };
    let variables = match binding.copy_context.bind(py).call0() {
        Ok(variables) => variables,
        Err(error) => return raised(context, error),
    };
    match call::method(&variables, intern!(py, "run"), binding.step.bind(py), &coroutine) {
        Err(error) => raised(context, error),
        Ok(yielded) if binding.stepper.get().yielded.load(Ordering::Relaxed) => {
            Call::Stopped((SUSPENDED, context, variables, coroutine, yielded).into_pyobject(py))
        }
        Ok(value) if value.is_none() => Call::Done,
        Ok(value) => Call::Stopped((RETURNED, context, value).into_pyobject(py)),
    }
}

/// The coroutine of one call. What cannot be decoded goes to `invoke`, which knows other forms or says what is wrong.
#[inline]
fn coroutine<'py>(binding: &Binding, context: &Bound<'py, Context>) -> PyResult<Bound<'py, PyAny>> {
    let py = context.py();
    let payload = context.get().token.payload();
    if let Some(direct) = &binding.direct
        && !payload.is_empty()
        && let Ok(message) = call::one(direct.decode.bind(py), &PyBytes::new(py, payload))
    {
        let handler = direct.handler.bind(py);
        return if direct.with_context { call::two(handler, &message, context) } else { call::one(handler, &message) };
    }
    call::one(binding.invoke.bind(py), context)
}
