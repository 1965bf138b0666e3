//! Where the core's tasks run: on the threads of the process's runtime, or pumped by the loop thread itself.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pyo3::prelude::*;
use ruststream_core::error::{Error, Result};
use ruststream_core::pump::Pump;
use tokio::runtime::Runtime;

use crate::{errors, runtime};

/// Where tasks run.
#[derive(Debug, Clone)]
pub(crate) enum Tasks {
    /// On the runtime's own thread.
    Shared(&'static Runtime),
    /// On the loop thread, when it drains the bell.
    Pumped(Arc<Pump>),
}

impl Tasks {
    /// Those of the process's runtime, started with so many threads where nobody has started it.
    pub(crate) fn shared(py: Python<'_>, threads: usize) -> PyResult<Self> {
        runtime::start(py, threads).map(Self::Shared)
    }

    /// Wait, with the loop at a standstill, for what takes a server a moment. For tests alone.
    pub(crate) fn wait<T: Send>(&self, py: Python<'_>, work: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
        let answer = match self {
            Self::Shared(runtime) => py.detach(|| runtime.block_on(work)),
            Self::Pumped(_) => match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => answer,
                Poll::Pending => Err(Error::Protocol("a model made a test wait".into())),
            },
        };
        answer.map_err(|error| errors::to_py(py, &error))
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Shared(runtime) => drop(runtime.spawn(work)),
            Self::Pumped(pump) => pump.spawn(work),
        }
    }
}
