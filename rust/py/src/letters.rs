//! `Letters`: the dead letters in a stream, as an operator's command reads them and puts them back.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use ruststream_core::append::Replay;
use ruststream_core::entry::EntryId as Id;
use ruststream_core::error::Result;
use ruststream_core::letter;
use ruststream_core::reply;
use ruststream_core::store::StreamStore;

use crate::client::RedisClient;
use crate::entry_id::EntryId;
use crate::tasks::Tasks;
use crate::{control, errors};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// One stream of dead letters.
#[pyclass(frozen, module = "ruststream._core")]
#[derive(Debug)]
pub(crate) struct Letters {
    store: Arc<dyn StreamStore>,
    tasks: Tasks,
    stream: String,
}

#[pymethods]
impl Letters {
    #[new]
    fn new(client: &RedisClient, stream: String) -> Self {
        Self { store: Arc::clone(&client.store), tasks: client.tasks.clone(), stream }
    }

    /// How many entries the stream has.
    fn length<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (store, stream) = (Arc::clone(&self.store), self.stream.clone());
        control::future(py, &self.tasks, async move { store.length(&stream).await }, control::number)
    }

    /// The id last given out in the stream.
    fn last_id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (store, stream) = (Arc::clone(&self.store), self.stream.clone());
        control::future(py, &self.tasks, async move { store.last_id(&stream).await }, id_or_none)
    }

    /// Whether there is such a group.
    fn has_group<'py>(&self, py: Python<'py>, stream: String, group: String) -> PyResult<Bound<'py, PyAny>> {
        let store = Arc::clone(&self.store);
        control::future(py, &self.tasks, async move { store.cursor(&stream, &group).await }, |py, cursor| {
            Ok(cursor.is_some().into_pyobject(py)?.to_owned().into_any().unbind())
        })
    }

    /// Entries behind an id, oldest first.
    fn after<'py>(&self, py: Python<'py>, cursor: &EntryId, count: usize) -> PyResult<Bound<'py, PyAny>> {
        let (store, stream, cursor) = (Arc::clone(&self.store), self.stream.clone(), cursor.0);
        let work = async move {
            let raw = store.range(&stream, cursor, count).await?;
            let fields = |slot| -> Fields {
                let spans = reply::fields(&raw.bytes, slot);
                spans.map(|(name, value)| (name.of(&raw.bytes).to_vec(), value.of(&raw.bytes).to_vec())).collect()
            };
            Ok(raw.slots.iter().map(|slot| (slot.id, fields(slot))).collect::<Vec<_>>())
        };
        control::future(py, &self.tasks, work, entries)
    }

    /// Put letters back: one atomic step each. One result each.
    fn replay<'py>(
        &self,
        py: Python<'py>,
        letters: Vec<(Py<EntryId>, Fields, String, Option<String>)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (store, stream) = (Arc::clone(&self.store), self.stream.clone());
        let replays = letters.into_iter().map(|(id, fields, to, group)| {
            let id = id.get().0;
            Replay { id, to, fields: letter::replayed(id, &fields, group.as_deref()) }
        });
        let replays: Vec<_> = replays.collect();
        control::future(py, &self.tasks, async move { store.replay(&stream, replays).await }, results)
    }
}

fn id_or_none(py: Python<'_>, id: Option<Id>) -> PyResult<Py<PyAny>> {
    Ok(id.map(EntryId).into_pyobject(py)?.into_any().unbind())
}

fn entries(py: Python<'_>, entries: Vec<(Id, Fields)>) -> PyResult<Py<PyAny>> {
    let list = PyList::empty(py);
    for (id, fields) in entries {
        let fields = fields.iter().map(|(name, value)| (PyBytes::new(py, name), PyBytes::new(py, value)));
        list.append((EntryId(id), PyList::new(py, fields.collect::<Vec<_>>())?))?;
    }
    Ok(list.into_any().unbind())
}

fn results(py: Python<'_>, results: Vec<Result<Option<Id>>>) -> PyResult<Py<PyAny>> {
    let list = PyList::empty(py);
    for result in results {
        match result {
            Ok(id) => list.append(id.map(EntryId))?,
            Err(error) => list.append(errors::to_py(py, &error).into_value(py))?,
        }
    }
    Ok(list.into_any().unbind())
}
