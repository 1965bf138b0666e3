//! The one tokio runtime of the process: made at the first start, never at import, and never used in a child.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crate::{control, errors};

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);

/// Called in a child after a fork: its copy of the runtime has no threads.
#[pyfunction]
fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The runtime, made by the first caller. Refused in a forked child.
pub(crate) fn start(py: Python<'_>, threads: usize) -> PyResult<&'static Runtime> {
    check()?;
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .thread_name("ruststream")
        .enable_all()
        .build()
        .map_err(|error| errors::config(py, &format!("no threads for the core: {error}")))?;
    let hooks = pyo3::types::PyDict::new(py);
    hooks.set_item("after_in_child", pyo3::wrap_pyfunction!(forked, py)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    py.import("atexit")?.call_method1("register", (pyo3::wrap_pyfunction!(control::settle_at_exit, py)?,))?;
    let runtime = RUNTIME.get_or_init(|| made);
    // Another loop's thread may have been first; then it has done this as well.
    let _ = pyo3_async_runtimes::tokio::init_with_runtime(runtime);
    Ok(runtime)
}

/// Refuse to go on in a forked child.
pub(crate) fn check() -> PyResult<()> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Python::attach(errors::fork));
    }
    Ok(())
}
