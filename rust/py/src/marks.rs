//! Marks that Python has a say in: the user's own store, and keys that the user's function computes. The core asks
//! under a ticket, the loop thread answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use ruststream_core::entry::{EntryId, KEYLESS};
use ruststream_core::error::{Error, Result};
use ruststream_core::event::{Event, Sink};
use ruststream_core::mark::{MarkKey, MarkKeys, MarkState, MarkStep, MarkStore, ServerMarks};
use ruststream_core::stream::{MarkSettings, Marks};
use ruststream_core::token::Token;
use tokio::sync::oneshot;

use crate::client::{RedisClient, seconds};
use crate::consumer::Consumer;
use crate::context::Context;

/// Prefix of the keys, owner, seconds of the lease, seconds that a done mark is kept, the client whose server keeps them
/// (none: the user's store does), whether the user's function computes the keys.
pub(crate) type MarkOptions<'py> = (String, String, f64, f64, Option<PyRef<'py, RedisClient>>, bool);

/// What is asked.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    /// The keys of these entries.
    Keys(Vec<Token>),
    /// This step for these marks.
    Step(MarkStep, Vec<MarkKey>),
}

#[derive(Debug)]
enum Answer {
    Keys(oneshot::Sender<Vec<Option<String>>>),
    States(oneshot::Sender<Vec<Result<MarkState>>>),
}

/// Questions of one subscription to its loop thread.
#[derive(Debug)]
pub(crate) struct LoopMarks {
    consumer: usize,
    events: Sink,
    next: AtomicU64,
    open: Mutex<HashMap<u64, (Asked, Answer)>>,
    /// What the function that computes keys raised, until the turn of its entry comes.
    failed: Mutex<HashMap<EntryId, PyErr>>,
}

/// The name of a step in Python.
fn name(step: MarkStep) -> &'static str {
    match step {
        MarkStep::Begin(_) => "begin",
        MarkStep::Renew(_) => "renew",
        MarkStep::Finish(_) => "finish",
        MarkStep::Release => "release",
    }
}

impl LoopMarks {
    pub(crate) fn new(consumer: usize, events: Sink) -> Self {
        Self { consumer, events, next: AtomicU64::new(0), open: Mutex::default(), failed: Mutex::default() }
    }

    /// The marks of the subscription.
    pub(crate) fn marks(self: &Arc<Self>, options: MarkOptions<'_>, most_waiting: Option<usize>) -> Marks {
        let (prefix, owner, lease, ttl, server, own_keys) = options;
        let store: Arc<dyn MarkStore> = match server {
            Some(server) => Arc::new(ServerMarks(Arc::clone(&server.store))),
            None => Arc::clone(self) as _,
        };
        let keys = own_keys.then(|| Arc::clone(self) as _);
        let (lease, ttl) = (seconds(lease), seconds(ttl));
        Marks::new(MarkSettings { store, keys, prefix, owner, lease, ttl, most_waiting })
    }

    async fn ask<T>(&self, asked: Asked, answer: Answer, answered: oneshot::Receiver<T>) -> Result<T> {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(ticket, (asked, answer));
        self.events.post(Event::Asked { consumer: self.consumer, ticket });
        answered.await.map_err(|_| Error::ShutDown("the subscription"))
    }

    /// What was asked under a ticket. None: it was answered.
    pub(crate) fn what(&self, ticket: u64) -> Option<Asked> {
        self.open.lock().get(&ticket).map(|(asked, _)| asked.clone())
    }

    /// Answer, if somebody still waits for it.
    pub(crate) fn answer(&self, ticket: u64, answers: &Bound<'_, PyList>) -> PyResult<()> {
        let Some((asked, answer)) = self.open.lock().remove(&ticket) else {
            return Ok(());
        };
        // Whoever asked may have given up: nobody to tell then.
        match answer {
            Answer::Keys(sender) => {
                let tokens = if let Asked::Keys(tokens) = &asked { tokens.as_slice() } else { &[] };
                let keys = tokens.iter().zip(answers).map(|(token, answer)| self.key(token, &answer));
                let _ = sender.send(keys.collect::<PyResult<_>>()?);
            }
            Answer::States(sender) => {
                let states = answers.iter().map(|answer| state(&answer)).collect::<PyResult<_>>()?;
                let _ = sender.send(states);
            }
        }
        Ok(())
    }
}

impl LoopMarks {
    /// What was computed for an entry. A failure waits for the entry's turn: a cap has to count it like any other.
    fn key(&self, token: &Token, answer: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        if answer.is_instance_of::<PyBaseException>() {
            self.failed.lock().insert(token.id(), PyErr::from_value(answer.clone()));
            return Ok(None);
        }
        answer.extract().map(Some)
    }

    /// Whether some keys could not be computed.
    pub(crate) fn has_failed_keys(&self) -> bool {
        !self.failed.lock().is_empty()
    }

    /// Why this entry's key could not be computed.
    pub(crate) fn failed_key(&self, token: &Token) -> Option<PyErr> {
        self.failed.lock().remove(&token.id())
    }

    /// No entry's turn comes any more.
    pub(crate) fn forget_failed_keys(&self) {
        let failed = std::mem::take(&mut *self.failed.lock());
        drop(failed);
    }
}

/// A question as Python sees it: what is wanted, and of what.
pub(crate) fn question<'py>(consumer: &Bound<'py, Consumer>, asked: Asked) -> PyResult<Bound<'py, PyTuple>> {
    let py = consumer.py();
    match asked {
        Asked::Keys(tokens) => {
            let context = |token| Bound::new(py, Context::new(token, KEYLESS, consumer.clone().unbind()));
            ("keys", tokens.into_iter().map(context).collect::<PyResult<Vec<_>>>()?).into_pyobject(py)
        }
        Asked::Step(step, keys) => {
            (name(step), keys.iter().map(AsRef::as_ref).collect::<Vec<&str>>()).into_pyobject(py)
        }
    }
}

/// `True`: carried out, `False`: another owner's, `None`: done; an exception: the store failed.
fn state(answer: &Bound<'_, PyAny>) -> PyResult<Result<MarkState>> {
    if answer.is_none() {
        return Ok(Ok(MarkState::Done));
    }
    if let Ok(error) = answer.cast::<PyBaseException>() {
        return Ok(Err(Error::Server(format!("{}: {}", error.get_type().name()?, error.str()?))));
    }
    Ok(Ok(if answer.extract()? { MarkState::Ours } else { MarkState::Working }))
}

#[async_trait]
impl MarkKeys for LoopMarks {
    async fn keys(&self, tokens: &[Token]) -> Result<Vec<Option<String>>> {
        let (sender, answered) = oneshot::channel();
        let keys = self.ask(Asked::Keys(tokens.to_vec()), Answer::Keys(sender), answered).await?;
        if keys.len() == tokens.len() { Ok(keys) } else { Err(Error::Protocol("a key was not answered".into())) }
    }
}

#[async_trait]
impl MarkStore for LoopMarks {
    async fn step(&self, step: MarkStep, _owner: &str, keys: &[MarkKey]) -> Result<Vec<Result<MarkState>>> {
        let (sender, answered) = oneshot::channel();
        self.ask(Asked::Step(step, keys.to_vec()), Answer::States(sender), answered).await
    }
}
