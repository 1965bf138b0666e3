//! The core's errors as the classes of `ruststream.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use ruststream_core::error::Error;

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("ruststream.errors").map(Bound::unbind))?;
    module.bind(py).getattr(name)
}

fn make(py: Python<'_>, name: &str, message: &str) -> PyErr {
    match class(py, name).and_then(|class| class.call1((message,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// The Python exception of an error.
pub(crate) fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let name = match error {
        Error::Config(_) => "ConfigError",
        Error::Connect(_) | Error::Lost(_) | Error::Protocol(_) => "ConnectError",
        Error::Subscribe(_) | Error::NoGroup(_) => "SubscribeError",
        Error::PublishUncertain(_) => "PublishUncertainError",
        Error::Server(_) => "RustStreamError",
        Error::ShutDown(_) => "ShutDownError",
        Error::Publish { text, code } => {
            let made = (|| {
                let details = PyDict::new(py);
                details.set_item("code", (!code.is_empty()).then_some(code))?;
                class(py, "PublishError")?.call((text,), Some(&details))
            })();
            return made.map_or_else(|error| error, PyErr::from_value);
        }
        Error::TooOld { subscription, required, actual } => {
            let made = (|| {
                let details = PyDict::new(py);
                details.set_item("subscription", subscription)?;
                details.set_item("required", required)?;
                details.set_item("actual", actual)?;
                class(py, "ServerTooOldError")?.call((error.to_string(),), Some(&details))
            })();
            return made.map_or_else(|error| error, PyErr::from_value);
        }
    };
    make(py, name, &error.to_string())
}

/// A setting that cannot work.
pub(crate) fn config(py: Python<'_>, message: &str) -> PyErr {
    make(py, "ConfigError", message)
}

/// Something was settled twice.
pub(crate) fn already_settled(py: Python<'_>, id: &str) -> PyErr {
    make(py, "AlreadySettledError", &format!("entry {id} has an outcome already; settle a delivery once"))
}

/// Used in a forked child.
pub(crate) fn fork(py: Python<'_>) -> PyErr {
    make(
        py,
        "ForkError",
        "this process was forked after ruststream had started; start it in the child, or spawn processes instead",
    )
}
