//! Futures of the control plane: connect, open, close. A few per process life, never on the way of an entry.
//!
//! `pyo3-async-runtimes` delivers their results from a thread of its own, which has to attach to Python. A thread that
//! is still attached when the interpreter finalises aborts the process, so every one of them is counted, and the
//! interpreter waits for them before it goes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3_async_runtimes::TaskLocals;
use pyo3_async_runtimes::generic::{self, ContextExt, Runtime};
use ruststream_core::error::Result;
use ruststream_core::pump::Pump;
use tokio::task::{JoinError, JoinHandle};

use crate::tasks::Tasks;
use crate::{errors, runtime};

/// How long an exit waits for a result that is being delivered. It takes microseconds, or a busy machine's 5 ms.
const PATIENCE: Duration = Duration::from_secs(2);

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Counts one task or thread of a future, until it is over.
struct UnderWay;

impl UnderWay {
    fn begin() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Our runtime, with everything counted that may attach to Python.
struct Counted;

impl Runtime for Counted {
    type JoinError = JoinError;
    type JoinHandle = JoinHandle<()>;

    fn spawn<F>(work: F) -> Self::JoinHandle
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let under_way = UnderWay::begin();
        pyo3_async_runtimes::tokio::get_runtime().spawn(async move {
            work.await;
            drop(under_way);
        })
    }

    fn spawn_blocking<F>(work: F) -> Self::JoinHandle
    where
        F: FnOnce() + Send + 'static,
    {
        let under_way = UnderWay::begin();
        pyo3_async_runtimes::tokio::get_runtime().spawn_blocking(move || {
            work();
            drop(under_way);
        })
    }
}

/// Nothing that runs here calls back into Python, so no task needs to know its loop.
impl ContextExt for Counted {
    fn scope<F, R>(_locals: TaskLocals, work: F) -> Pin<Box<dyn Future<Output = R> + Send>>
    where
        F: Future<Output = R> + Send + 'static,
    {
        Box::pin(work)
    }

    fn get_task_locals() -> Option<TaskLocals> {
        None
    }
}

/// Wait, detached, until no result is being delivered any more. Called when the interpreter exits.
#[pyfunction]
pub(crate) fn settle_at_exit(py: Python<'_>) {
    py.detach(|| {
        let patience = Instant::now() + PATIENCE;
        while UNDER_WAY.load(Ordering::Acquire) > 0 && Instant::now() < patience {
            std::thread::sleep(Duration::from_micros(200));
        }
    });
}

/// Run `work` where the core's tasks run; what Python awaits resolves to what `into` makes of its result.
pub(crate) fn future<'py, T, F>(
    py: Python<'py>,
    tasks: &Tasks,
    work: F,
    into: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    runtime::check()?;
    if let Tasks::Pumped(pump) = tasks {
        return pumped(py, pump, work, into);
    }
    generic::future_into_py::<Counted, _, _>(py, async move {
        let result = work.await;
        Ok(Delivered { result, into })
    })
}

/// The same where the loop thread runs the tasks itself: whoever drops the task is attached.
fn pumped<'py, T, F>(
    py: Python<'py>,
    pump: &Arc<Pump>,
    work: F,
    into: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let future = py.import("asyncio")?.call_method0("get_running_loop")?.call_method0("create_future")?;
    let waiting = future.clone().unbind();
    pump.spawn(async move {
        let result = work.await;
        Python::attach(|py| {
            let delivered = deliver(waiting.bind(py), Delivered { result, into });
            delivered.unwrap_or_else(|error| error.write_unraisable(py, None));
        });
    });
    Ok(future)
}

fn deliver<T: Send + 'static>(waiting: &Bound<'_, PyAny>, delivered: Delivered<T>) -> PyResult<()> {
    let py = waiting.py();
    if waiting.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match delivered.into_pyobject(py) {
        Ok(value) => waiting.call_method1("set_result", (value,))?,
        Err(error) => waiting.call_method1("set_exception", (error.into_value(py),))?,
    };
    Ok(())
}

/// A result on its way: turned into a Python object by the thread that delivers it, which is attached anyway.
struct Delivered<T> {
    result: Result<T>,
    into: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
}

impl<'py, T: Send + 'static> IntoPyObject<'py> for Delivered<T> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        match self.result {
            Ok(value) => (self.into)(py, value).map(|value| value.into_bound(py)),
            Err(error) => Err(errors::to_py(py, &error)),
        }
    }
}

/// For work without a result.
#[expect(clippy::unnecessary_wraps, reason = "the form that `future` takes")]
pub(crate) fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

/// For counts.
pub(crate) fn number(py: Python<'_>, number: usize) -> PyResult<Py<PyAny>> {
    Ok(number.into_pyobject(py)?.into_any().unbind())
}
