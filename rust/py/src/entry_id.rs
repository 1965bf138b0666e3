//! `EntryId`, and the partition of a key.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
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
        let parsed = match text.cast::<PyBytes>() {
            Ok(bytes) => entry::EntryId::parse(bytes.as_bytes()),
            // Text that is no UTF-8 is no id either.
            Err(_) => text.cast::<PyString>()?.to_cow().ok().and_then(|text| entry::EntryId::parse(text.as_bytes())),
        };
        parsed.map(Self).ok_or_else(|| {
            let shown = match text.cast::<PyBytes>() {
                Ok(bytes) => String::from_utf8_lossy(bytes.as_bytes()).into_owned(),
                Err(_) => text.to_string(),
            };
            let shown: String = shown.chars().take(80).collect();
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
