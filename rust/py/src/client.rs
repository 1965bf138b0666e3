//! `RedisClient`: connections to one server, and publishing through them.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySequence};
use ruststream_core::append::Append;
use ruststream_core::backoff::Backoff;
use ruststream_core::clock::Clock;
use ruststream_core::error::Result;
use ruststream_core::inspect::Inspect;
use ruststream_core::mark::{MarkKey, MarkState, MarkStep};
use ruststream_core::model::{ModelStore, Models};
use ruststream_core::publish::{Kind, Publisher};
use ruststream_core::redis::{Address, RedisStore};
use ruststream_core::store::{Abilities, StreamStore};
use ruststream_core::stream::Groups;
use tokio_util::sync::CancellationToken;

use crate::append::{fields, pairs, trim};
use crate::engine::Engine;
use crate::entry_id::EntryId;
use crate::tasks::Tasks;
use crate::{control, errors, rows, runtime};

/// How often the server's time of day is asked for.
const CLOCK: Duration = Duration::from_secs(60);

/// One message of `publish_together`.
type Message<'py> = (String, Bound<'py, PyBytes>, Bound<'py, PySequence>, Option<u64>, Option<String>, bool);

/// Connections to one Redis or Valkey server, or to one within the process.
#[pyclass(frozen, module = "ruststream._core")]
#[derive(Debug)]
pub(crate) struct RedisClient {
    pub(crate) store: Arc<dyn StreamStore>,
    pub(crate) tasks: Tasks,
    inspect: Arc<dyn Inspect>,
    pub(crate) groups: Groups,
    pub(crate) clock: Arc<Clock>,
    /// The clock is the server's own, and nothing is to be learnt of it.
    same_clock: bool,
    pub(crate) reconnect: Backoff,
    publisher: Arc<Publisher>,
    closed: CancellationToken,
}

#[pymethods]
impl RedisClient {
    #[new]
    #[pyo3(signature = (engine, url, *, username=None, password=None, reconnect_initial=0.05, reconnect_maximum=1.0))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        url: &str,
        username: Option<&str>,
        password: Option<&str>,
        reconnect_initial: f64,
        reconnect_maximum: f64,
    ) -> PyResult<Self> {
        let Server { store, inspect, clock, same_clock } =
            server(engine, url, username, password).map_err(|error| errors::to_py(py, &error))?;
        let (initial, maximum) = (seconds(reconnect_initial), seconds(reconnect_maximum));
        let reconnect = match engine.trial {
            Some(_) => Backoff::seeded(initial, maximum, 0),
            None => Backoff::new(initial, maximum),
        };
        let publisher = Publisher::new(Arc::clone(&store), Arc::clone(&engine.bell) as _, Arc::clone(&clock));
        Ok(Self {
            store,
            tasks: engine.tasks.clone(),
            inspect,
            groups: Groups::default(),
            clock,
            same_clock,
            reconnect,
            publisher: Arc::new(publisher),
            closed: CancellationToken::new(),
        })
    }

    /// Connect, check the password, and ask what the server can do.
    fn connect<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let (publisher, closed) = (Arc::clone(&self.publisher), self.closed.clone());
        let (same_clock, tasks) = (self.same_clock, self.tasks.clone());
        let work = async move {
            let abilities = store.connect().await?;
            tasks.spawn(publisher.run(closed.clone()));
            if same_clock {
                return Ok(abilities);
            }
            clock.set_server_ms(store.time_ms().await?);
            tasks.spawn(async move {
                loop {
                    tokio::select! {
                        biased;
                        () = closed.cancelled() => return,
                        () = clock.sleep(CLOCK) => {}
                    }
                    // While the server is away the old offset is the best there is.
                    if let Ok(now) = store.time_ms().await {
                        clock.set_server_ms(now);
                    }
                }
            });
            Ok(abilities)
        };
        control::future(py, &self.tasks, work, abilities_dict)
    }

    /// Queue one entry. Returns the ticket of its event.
    #[pyo3(signature = (stream, payload, headers, maxlen=None, minid=None, approximate=true))]
    #[expect(clippy::too_many_arguments, reason = "one call per publish: a settings object would cost an allocation")]
    fn publish(
        &self,
        py: Python<'_>,
        stream: &str,
        payload: &[u8],
        headers: &Bound<'_, PySequence>,
        maxlen: Option<u64>,
        minid: Option<String>,
        approximate: bool,
    ) -> PyResult<u64> {
        let entry = Append {
            stream: stream.into(),
            fields: fields(payload, &pairs(headers)?, None),
            trim: trim(maxlen, minid, approximate),
        };
        self.submit(py, vec![entry], Kind::One)
    }

    /// Queue many entries under one ticket.
    #[pyo3(signature = (stream, payloads, headers, keys=None, maxlen=None, minid=None, approximate=true))]
    #[expect(clippy::too_many_arguments, reason = "the same as `publish`, and what differs per entry")]
    fn publish_many(
        &self,
        py: Python<'_>,
        stream: &str,
        payloads: &Bound<'_, PySequence>,
        headers: &Bound<'_, PySequence>,
        keys: Option<&Bound<'_, PySequence>>,
        maxlen: Option<u64>,
        minid: Option<String>,
        approximate: bool,
    ) -> PyResult<u64> {
        let stream: Arc<str> = stream.into();
        let headers = pairs(headers)?;
        let trim = trim(maxlen, minid, approximate);
        let mut entries = Vec::with_capacity(payloads.len()?);
        for (at, payload) in payloads.try_iter()?.enumerate() {
            let payload = payload?;
            let key = match keys {
                Some(keys) => Some(keys.get_item(at)?).filter(|key| !key.is_none()),
                None => None,
            };
            let key = key.as_ref().map(|key| key.cast::<PyBytes>()).transpose()?;
            entries.push(Append {
                stream: Arc::clone(&stream),
                fields: fields(payload.cast::<PyBytes>()?.as_bytes(), &headers, key.map(PyBytesMethods::as_bytes)),
                trim: trim.clone(),
            });
        }
        self.submit(py, entries, Kind::Many)
    }

    /// Queue entries that are added at once or not at all: stream, payload, headers, maxlen, minid and approximate of
    /// each.
    fn publish_together(&self, py: Python<'_>, messages: &Bound<'_, PySequence>) -> PyResult<u64> {
        let mut entries = Vec::with_capacity(messages.len()?);
        for message in messages.try_iter()? {
            let (stream, payload, headers, maxlen, minid, approximate): Message<'_> = message?.extract()?;
            entries.push(Append {
                stream: stream.into(),
                fields: fields(payload.as_bytes(), &pairs(&headers)?, None),
                trim: trim(maxlen, minid, approximate),
            });
        }
        self.submit(py, entries, Kind::Together)
    }

    /// The groups of a stream; None where there is no stream.
    fn list_groups<'py>(&self, py: Python<'py>, stream: String) -> PyResult<Bound<'py, PyAny>> {
        let store = Arc::clone(&self.store);
        control::future(py, &self.tasks, async move { store.list_groups(&stream).await }, rows::groups)
    }

    /// Pending entries of a group, the lowest ids first.
    fn list_pending<'py>(
        &self,
        py: Python<'py>,
        stream: String,
        group: String,
        count: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let store = Arc::clone(&self.store);
        control::future(py, &self.tasks, async move { store.list_pending(&stream, &group, count).await }, rows::pending)
    }

    /// The consumers of a group.
    fn list_consumers<'py>(&self, py: Python<'py>, stream: String, group: String) -> PyResult<Bound<'py, PyAny>> {
        let store = Arc::clone(&self.store);
        control::future(py, &self.tasks, async move { store.consumers(&stream, &group, &[]).await }, rows::consumers)
    }

    /// Do the same with several marks: `begin`, `finish` or `release`. Returns a list of 1 (carried out), 0 (another
    /// owner's) and 2 (done).
    fn mark<'py>(
        &self,
        py: Python<'py>,
        step: &str,
        owner: String,
        keys: Vec<String>,
        lives: f64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let step = match step {
            "begin" => MarkStep::Begin(seconds(lives)),
            "finish" => MarkStep::Finish(seconds(lives)),
            "release" => MarkStep::Release,
            other => return Err(errors::config(py, &format!("there is no step {other:?} of a mark"))),
        };
        let store = Arc::clone(&self.store);
        let work = async move {
            let keys: Vec<MarkKey> = keys.into_iter().map(MarkKey::from).collect();
            store.mark(step, &owner, &keys).await?.into_iter().collect()
        };
        control::future(py, &self.tasks, work, mark_states)
    }

    /// Answer what is queued, then close every connection.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (store, publisher) = (Arc::clone(&self.store), Arc::clone(&self.publisher));
        let closed = self.closed.clone();
        let work = async move {
            publisher.finish().await;
            closed.cancel();
            store.close().await;
            Ok(())
        };
        control::future(py, &self.tasks, work, control::nothing)
    }

    /// All entries of a stream, and their fields in order.
    fn entries<'py>(&self, py: Python<'py>, stream: &str) -> PyResult<Bound<'py, PyList>> {
        let pair = |(name, value): (Vec<u8>, Vec<u8>)| (PyBytes::new(py, &name), PyBytes::new(py, &value));
        let entries = self.tasks.wait(py, self.inspect.entries(stream))?.into_iter();
        PyList::new(py, entries.map(|(id, fields)| (EntryId(id), fields.into_iter().map(pair).collect::<Vec<_>>())))
    }

    /// A group's pending list.
    fn pending<'py>(&self, py: Python<'py>, stream: &str, group: &str) -> PyResult<Bound<'py, PyList>> {
        let pending = self.tasks.wait(py, self.inspect.pending(stream, group))?.into_iter();
        PyList::new(py, pending.map(|one| (EntryId(one.id), one.consumer, one.idle_ms, one.count)))
    }

    /// Take an entry over as another consumer. False: it is not pending.
    fn steal(&self, py: Python<'_>, stream: &str, group: &str, consumer: &str, id: &EntryId) -> PyResult<bool> {
        self.tasks.wait(py, self.inspect.steal(stream, group, consumer, id.0))
    }

    /// Whether entries wait that the group has not given out, and how many delayed ones are due.
    fn owed(&self, py: Python<'_>, stream: &str, group: &str, delay_key: &str) -> PyResult<(bool, usize)> {
        self.tasks.wait(py, async {
            let cursor = self.store.cursor(stream, group).await?;
            Ok((self.store.last_id(stream).await? > cursor, self.inspect.due(delay_key).await?))
        })
    }

    /// Delete keys.
    fn delete(&self, py: Python<'_>, keys: Vec<String>) -> PyResult<()> {
        self.tasks.wait(py, self.inspect.delete(keys))
    }
}

impl RedisClient {
    fn submit(&self, py: Python<'_>, entries: Vec<Append>, kind: Kind) -> PyResult<u64> {
        runtime::check()?;
        self.publisher.submit(entries, kind).map_err(|error| errors::to_py(py, &error))
    }
}

/// A server as its client sees it.
struct Server {
    store: Arc<dyn StreamStore>,
    inspect: Arc<dyn Inspect>,
    clock: Arc<Clock>,
    /// The clock is the server's own.
    same_clock: bool,
}

impl Server {
    fn within(store: ModelStore) -> Self {
        let store = Arc::new(store);
        let clock = Arc::clone(store.model().clock());
        Self { inspect: Arc::clone(&store) as _, store, clock, same_clock: true }
    }
}

/// The server behind a URL: the model that stands for it in a test, one in this process, shared by all that name it, or
/// one to connect to.
fn server(engine: &Engine, url: &str, username: Option<&str>, password: Option<&str>) -> Result<Server> {
    if let Some(trial) = &engine.trial {
        return Ok(Server::within(trial.store(url)));
    }
    if let Some(name) = url.strip_prefix("memory://") {
        return Ok(Server::within(ModelStore::new(Models::named(name))));
    }
    let store = Arc::new(RedisStore::new(Address::parse(url, username, password)?));
    Ok(Server { inspect: Arc::clone(&store) as _, store, clock: Arc::new(Clock::new()), same_clock: false })
}

/// Seconds of Python as a duration; nonsense was refused before.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

fn mark_states(py: Python<'_>, states: Vec<MarkState>) -> PyResult<Py<PyAny>> {
    let number = |state| match state {
        MarkState::Working => 0,
        MarkState::Ours => 1,
        MarkState::Done => 2,
    };
    Ok(PyList::new(py, states.into_iter().map(number))?.into_any().unbind())
}

fn abilities_dict(py: Python<'_>, abilities: Abilities) -> PyResult<Py<PyAny>> {
    let dict = PyDict::new(py);
    dict.set_item("server", abilities.server)?;
    dict.set_item("version", abilities.version)?;
    dict.set_item("claim", abilities.claim)?;
    dict.set_item("xnack", abilities.xnack)?;
    dict.set_item("xackdel", abilities.xackdel)?;
    dict.set_item("idempotent", abilities.idempotent)?;
    Ok(dict.into_any().unbind())
}
