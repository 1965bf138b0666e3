//! `EntryId`, and the partition of a key.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ruststream_core::entry;

/// A stream entry's id.
#[pyclass(frozen, eq, ord, module = "ruststream._core")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryId(pub(crate) entry::EntryId);

#[pymethods]
impl EntryId {
    #[new]
    #[pyo3(signature = (ms, seq=0))]
    fn new(ms: u64, seq: u64) -> Self {
        Self(entry::EntryId::new(ms, seq))
    }

    /// Read `ms-seq` or a bare `ms`. Raises `ValueError` for anything else.
    #[staticmethod]
    fn parse(text: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes: Vec<u8> = match text.extract::<String>() {
            Ok(text) => text.into_bytes(),
            Err(_) => text.extract()?,
        };
        entry::EntryId::parse(&bytes).map(Self).ok_or_else(|| {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
            PyValueError::new_err(format!("{shown:?} is not an entry id; write <milliseconds>-<sequence>"))
        })
    }

    /// Milliseconds since the epoch, by the server's clock.
    #[getter]
    fn ms(&self) -> u64 {
        self.0.ms
    }

    /// The sequence within the millisecond.
    #[getter]
    fn seq(&self) -> u64 {
        self.0.seq
    }

    /// The greatest id below this one; `0-0` stays.
    fn previous(&self) -> Self {
        Self(self.0.previous())
    }

    /// The smallest id above this one.
    fn next(&self) -> Self {
        Self(self.0.next())
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("EntryId({}, {})", self.0.ms, self.0.seq)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> (Py<PyAny>, (u64, u64)) {
        let id = slf.get().0;
        (slf.get_type().into_any().unbind(), (id.ms, id.seq))
    }
}

/// Return the partition of a key: `xxh3_64(key) % 1024`.
#[pyfunction]
pub(crate) fn partition(key: &[u8]) -> u16 {
    ruststream_core::partition::partition(key)
}
