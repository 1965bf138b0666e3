//! One loop's side of the core: its doorbell, and events as Python sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use ruststream_core::entry;
use ruststream_core::error::Result;
use ruststream_core::event::{Event, State};

use crate::doorbell::Doorbell;
use crate::entry_id::EntryId;
use crate::{errors, runtime};

const READY: u8 = 0;
const DONE: u8 = 1;
const LOST: u8 = 2;
const ACKED: u8 = 3;
const STATE: u8 = 4;
const LOG: u8 = 5;
const ALARM: u8 = 6;
const REFUSED: u8 = 7;

/// The kinds of events, by their names in the module.
pub(crate) const EVENTS: [(&str, u8); 8] = [
    ("READY", READY),
    ("DONE", DONE),
    ("LOST", LOST),
    ("ACKED", ACKED),
    ("STATE", STATE),
    ("LOG", LOG),
    ("ALARM", ALARM),
    ("REFUSED", REFUSED),
];

/// One loop's side of the core.
#[pyclass(frozen, module = "ruststream._core")]
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) bell: Arc<Doorbell>,
    next_consumer: AtomicUsize,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, threads=1))]
    fn new(py: Python<'_>, threads: usize) -> PyResult<Self> {
        runtime::start(py, threads)?;
        let bell =
            Doorbell::new().map_err(|error| errors::config(py, &format!("no descriptor for the bell: {error}")))?;
        Ok(Self { bell: Arc::new(bell), next_consumer: AtomicUsize::new(0) })
    }

    /// The descriptor to watch for reading.
    fn fileno(&self) -> i32 {
        self.bell.fileno()
    }

    /// Silence the bell and return the events since the last call.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        runtime::check()?;
        let events = self.bell.drain().into_iter().map(|event| to_py(py, event));
        PyList::new(py, events.collect::<PyResult<Vec<_>>>()?)
    }
}

impl Engine {
    /// The number of the next subscription's events.
    pub(crate) fn number(&self) -> usize {
        self.next_consumer.fetch_add(1, Ordering::Relaxed)
    }
}

fn ids<'py>(py: Python<'py>, ids: &[entry::EntryId]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, ids.iter().map(|id| EntryId(*id)))
}

fn to_py(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyTuple>> {
    match event {
        Event::Ready { consumer } => (READY, consumer).into_pyobject(py),
        Event::Published { ticket, results, many } => {
            let mut results = results.into_iter().map(|result| published(py, result));
            let answer = if many {
                PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)?.into_any().unbind()
            } else {
                results.next().transpose()?.unwrap_or_else(|| py.None())
            };
            (DONE, ticket, answer).into_pyobject(py)
        }
        Event::Lost { consumer, ids: lost } => (LOST, consumer, ids(py, &lost)?).into_pyobject(py),
        Event::Acked { consumer, ids: acked } => (ACKED, consumer, ids(py, &acked)?).into_pyobject(py),
        Event::Refused { consumer, ids: refused } => (REFUSED, consumer, ids(py, &refused)?).into_pyobject(py),
        Event::State { consumer, state } => {
            let (name, text) = match state {
                State::Reading => ("reading", None),
                State::Retrying(error) => ("retrying", Some(errors::to_py(py, &error).into_value(py))),
                State::Stopped => ("stopped", None),
                State::Failed(error) => ("failed", Some(errors::to_py(py, &error).into_value(py))),
            };
            (STATE, consumer, name, text).into_pyobject(py)
        }
        Event::Alarm { consumer } => (ALARM, consumer).into_pyobject(py),
        Event::Log { level, message } => (LOG, level as u8, message, PyDict::new(py)).into_pyobject(py),
    }
}

fn published(py: Python<'_>, result: Result<entry::EntryId>) -> PyResult<Py<PyAny>> {
    match result {
        Ok(id) => Ok(Py::new(py, EntryId(id))?.into_any()),
        Err(error) => Ok(errors::to_py(py, &error).into_value(py).into_any()),
    }
}
