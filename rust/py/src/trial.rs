//! What a test runs on in place of servers and threads: models with a stopped clock, pumped by the loop thread.

use std::collections::BTreeMap;
use std::sync::Arc;

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
