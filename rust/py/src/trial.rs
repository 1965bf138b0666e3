//! What a test runs on in place of servers and threads: models with a stopped clock, pumped by the loop thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ruststream_core::clock::Clock;
use ruststream_core::error::Error;
use ruststream_core::model::{Faults, Model, ModelStore, Operation};
use ruststream_core::pump::Pump;

/// The world of one test.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) clock: Arc<Clock>,
    pub(crate) pump: Arc<Pump>,
    faults: Arc<Faults>,
    /// One model per address: brokers of the same server share it.
    models: Mutex<BTreeMap<String, Arc<Model>>>,
}

impl Trial {
    pub(crate) fn new(now_ms: u64, pump: Arc<Pump>) -> Self {
        let clock = Arc::new(Clock::stopped(now_ms));
        Self { clock, pump, faults: Arc::default(), models: Mutex::default() }
    }

    /// A client of the model that stands for this address.
    pub(crate) fn store(&self, url: &str) -> ModelStore {
        let address = url.rsplit_once('@').map_or(url, |(_, address)| address);
        let mut models = self.models.lock();
        let model = models.entry(address.to_owned()).or_insert_with(|| Model::new(Arc::clone(&self.clock)));
        ModelStore::new(Arc::clone(model)).with_faults(Arc::clone(&self.faults))
    }

    /// Move the clock from one time at which something falls due to the next, and run what is ready in so many steps at
    /// each, until the core has something to tell, or more to do; `limit` and `most` times at most. Returns how far the
    /// clock was moved, and how often something fell due.
    pub(crate) fn step(
        &self,
        limit: Duration,
        most: usize,
        steps: usize,
        tells: impl Fn() -> bool,
    ) -> (Duration, usize) {
        let (mut left, mut times) = (limit, 0);
        while !left.is_zero() && times < most {
            let moved = self.clock.step(left);
            times += usize::from(moved.is_some());
            left = left.saturating_sub(moved.unwrap_or(left));
            self.pump.run(steps);
            if tells() || self.pump.is_busy() {
                break;
            }
        }
        (limit.saturating_sub(left), times)
    }

    /// Let the next such operation fail.
    pub(crate) fn fail_next(&self, operation: &str, lost: bool, text: String) -> PyResult<()> {
        let operation = match operation {
            "read" => Operation::Read,
            "ack" => Operation::Settle,
            "publish" => Operation::Append,
            other => return Err(PyValueError::new_err(format!("there is no operation {other:?}"))),
        };
        self.faults.fail_next(operation, if lost { Error::Lost(text) } else { Error::Server(text) });
        Ok(())
    }
}
