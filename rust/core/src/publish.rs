//! Gathers what is published and sends it in pipelines: concurrent publishes share round trips.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::append::{Append, Stamp};
use crate::clock::Clock;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::event::{Event, Sink};
use crate::refused::refused;
use crate::store::StreamStore;

/// Entries per pipeline. Larger ones gain nothing and delay what is queued behind them.
const PIPELINE: usize = 1000;

/// Tickets are unique in the process: several publishers answer through one bell.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(0);

/// How long entries whose reply was lost are sent again, where that adds none twice.
const PATIENCE: Duration = Duration::from_secs(3);
/// The pause before they are.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest value that a server takes unless it is told otherwise.
const MAX_VALUE: u64 = 512 * 1024 * 1024;

/// How entries are handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One entry.
    One,
    /// A list, each entry for itself.
    Many,
    /// A list that is added at once, or not at all.
    Together,
}

/// What was handed in under one ticket.
#[derive(Debug)]
struct Job {
    ticket: u64,
    entries: Vec<Append>,
    kind: Kind,
}

/// Jobs on their way: ticket, entries and kind of each, and all their entries.
#[derive(Debug, Default)]
struct Sending {
    tickets: Vec<(u64, usize, bool)>,
    entries: Vec<Append>,
    together: bool,
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
    clock: Arc<Clock>,
    /// The stamp of the next entries.
    stamp: Mutex<Stamp>,
    queue: Mutex<Queue>,
    wake: Notify,
    idle: Notify,
    state: Mutex<State>,
}

/// What `run` is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    NotStarted,
    Sending,
    Idle,
}

impl Publisher {
    /// A publisher that sends nothing until `run` is spawned.
    pub fn new(store: Arc<dyn StreamStore>, events: Sink, clock: Arc<Clock>) -> Self {
        Self {
            store,
            events,
            clock,
            stamp: Mutex::new(Stamp { generation: 0, first: 1 }),
            queue: Mutex::default(),
            wake: Notify::new(),
            idle: Notify::new(),
            state: Mutex::new(State::NotStarted),
        }
    }

    /// Queue entries under a ticket of their own.
    pub fn submit(&self, entries: Vec<Append>, kind: Kind) -> Result<u64> {
        let limit = self.store.abilities().max_value;
        entries.iter().try_for_each(|entry| check_size(entry, limit))?;
        let (ticket, first) = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(Error::ShutDown("the broker"));
            }
            let ticket = NEXT_TICKET.fetch_add(1, Ordering::Relaxed);
            queue.jobs.push_back(Job { ticket, entries, kind });
            (ticket, queue.jobs.len() == 1)
        };
        if first {
            self.wake.notify_one();
        }
        Ok(ticket)
    }

    /// Jobs that fit into one pipeline; a larger one goes alone, and is cut when it is sent. One that must not be cut goes
    /// alone too.
    fn take(&self) -> Sending {
        let mut queue = self.queue.lock();
        let mut sending = Sending::default();
        while let Some(job) = queue.jobs.front() {
            let together = job.kind == Kind::Together;
            if !sending.tickets.is_empty() && (together || sending.entries.len() + job.entries.len() > PIPELINE) {
                break;
            }
            let Some(job) = queue.jobs.pop_front() else { break };
            sending.tickets.push((job.ticket, job.entries.len(), job.kind != Kind::One));
            sending.entries.extend(job.entries);
            if together {
                sending.together = true;
                break;
            }
        }
        sending
    }

    /// Send until cancelled. What is queued then is answered with an error.
    pub fn run(self: Arc<Self>, closed: CancellationToken) -> impl Future<Output = ()> + Send {
        // From this call on, not from the first poll of the task: a `finish` right after it waits.
        *self.state.lock() = State::Sending;
        self.send_all(closed)
    }

    async fn send_all(self: Arc<Self>, closed: CancellationToken) {
        while !closed.is_cancelled() {
            let sending = self.take();
            if sending.tickets.is_empty() {
                *self.state.lock() = State::Idle;
                self.idle.notify_waiters();
                tokio::select! {
                    biased;
                    () = closed.cancelled() => {}
                    () = self.wake.notified() => {}
                }
                *self.state.lock() = State::Sending;
                continue;
            }
            let results = tokio::select! {
                biased;
                () = closed.cancelled() => {
                    let cut = lost(&Error::Lost("the broker was closed".into()));
                    vec![Err(cut); sending.entries.len()]
                }
                results = self.send(&sending) => results,
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

    async fn send(&self, sending: &Sending) -> Vec<Result<EntryId>> {
        let entries = &sending.entries;
        let mut results = Vec::with_capacity(entries.len());
        for chunk in entries.chunks(if sending.together { entries.len().max(1) } else { PIPELINE }) {
            match self.send_once(chunk, sending.together).await {
                Ok(answers) => {
                    let answers = answers.into_iter().zip(chunk);
                    results
                        .extend(answers.map(|(answer, entry)| answer.map_err(|error| refused(error, &entry.stream))));
                }
                Err(error) => results.extend(chunk.iter().map(|_| Err(lost(&error)))),
            }
        }
        results
    }

    /// Send entries, and send them again where the reply was lost and the server knows what it has.
    async fn send_once(&self, entries: &[Append], together: bool) -> Result<Vec<Result<EntryId>>> {
        let stamp = self.store.abilities().idempotent.then(|| self.next_stamp(entries.len()));
        let begun = self.clock.now_ms();
        let first = self.append(entries, stamp, together).await;
        let (Err(error), Some(_)) = (&first, stamp) else { return first };
        if !is_uncertain(error) {
            return first;
        }
        self.stamp.lock().generation += 1;
        let lost = self.clock.now_ms();
        let within = |since: u64, limit: Duration| u128::from(self.clock.now_ms() - since) < limit.as_millis();
        while within(lost, PATIENCE) {
            self.clock.sleep(PAUSE).await;
            let age = Duration::from_millis(self.clock.now_ms() - begun);
            match self.store.remembers(entries, age).await {
                Ok(true) => {}
                Err(error) if error.is_lost() => continue,
                Ok(false) | Err(_) => break,
            }
            match self.append(entries, stamp, together).await {
                Err(error) if error.is_lost() => {}
                answered => return answered,
            }
        }
        first
    }

    async fn append(&self, entries: &[Append], stamp: Option<Stamp>, together: bool) -> Result<Vec<Result<EntryId>>> {
        if together {
            self.store.append_together(entries, stamp).await
        } else {
            self.store.append(entries, stamp).await
        }
    }

    fn next_stamp(&self, entries: usize) -> Stamp {
        let mut next = self.stamp.lock();
        let stamp = *next;
        next.first += entries as u64;
        stamp
    }

    fn answer(&self, tickets: Vec<(u64, usize, bool)>, results: Vec<Result<EntryId>>) {
        let mut results = results.into_iter();
        for (ticket, entries, many) in tickets {
            let results = results.by_ref().take(entries).collect();
            self.events.post(Event::Published { ticket, results, many });
        }
    }

    /// Refuse new entries and return once all that were queued are answered; at once where nothing is being sent yet.
    pub async fn finish(&self) {
        self.queue.lock().closed = true;
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            match *self.state.lock() {
                State::NotStarted => return,
                State::Idle if self.queue.lock().jobs.is_empty() => return,
                State::Idle | State::Sending => {}
            }
            idle.await;
        }
    }
}

/// Refuse a value that no server takes: it would close the connection on everything that is under way there.
pub fn check_size(entry: &Append, limit: Option<u64>) -> Result<()> {
    let limit = limit.unwrap_or(MAX_VALUE);
    let longest = entry.fields.iter().map(|(_, value)| value.len() as u64).max().unwrap_or(0);
    if longest <= limit {
        return Ok(());
    }
    Err(Error::Publish {
        text: format!(
            "a message of {longest} bytes for the stream {:?} is too large: the server takes values of {limit} bytes at \
             most (proto-max-bulk-len); nothing was sent, store it elsewhere and publish where it is",
            entry.stream
        ),
        code: String::new(),
    })
}

/// Whether entries may have been added although no reply came.
fn is_uncertain(error: &Error) -> bool {
    matches!(error, Error::Lost(_) | Error::Protocol(_))
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

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
