//! `BatchContext`: the deliveries that one call of a batch handler has in its hands.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyTuple};
use ruststream_core::batch::Mark;
use ruststream_core::entry::KEYLESS;
use ruststream_core::token::Token;

use crate::consumer::Consumer;
use crate::context::Context;
use crate::entry_id::EntryId;

/// One element of a batch.
pub(crate) struct Element {
    pub(crate) token: Token,
    /// The key that `by_key` computed.
    pub(crate) key: Option<Py<PyBytes>>,
}

/// One call's deliveries.
#[pyclass(frozen, module = "ruststream._core")]
pub(crate) struct BatchContext {
    pub(crate) elements: Vec<Element>,
    /// The partitions that are in this call's hands.
    pub(crate) partitions: Vec<u16>,
    pub(crate) consumer: Py<Consumer>,
    contexts: PyOnceLock<Py<PyTuple>>,
    lease_lost: PyOnceLock<Py<PyAny>>,
}

impl BatchContext {
    pub(crate) fn new(elements: Vec<Element>, partitions: Vec<u16>, consumer: Py<Consumer>) -> Self {
        Self { elements, partitions, consumer, contexts: PyOnceLock::new(), lease_lost: PyOnceLock::new() }
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.elements.iter().map(|element| &element.token)
    }

    fn owner<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.consumer.get().owner(py)
    }

    fn context<'py>(&self, py: Python<'py>, element: &Element) -> PyResult<Bound<'py, Context>> {
        let context = Context::new(element.token.clone(), KEYLESS, self.consumer.clone_ref(py));
        if let Some(key) = &element.key {
            let _ = context.key.set(py, key.clone_ref(py));
        }
        Bound::new(py, context)
    }

    /// The context that `which`, an index or a context of this batch, stands for.
    fn chosen<'py>(&self, which: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Context>> {
        let py = which.py();
        let count = self.elements.len();
        if let Ok(context) = which.cast::<Context>() {
            return if self.tokens().any(|token| token.is_same(&context.get().token)) {
                Ok(context.clone())
            } else {
                Err(PyValueError::new_err(format!(
                    "entry {} is not of this batch; its own batch, or its context, settles it",
                    context.get().token.id()
                )))
            };
        }
        if which.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("name an element by its index or its context, not by a bool"));
        }
        let index: isize = which
            .extract()
            .map_err(|_| PyTypeError::new_err(format!("name an element by its index or its context, not {which:?}")))?;
        let at = if index < 0 { count.checked_add_signed(index) } else { usize::try_from(index).ok() };
        let element = at.and_then(|at| self.elements.get(at));
        let element = element.ok_or_else(|| {
            PyIndexError::new_err(format!("the batch has {count} elements, there is none at index {index}"))
        })?;
        self.context(py, element)
    }
}

#[pymethods]
impl BatchContext {
    fn __len__(&self) -> usize {
        self.elements.len()
    }

    /// One context per element, in the order of the list.
    #[getter]
    fn contexts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let made = || {
            let contexts = self.elements.iter().map(|element| self.context(py, element));
            PyTuple::new(py, contexts.collect::<PyResult<Vec<_>>>()?).map(Bound::unbind)
        };
        Ok(self.contexts.get_or_try_init(py, made)?.bind(py).clone())
    }

    /// The entries' ids, in the order of the list.
    #[getter]
    fn entry_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tokens().map(|token| EntryId(token.id())).collect::<Vec<_>>())
    }

    /// The stream the entries were read from.
    #[getter]
    fn stream(&self) -> &str {
        &self.consumer.get().subscription.origin.stream
    }

    /// The consumer group.
    #[getter]
    fn group(&self) -> &str {
        &self.consumer.get().subscription.origin.group
    }

    /// The consumer name this process reads under.
    #[getter]
    fn consumer(&self) -> &str {
        &self.consumer.get().subscription.origin.consumer
    }

    /// The subscription's name.
    #[getter]
    fn subscription(&self) -> &str {
        &self.consumer.get().subscription.origin.subscription
    }

    /// An event, set once someone else owns one of the entries.
    #[getter]
    fn lease_lost(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        let made = || this.owner(py)?.call_method1("make_batch_lease_lost", (slf,)).map(Bound::unbind);
        Ok(this.lease_lost.get_or_try_init(py, made)?.clone_ref(py))
    }

    /// Whether someone else owns one of the entries by now.
    #[getter]
    fn lost(&self) -> bool {
        self.tokens().any(Token::is_lost)
    }

    /// Whether every element was given an outcome.
    #[getter]
    fn settled(&self) -> bool {
        self.tokens().all(|token| matches!(token.mark(), Mark::Settled | Mark::Done))
    }

    /// What the app's startup made.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.owner(py)?.getattr("app_state")
    }

    /// Settle one element now.
    fn settle(&self, which: &Bound<'_, PyAny>, outcome: &Bound<'_, PyAny>) -> PyResult<()> {
        let context = self.chosen(which)?;
        self.owner(which.py())?.call_method1("settle", (context, outcome)).map(drop)
    }

    /// Publish through the broker these entries came from.
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
        let (count, origin) = (self.elements.len(), &self.consumer.get().subscription.origin);
        format!("<BatchContext of {count} entries of {:?}, group {:?}>", origin.stream, origin.group)
    }
}
