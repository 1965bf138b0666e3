//! The native module `ruststream._core`: what Python sees of `ruststream-core`.
//!
//! Only the loop thread attaches to Python. Nothing that a Rust thread can drop holds a Python object; the futures
//! of the control plane (connect, open, close) are the one exception, and none is left after a close.

mod append;
mod batch_context;
mod batch_drive;
mod binding;
mod call;
mod client;
mod consumer;
mod context;
mod control;
mod doorbell;
mod drive;
mod engine;
mod entry_id;
mod errors;
mod letters;
mod life;
mod marks;
mod methods;
mod outcomes;
mod queue;
mod rows;
mod runtime;
mod settle;
mod tasks;
mod trial;

use pyo3::prelude::*;

/// Stream reads, dispatch, settlement, leases and publishing.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::batch_context::BatchContext;
    #[pymodule_export]
    use crate::client::RedisClient;
    #[pymodule_export]
    use crate::consumer::Consumer;
    #[pymodule_export]
    use crate::context::Context;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::entry_id::EntryId;
    #[pymodule_export]
    use crate::entry_id::partition;
    #[pymodule_export]
    use crate::letters::Letters;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("BUILD_PROFILE", if cfg!(debug_assertions) { "debug" } else { "release" })?;
        module.add("PARTITIONS", ruststream_core::partition::PARTITIONS)?;
        for (name, number) in crate::engine::EVENTS {
            module.add(name, number)?;
        }
        for (name, number) in crate::drive::STOPS {
            module.add(name, number)?;
        }
        for (name, number) in crate::outcomes::OUTCOMES {
            module.add(name, number)?;
        }
        Ok(())
    }
}
