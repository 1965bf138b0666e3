//! `Consumer`: one subscription as the loop thread uses it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ruststream_core::backoff::Backoff;
use ruststream_core::batch::Mark;
use ruststream_core::error::Error;
use ruststream_core::event::Event;
use ruststream_core::lanes::Lanes;
use ruststream_core::stream::{Group, Marks};
use ruststream_core::subscription::Subscription;
use ruststream_core::token::Token;
use tokio_util::sync::CancellationToken;

use crate::binding::Binding;
use crate::errors;
use crate::marks::LoopMarks;
use crate::queue::Queued;
use crate::tasks::Tasks;

/// One subscription.
#[pyclass(frozen, module = "ruststream._core")]
pub(crate) struct Consumer {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) lanes: Mutex<Lanes<Queued>>,
    pub(crate) binding: Mutex<Option<Arc<Binding>>>,
    /// Kept from one drive to the next, so that gathering acks allocates nothing.
    pub(crate) acks: Mutex<Vec<Token>>,
    pub(crate) by_key: bool,
    /// Later entries of a key wait while its head is being retried.
    pub(crate) strict: bool,
    /// The reader waits for room for so many entries.
    pub(crate) reads_at: usize,
    pub(crate) dead_letter: Option<Arc<str>>,
    pub(crate) group: Arc<Group>,
    /// The next batch need not be full: a test has nothing else to do.
    pub(crate) hurry: AtomicBool,
    pub(crate) tasks: Tasks,
    /// The longest value that the server takes.
    pub(crate) max_value: Option<u64>,
    pub(crate) reconnect: Backoff,
    /// Cancelled once the reader has returned.
    pub(crate) reader_done: CancellationToken,
    pub(crate) started: Mutex<bool>,
    pub(crate) marks: Option<Arc<Marks>>,
    /// What is asked of the user's store, or of the function that computes keys.
    pub(crate) asked: Arc<LoopMarks>,
}

impl Consumer {
    /// Post an event after a wait, unless the subscription ends before.
    pub(crate) fn ring_after(&self, wait: Duration, event: Event) {
        let subscription = Arc::clone(&self.subscription);
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = subscription.closed.cancelled() => {}
                () = subscription.clock.sleep(wait) => subscription.events.post(event),
            }
        });
    }

    /// The Python object that serves what `Context` leaves to Python.
    pub(crate) fn owner<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let binding = self.binding.lock();
        match &*binding {
            Some(binding) => Ok(binding.owner.bind(py).clone()),
            None => Err(errors::to_py(py, &Error::ShutDown("the subscription of this entry"))),
        }
    }

    /// Free the partitions that a batch had in its hands.
    pub(crate) fn finish_all(&self, partitions: &[u16]) {
        let mut lanes = self.lanes.lock();
        for partition in partitions {
            lanes.finish(*partition);
        }
    }

    /// Whether no entry will come until some of those that are here are settled.
    pub(crate) fn no_more_comes(&self) -> bool {
        self.subscription.stop.is_cancelled() || !self.subscription.credits.has(self.reads_at)
    }

    /// Counters and gauges.
    pub(crate) fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, count) in self.subscription.stats.snapshot() {
            dict.set_item(name, count)?;
        }
        let marks = self.subscription.held.tokens();
        let count = |mark: Mark| marks.iter().filter(|token| token.mark() == mark).count();
        let waiting = self.marks.as_ref().map_or(0, |marks| marks.waiting());
        dict.set_item("queued", count(Mark::Queued))?;
        dict.set_item("waiting", waiting)?;
        dict.set_item("running", count(Mark::Running))?;
        dict.set_item("unsettled", self.subscription.settler.unanswered())?;
        dict.set_item("in_flight", self.subscription.credits.used())?;
        Ok(dict)
    }
}
