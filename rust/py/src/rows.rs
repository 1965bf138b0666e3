//! What is found by looking at a stream, as Python sees it: rows with names.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use ruststream_core::store::{ConsumerRow, GroupRow, PendingRow};

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

fn rows<T>(py: Python<'_>, found: Vec<T>, fill: fn(&Bound<'_, PyDict>, T) -> PyResult<()>) -> PyResult<Py<PyAny>> {
    let list = PyList::empty(py);
    for one in found {
        let row = PyDict::new(py);
        fill(&row, one)?;
        list.append(row)?;
    }
    Ok(list.into_any().unbind())
}

pub(crate) fn groups(py: Python<'_>, found: Option<Vec<GroupRow>>) -> PyResult<Py<PyAny>> {
    let Some(found) = found else {
        return Ok(py.None());
    };
    rows(py, found, |row, group| {
        row.set_item("group", group.name)?;
        row.set_item("consumers", group.consumers)?;
        row.set_item("pending", group.pending)?;
        row.set_item("lag", group.lag)?;
        row.set_item("last_delivered_id", group.last.to_string())
    })
}

pub(crate) fn pending(py: Python<'_>, found: Vec<PendingRow>) -> PyResult<Py<PyAny>> {
    rows(py, found, |row, entry| {
        row.set_item("id", entry.id.to_string())?;
        row.set_item("consumer", entry.consumer)?;
        row.set_item("idle", seconds(entry.idle))?;
        row.set_item("deliveries", entry.deliveries)
    })
}

pub(crate) fn consumers(py: Python<'_>, found: Vec<ConsumerRow>) -> PyResult<Py<PyAny>> {
    rows(py, found, |row, consumer| {
        row.set_item("consumer", consumer.name)?;
        row.set_item("pending", consumer.pending)?;
        row.set_item("idle", seconds(Some(consumer.idle)))?;
        row.set_item("inactive", seconds(consumer.inactive))
    })
}
