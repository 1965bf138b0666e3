//! One loop's side of the core: its doorbell, and events as Python sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use ruststream_core::entry;
use ruststream_core::error::Result;
use ruststream_core::event::{Event, State};
use ruststream_core::pump::Pump;

use crate::doorbell::Doorbell;
use crate::entry_id::EntryId;
use crate::tasks::Tasks;
use crate::trial::Trial;
use crate::{errors, runtime};

/// Steps of the core's tasks between two turns of the loop, where it runs them itself.
const STEPS: usize = 10_000;

const READY: u8 = 0;
const DONE: u8 = 1;
const LOST: u8 = 2;
const ACKED: u8 = 3;
const STATE: u8 = 4;
const LOG: u8 = 5;
const ALARM: u8 = 6;
const REFUSED: u8 = 7;
const ASKED: u8 = 8;

/// The kinds of events, by their names in the module.
pub(crate) const EVENTS: [(&str, u8); 9] = [
    ("READY", READY),
    ("DONE", DONE),
    ("LOST", LOST),
    ("ACKED", ACKED),
    ("STATE", STATE),
    ("LOG", LOG),
    ("ALARM", ALARM),
    ("REFUSED", REFUSED),
    ("ASKED", ASKED),
];

/// One loop's side of the core.
#[pyclass(frozen, module = "ruststream._core")]
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) tasks: Tasks,
    /// Where a test runs on models with a stopped clock.
    pub(crate) trial: Option<Trial>,
    next_consumer: AtomicUsize,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, threads=1, stopped_at_ms=None))]
    fn new(py: Python<'_>, threads: usize, stopped_at_ms: Option<u64>) -> PyResult<Self> {
        runtime::check()?;
        let bell =
            Doorbell::new().map_err(|error| errors::config(py, &format!("no descriptor for the bell: {error}")))?;
        let bell = Arc::new(bell);
        let (tasks, trial) = match stopped_at_ms {
            None => (Tasks::shared(py, threads)?, None),
            Some(now_ms) => {
                let ringing = Arc::clone(&bell);
                let pump = Pump::new(move || ringing.ring());
                (Tasks::Pumped(Arc::clone(&pump)), Some(Trial::new(now_ms, pump)))
            }
        };
        Ok(Self { bell, tasks, trial, next_consumer: AtomicUsize::new(0) })
    }

    /// The descriptor to watch for reading.
    fn fileno(&self) -> i32 {
        self.bell.fileno()
    }

    /// Silence the bell and return the events since the last call.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        runtime::check()?;
        if let Some(trial) = &self.trial {
            trial.pump.run(STEPS);
        }
        let events = self.bell.drain().into_iter().map(|event| to_py(py, event));
        PyList::new(py, events.collect::<PyResult<Vec<_>>>()?)
    }

    /// Whether the core has something to do, or to tell. Only of an engine with a stopped clock.
    fn busy(&self) -> bool {
        self.bell.is_waiting() || self.trial.as_ref().is_some_and(|trial| trial.pump.is_busy())
    }

    /// Move a stopped clock on to where something falls due, and further for as long as that leads to nothing that the
    /// loop would hear of: so many nanoseconds and so many times at most. Returns how far it was moved, and how often
    /// something fell due.
    fn step(&self, limit_ns: u64, most: usize) -> (u64, usize) {
        let Some(trial) = &self.trial else {
            return (limit_ns, 0);
        };
        let (moved, times) = trial.step(Duration::from_nanos(limit_ns), most, STEPS, || self.bell.is_waiting());
        (u64::try_from(moved.as_nanos()).unwrap_or(u64::MAX), times)
    }

    /// The time of day by a stopped clock, in milliseconds since the epoch.
    fn now_ms(&self) -> Option<u64> {
        self.trial.as_ref().map(|trial| trial.clock.server_ms())
    }

    /// Let the next read, ack or publish fail: its connection is lost, or the server refuses it.
    fn fail_next(&self, operation: &str, lost: bool, text: String) -> PyResult<()> {
        self.trial.as_ref().map_or(Ok(()), |trial| trial.fail_next(operation, lost, text))
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
        Event::Asked { consumer, ticket } => (ASKED, consumer, ticket).into_pyobject(py),
        Event::Log { level, message } => (LOG, level as u8, message, PyDict::new(py)).into_pyobject(py),
    }
}

fn published(py: Python<'_>, result: Result<entry::EntryId>) -> PyResult<Py<PyAny>> {
    match result {
        Ok(id) => Ok(Py::new(py, EntryId(id))?.into_any()),
        Err(error) => Ok(errors::to_py(py, &error).into_value(py).into_any()),
    }
}
