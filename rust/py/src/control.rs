//! Futures of the control plane: connect, open, close. A few per process life, never on the way of an entry.

use std::future::Future;

use pyo3::prelude::*;
use ruststream_core::error::Result;

use crate::{errors, runtime};

/// Run `work` on the runtime; what Python awaits resolves to what `into` makes of its result.
pub(crate) fn future<T, F>(
    py: Python<'_>,
    work: F,
    into: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'_, PyAny>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    runtime::get(py)?;
    pyo3_async_runtimes::tokio::future_into_py(py, async move {
        let result = work.await;
        Python::attach(|py| match result {
            Ok(value) => into(py, value),
            Err(error) => Err(errors::to_py(py, &error)),
        })
    })
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
