//! Gathers what is published and sends it in pipelines: concurrent publishes share round trips.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::event::{Event, Sink};
use crate::store::{Append, StreamStore};

/// Entries per pipeline. Larger ones gain nothing and delay what is queued behind them.
const PIPELINE: usize = 1000;

/// Tickets are unique in the process: several publishers answer through one bell.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(0);

/// What was handed in under one ticket.
#[derive(Debug)]
struct Job {
    ticket: u64,
    entries: Vec<Append>,
    many: bool,
}

/// Jobs on their way: ticket, entries and kind of each, and all their entries.
#[derive(Debug, Default)]
struct Sending {
    tickets: Vec<(u64, usize, bool)>,
    entries: Vec<Append>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// The queue of entries to add, and its answers.
#[derive(Debug)]
pub struct Publisher {
    store: Arc<dyn StreamStore>,
    events: Sink,
    queue: Mutex<Queue>,
    wake: Notify,
    idle: Notify,
    busy: Mutex<bool>,
}

impl Publisher {
    /// A publisher that sends nothing until `run` is spawned.
    pub fn new(store: Arc<dyn StreamStore>, events: Sink) -> Self {
        Self {
            store,
            events,
            queue: Mutex::default(),
            wake: Notify::new(),
            idle: Notify::new(),
            busy: Mutex::new(false),
        }
    }

    /// Queue entries under a ticket of their own. `many`: the caller wants a list back.
    pub fn submit(&self, entries: Vec<Append>, many: bool) -> Result<u64> {
        let (ticket, first) = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(Error::ShutDown("the broker"));
            }
            let ticket = NEXT_TICKET.fetch_add(1, Ordering::Relaxed);
            queue.jobs.push_back(Job { ticket, entries, many });
            (ticket, queue.jobs.len() == 1)
        };
        if first {
            self.wake.notify_one();
        }
        Ok(ticket)
    }

    /// Jobs that fit into one pipeline; a larger one goes alone, and is cut when it is sent.
    fn take(&self) -> Sending {
        let mut queue = self.queue.lock();
        let mut sending = Sending::default();
        while let Some(job) = queue.jobs.front() {
            if !sending.tickets.is_empty() && sending.entries.len() + job.entries.len() > PIPELINE {
                break;
            }
            let Some(job) = queue.jobs.pop_front() else { break };
            sending.tickets.push((job.ticket, job.entries.len(), job.many));
            sending.entries.extend(job.entries);
        }
        sending
    }

    /// Send until cancelled. What is queued then is answered with an error.
    pub async fn run(self: Arc<Self>, closed: CancellationToken) {
        loop {
            let sending = self.take();
            if sending.tickets.is_empty() {
                *self.busy.lock() = false;
                self.idle.notify_waiters();
                tokio::select! {
                    () = closed.cancelled() => break,
                    () = self.wake.notified() => {}
                }
                *self.busy.lock() = true;
                continue;
            }
            let results = tokio::select! {
                () = closed.cancelled() => vec![Err(Error::ShutDown("the broker")); sending.entries.len()],
                results = self.send(&sending.entries) => results,
            };
            self.answer(sending.tickets, results);
        }
        self.queue.lock().closed = true;
        loop {
            let left = self.take();
            if left.tickets.is_empty() {
                break;
            }
            self.answer(left.tickets, vec![Err(Error::ShutDown("the broker")); left.entries.len()]);
        }
    }

    async fn send(&self, entries: &[Append]) -> Vec<Result<EntryId>> {
        let mut results = Vec::with_capacity(entries.len());
        for chunk in entries.chunks(PIPELINE) {
            match self.store.append(chunk).await {
                Ok(answers) => results.extend(answers.into_iter().map(named)),
                Err(error) => results.extend(chunk.iter().map(|_| Err(lost(&error)))),
            }
        }
        results
    }

    fn answer(&self, tickets: Vec<(u64, usize, bool)>, results: Vec<Result<EntryId>>) {
        let mut results = results.into_iter();
        for (ticket, entries, many) in tickets {
            let results = results.by_ref().take(entries).collect();
            self.events.post(Event::Published { ticket, results, many });
        }
    }

    /// Refuse new entries and return once all that were queued are answered.
    pub async fn finish(&self) {
        self.queue.lock().closed = true;
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.queue.lock().jobs.is_empty() && !*self.busy.lock() {
                return;
            }
            idle.await;
        }
    }
}

/// A server that answered refused the entry: nothing was written.
fn named(result: Result<EntryId>) -> Result<EntryId> {
    result.map_err(|error| match error {
        Error::Server(text) => Error::Publish(format!("the server refused the entry: {text}")),
        other => other,
    })
}

/// Without an answer nobody knows, unless the connection was never there.
fn lost(error: &Error) -> Error {
    match error {
        Error::Lost(text) | Error::Protocol(text) => Error::PublishUncertain(format!(
            "the reply was lost, the entry may or may not have been added: {text}; \
             publish it again only if a second copy does no harm"
        )),
        other => other.clone(),
    }
}
