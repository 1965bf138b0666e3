//! What the Python side of a subscription is made of, as the lanes call it.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use ruststream_core::gather::Gather;

use crate::call;
use crate::client::seconds;

/// Of a handler of a common shape: `decode`, the handler, whether it takes the context.
pub(crate) type DirectParts = (Py<PyAny>, Py<PyAny>, bool);
/// Of a handler that takes batches: entries in a full one, seconds to wait for these, `extract` and `decode`.
pub(crate) type BatchParts = (usize, f64, Py<PyAny>, Option<Py<PyAny>>);

/// The common shapes of a handler, called without Python in between: `handler(decode(payload)[, context])`.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) decode: Py<PyAny>,
    pub(crate) handler: Py<PyAny>,
    pub(crate) with_context: bool,
}

/// How a subscription makes batches.
#[derive(Debug)]
pub(crate) struct Batching {
    pub(crate) gather: Mutex<Gather>,
    /// Decodes a payload that is not empty; none where each entry's headers decide.
    pub(crate) decode: Option<Py<PyAny>>,
    /// Decodes a delivery whatever its form, or says what is wrong with it.
    pub(crate) extract: Py<PyAny>,
}

/// What the Python side of a subscription is made of.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) owner: Py<PyAny>,
    pub(crate) invoke: Py<PyAny>,
    pub(crate) key_of: Option<Py<PyAny>>,
    pub(crate) direct: Option<Direct>,
    /// Of a handler that takes batches: `invoke(messages, batch)` makes its coroutine.
    pub(crate) batching: Option<Batching>,
    pub(crate) copy_context: Py<PyAny>,
    pub(crate) step: Py<PyAny>,
    pub(crate) stepper: Py<Stepper>,
}

impl Binding {
    pub(crate) fn new(
        py: Python<'_>,
        owner: Py<PyAny>,
        invoke: Py<PyAny>,
        key_of: Option<Py<PyAny>>,
        direct: Option<DirectParts>,
        batch: Option<BatchParts>,
    ) -> PyResult<Self> {
        let stepper = Py::new(py, Stepper::default())?;
        Ok(Self {
            owner,
            invoke,
            key_of,
            direct: direct.map(|(decode, handler, with_context)| Direct { decode, handler, with_context }),
            batching: batch.map(|(most, wait, extract, decode)| Batching {
                gather: Mutex::new(Gather::new(most, seconds(wait))),
                decode,
                extract,
            }),
            copy_context: py.import("contextvars")?.getattr("copy_context")?.unbind(),
            step: stepper.bind(py).getattr("step")?.unbind(),
            stepper,
        })
    }

    /// Show the garbage collector what users gave us.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.owner)?;
        visit.call(&self.invoke)?;
        if let Some(direct) = &self.direct {
            visit.call(&direct.handler)?;
        }
        if let Some(batching) = &self.batching {
            visit.call(&batching.extract)?;
        }
        if let Some(key_of) = &self.key_of {
            visit.call(key_of)?;
        }
        Ok(())
    }
}

/// Steps a coroutine once without the `StopIteration` that `send` would raise for its result.
#[pyclass(frozen, module = "ruststream._core")]
#[derive(Debug, Default)]
pub(crate) struct Stepper {
    pub(crate) yielded: AtomicBool,
}

#[pymethods]
impl Stepper {
    /// The coroutine's result, or what it waits for; `yielded` tells which.
    fn step<'py>(&self, coroutine: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.yielded.store(false, Ordering::Relaxed);
        let (yielded, value) = call::send(coroutine)?;
        self.yielded.store(yielded, Ordering::Relaxed);
        Ok(value)
    }
}
