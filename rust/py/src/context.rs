//! `Context`: one delivery as its handler sees it. Cheap to make; everything but the payload waits until it is asked for.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use ruststream_core::batch::Mark;
use ruststream_core::token::Token;

use crate::consumer::Consumer;
use crate::entry_id::EntryId;

/// One delivery.
#[pyclass(frozen, module = "ruststream._core")]
pub(crate) struct Context {
    pub(crate) token: Token,
    /// The partition that is in this delivery's hands while its handler runs.
    pub(crate) partition: u16,
    pub(crate) consumer: Py<Consumer>,
    /// The key that `by_key` computed; the header's is in the token.
    pub(crate) key: PyOnceLock<Py<PyBytes>>,
    headers: PyOnceLock<Py<PyAny>>,
    lease_lost: PyOnceLock<Py<PyAny>>,
}

impl Context {
    #[inline]
    pub(crate) fn new(token: Token, partition: u16, consumer: Py<Consumer>) -> Self {
        Self {
            token,
            partition,
            consumer,
            key: PyOnceLock::new(),
            headers: PyOnceLock::new(),
            lease_lost: PyOnceLock::new(),
        }
    }

    fn owner<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.consumer.get().owner(py)
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds fit a double until the year 287396")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

#[pymethods]
impl Context {
    /// The entry's id.
    #[getter]
    fn entry_id(&self) -> EntryId {
        EntryId(self.token.id())
    }

    /// The stream the entry was read from.
    #[getter]
    fn stream(&self) -> &str {
        &self.token.batch().origin.stream
    }

    /// The consumer group.
    #[getter]
    fn group(&self) -> &str {
        &self.token.batch().origin.group
    }

    /// The consumer name this process reads under.
    #[getter]
    fn consumer(&self) -> &str {
        &self.token.batch().origin.consumer
    }

    /// The subscription's name.
    #[getter]
    fn subscription(&self) -> &str {
        &self.token.batch().origin.subscription
    }

    /// The entry's body, undecoded; empty for an entry without one.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.token.payload())
    }

    /// The partition key.
    #[getter]
    fn partition_key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match self.key.get(py) {
            Some(key) => Some(key.bind(py).clone()),
            None => self.token.key().map(|key| PyBytes::new(py, key)),
        }
    }

    /// How often the entry was delivered, this delivery included.
    #[getter]
    fn delivery_count(&self) -> u32 {
        self.token.delivery_count()
    }

    /// Seconds the entry lay pending before this delivery.
    #[getter]
    fn idle(&self) -> f64 {
        seconds(self.token.slot().idle_ms)
    }

    /// When the entry was added: seconds since the epoch, from its id.
    #[getter]
    fn timestamp(&self) -> f64 {
        seconds(self.token.id().ms)
    }

    /// Seconds since the entry was added, by the server's clock.
    #[getter]
    fn lag(&self) -> f64 {
        let now = self.consumer.get().subscription.clock.server_ms();
        seconds(now.saturating_sub(self.token.id().ms))
    }

    /// The headers.
    #[getter]
    fn headers(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        let made = || this.owner(py)?.call_method1("make_headers", (slf,)).map(Bound::unbind);
        Ok(this.headers.get_or_try_init(py, made)?.clone_ref(py))
    }

    /// All fields of the entry, in order, repeated ones kept.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pairs = self.token.fields().map(|(name, value)| (PyBytes::new(py, name), PyBytes::new(py, value)));
        PyList::new(py, pairs.collect::<Vec<_>>())
    }

    /// An event, set once someone else owns the entry.
    #[getter]
    fn lease_lost(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        let made = || this.owner(py)?.call_method1("make_lease_lost", (slf,)).map(Bound::unbind);
        Ok(this.lease_lost.get_or_try_init(py, made)?.clone_ref(py))
    }

    /// Whether someone else owns the entry by now.
    #[getter]
    fn lost(&self) -> bool {
        self.token.is_lost()
    }

    /// What the app's startup made.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.owner(py)?.getattr("app_state")
    }

    /// Whether an outcome was given.
    #[getter]
    fn settled(&self) -> bool {
        matches!(self.token.mark(), Mark::Settled | Mark::Done)
    }

    /// Settle now.
    fn settle(slf: &Bound<'_, Self>, outcome: &Bound<'_, PyAny>) -> PyResult<()> {
        slf.get().owner(slf.py())?.call_method1("settle", (slf, outcome)).map(drop)
    }

    /// Call `callback` once the server has answered this entry's ack.
    fn after_ack(slf: &Bound<'_, Self>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        slf.get().owner(slf.py())?.call_method1("after_ack", (slf, callback)).map(drop)
    }

    /// Publish through the broker this entry came from.
    #[pyo3(signature = (message, stream=None, **options))]
    fn publish<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
        stream: Option<&str>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let args = (slf, message, stream).into_pyobject(slf.py())?;
        slf.get().owner(slf.py())?.getattr("publish")?.call(args.cast::<PyTuple>()?, options)
    }

    fn __repr__(&self) -> String {
        let origin = &self.token.batch().origin;
        let (id, count) = (self.token.id(), self.token.delivery_count());
        format!("<Context entry {id} of {:?}, group {:?}, delivery {count}>", origin.stream, origin.group)
    }
}
