//! `Consumer`: one subscription as the loop thread uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySequence, PyTuple};
use ruststream_core::backoff::{Backoff, growing};
use ruststream_core::batch::{Mark, Origin};
use ruststream_core::entry::KEYLESS;
use ruststream_core::error::Error;
use ruststream_core::event::{Event, State};
use ruststream_core::gather::Gather;
use ruststream_core::header;
use ruststream_core::held::Held;
use ruststream_core::lanes::Lanes;
use ruststream_core::letter::Reason;
use ruststream_core::publish::check_size;
use ruststream_core::pump;
use ruststream_core::settle::{Outcome, Settler};
use ruststream_core::store::{Append, Bound as Within};
use ruststream_core::stream::{Cap, Group, Marks, Mode, StreamSettings, StreamSource};
use ruststream_core::subscription::{Parts, Settled, Subscription};
use ruststream_core::token::Token;
use tokio_util::sync::CancellationToken;

use crate::batch_context::BatchContext;
use crate::batch_drive::{self, Batching};
use crate::client::{self, RedisClient, seconds};
use crate::context::Context;
use crate::drive::{self, Binding, Direct, Stepper};
use crate::engine::Engine;
use crate::entry_id::EntryId;
use crate::marks::{LoopMarks, MarkOptions};
use crate::queue::Queued;
use crate::tasks::Tasks;
use crate::{control, errors, marks, outcomes, runtime};

/// Of a handler that takes batches: entries in a full one, seconds to wait for these, `extract` and `decode`.
type BatchParts = (usize, f64, Py<PyAny>, Option<Py<PyAny>>);

/// What a handler was called with.
#[derive(FromPyObject)]
enum Ended<'py> {
    One(Bound<'py, Context>),
    Many(Bound<'py, BatchContext>),
}

/// One subscription.
#[pyclass(frozen, module = "ruststream._core")]
pub(crate) struct Consumer {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) lanes: Mutex<Lanes<Queued>>,
    pub(crate) binding: Mutex<Option<Arc<Binding>>>,
    /// Kept from one drive to the next, so that gathering acks allocates nothing.
    pub(crate) acks: Mutex<Vec<Token>>,
    pub(crate) by_key: bool,
    /// Later entries of a key wait while its head is being retried.
    strict: bool,
    /// The reader waits for room for so many entries.
    reads_at: usize,
    dead_letter: Option<Arc<str>>,
    group: Arc<Group>,
    /// The next batch need not be full: a test has nothing else to do.
    pub(crate) hurry: AtomicBool,
    tasks: Tasks,
    /// The longest value that the server takes.
    max_value: Option<u64>,
    reconnect: Backoff,
    /// Cancelled once the reader has returned.
    reader_done: CancellationToken,
    started: Mutex<bool>,
    pub(crate) marks: Option<Arc<Marks>>,
    /// What is asked of the user's store, or of the function that computes keys.
    pub(crate) asked: Arc<LoopMarks>,
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (engine, client, *, name, stream, group, consumer, mode, min_idle, count, block, start_id,
                        start_at, create_group, recreate_group, max_in_flight, by_key, renew_stalled, delay_key,
                        fixed_consumer, strict, forget_after, trim, workers, attempts_key, max_attempts, on_exhausted,
                        dead_letter=None, marks=None))]
    #[expect(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "keyword arguments of one caller")]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        client: &RedisClient,
        name: String,
        stream: String,
        group: String,
        consumer: String,
        mode: &str,
        min_idle: Option<f64>,
        count: usize,
        block: f64,
        start_id: String,
        start_at: Option<String>,
        create_group: bool,
        recreate_group: bool,
        max_in_flight: usize,
        by_key: bool,
        renew_stalled: Option<f64>,
        delay_key: String,
        fixed_consumer: bool,
        strict: bool,
        forget_after: f64,
        trim: Option<(String, f64)>,
        workers: usize,
        attempts_key: String,
        max_attempts: Option<u32>,
        on_exhausted: u8,
        dead_letter: Option<&str>,
        marks: Option<MarkOptions<'_>>,
    ) -> PyResult<Self> {
        let mode = match mode {
            "new" => Mode::New,
            "reclaim" => Mode::Reclaim,
            "claiming" => Mode::Claiming,
            "recovering" => Mode::Recovering,
            other => return Err(errors::config(py, &format!("there is no read mode {other:?}"))),
        };
        let trim = trim.map(|(policy, figure)| bound(py, &policy, figure)).transpose()?;
        let dead_letter: Option<Arc<str>> = dead_letter.map(Into::into);
        let shared = client.groups.get(&stream, &group);
        let settings = StreamSettings {
            mode,
            min_idle: min_idle.map(seconds),
            count: count.max(1),
            block: seconds(block),
            start_id,
            start_at,
            create_group,
            recreate_group,
            by_key,
            renew_stalled: renew_stalled.map(seconds),
            delay_key,
            dead_letter: dead_letter.clone(),
            fixed_consumer,
            forget_after: seconds(forget_after),
            trim,
            reconnect: client.reconnect.clone(),
            cap: match max_attempts {
                Some(attempts) => {
                    let letter = || outcomes::letter(dead_letter.as_ref(), Reason::MaxAttempts.as_str(), None);
                    let exhausted = outcomes::outcome(on_exhausted, None, letter)?;
                    Some(Cap { attempts, exhausted, key: attempts_key, workers: workers.max(1) })
                }
                None => None,
            },
        };
        let id = engine.number();
        let max_in_flight = max_in_flight.max(1);
        let asked = Arc::new(LoopMarks::new(id, Arc::clone(&engine.bell) as _));
        let most_waiting = (mode != Mode::New).then_some(max_in_flight / 2);
        let marks = marks.map(|options| Arc::new(asked.marks(options, most_waiting)));
        let source = StreamSource::new(settings, Arc::clone(&client.store), Arc::clone(&shared)).marking(marks.clone());
        let origin = Origin { subscription: name, stream, group, consumer };
        let subscription = Subscription::new(Parts {
            id,
            origin: Arc::new(origin),
            source: Arc::new(source),
            held: Arc::new(Held::default()),
            max_in_flight,
            gather: gather(count),
            events: Arc::clone(&engine.bell) as _,
            clock: Arc::clone(&client.clock),
        });
        Ok(Self {
            subscription,
            lanes: Mutex::default(),
            binding: Mutex::default(),
            acks: Mutex::default(),
            by_key,
            strict,
            reads_at: count.max(1).div_ceil(2),
            dead_letter,
            group: shared,
            hurry: AtomicBool::new(false),
            tasks: client.tasks.clone(),
            max_value: client.store.abilities().max_value,
            reconnect: client.reconnect.clone(),
            reader_done: CancellationToken::new(),
            started: Mutex::new(false),
            marks,
            asked,
        })
    }

    /// The number of this consumer's events.
    #[getter]
    fn id(&self) -> usize {
        self.subscription.id
    }

    /// Give the subscription its Python side.
    #[pyo3(signature = (owner, invoke, key_of=None, direct=None, batch=None))]
    fn bind(
        &self,
        py: Python<'_>,
        owner: Py<PyAny>,
        invoke: Py<PyAny>,
        key_of: Option<Py<PyAny>>,
        direct: Option<(Py<PyAny>, Py<PyAny>, bool)>,
        batch: Option<BatchParts>,
    ) -> PyResult<()> {
        let stepper = Py::new(py, Stepper::default())?;
        let binding = Binding {
            owner,
            invoke,
            key_of,
            direct: direct.map(|(decode, handler, with_context)| Direct { decode, handler, with_context }),
            batching: batch.map(|(most, wait, extract, decode)| Batching {
                gather: Mutex::new(Gather::new(most, seconds(wait))),
                decode,
                extract,
            }),
            copy_context: py.import("contextvars")?.getattr("copy_context")?.unbind(),
            step: stepper.bind(py).getattr("step")?.unbind(),
            stepper,
        };
        *self.binding.lock() = Some(Arc::new(binding));
        Ok(())
    }

    /// Check the server, create the group, move its cursor.
    fn open<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let subscription = Arc::clone(&self.subscription);
        let work = async move { subscription.source.open(&subscription).await };
        control::future(py, &self.tasks, work, control::nothing)
    }

    /// Begin to read.
    fn start(&self) -> PyResult<()> {
        runtime::check()?;
        if std::mem::replace(&mut *self.started.lock(), true) {
            return Err(PyRuntimeError::new_err("the consumer was started before"));
        }
        let done = self.reader_done.clone();
        self.spawn(move |subscription| async move {
            let result = subscription.source.read(&subscription).await;
            done.cancel();
            if result.is_ok() {
                subscription.post_state(State::Stopped);
            }
            result
        });
        let reconnect = self.reconnect.clone();
        self.spawn(move |subscription| async move {
            Settler::run(subscription, reconnect).await;
            Ok(())
        });
        self.spawn(|subscription| async move {
            subscription.source.tend(&subscription).await;
            Ok(())
        });
        Ok(())
    }

    /// Run ready deliveries until one needs Python's care.
    fn drive(slf: &Bound<'_, Self>, cancelling: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        drive::drive(slf, cancelling)
    }

    /// Whether a delivery could be taken at once. If not, the next batch rings the bell.
    fn ready(&self) -> bool {
        self.lanes.lock().has_ready() || self.subscription.inbox.has_any()
    }

    /// Give one delivery its outcome. False: it is not ours any more.
    #[pyo3(signature = (ctx, outcome, delay=None, reason=None, error=None))]
    fn settle(
        &self,
        py: Python<'_>,
        ctx: &Bound<'_, Context>,
        outcome: u8,
        delay: Option<f64>,
        reason: Option<&str>,
        error: Option<&[u8]>,
    ) -> PyResult<bool> {
        let (token, partition) = (&ctx.get().token, ctx.get().partition);
        let letter = || outcomes::letter(self.dead_letter.as_ref(), reason.unwrap_or_default(), error);
        match outcomes::outcome(outcome, delay, letter)? {
            // At a stop nothing is kept: who goes on with the key is another consumer.
            Outcome::Retry(delay) if self.strict && partition != KEYLESS && !self.subscription.stop.is_cancelled() => {
                let after = delay.unwrap_or_else(|| growing(token.delivery_count()));
                // Under the lock, so that the head does not come back before its partition is kept for it.
                let mut lanes = self.lanes.lock();
                let settled = self.subscription.keep(token, after);
                if settled == Settled::Taken {
                    lanes.keep(partition, token.id());
                }
                drop(lanes);
                outcomes::answered(py, token, settled)
            }
            outcome => self.give(py, token, outcome),
        }
    }

    /// Ack one delivery and publish its reply in the same step. False: it is not ours any more.
    #[pyo3(signature = (ctx, stream, payload, headers, maxlen=None, minid=None, approximate=true))]
    #[expect(clippy::too_many_arguments, reason = "those of `RedisClient.publish`, and the delivery")]
    fn reply(
        &self,
        py: Python<'_>,
        ctx: &Bound<'_, Context>,
        stream: &str,
        payload: &[u8],
        headers: &Bound<'_, PySequence>,
        maxlen: Option<u64>,
        minid: Option<String>,
        approximate: bool,
    ) -> PyResult<bool> {
        let token = &ctx.get().token;
        let mut headers = client::pairs(headers)?;
        if !headers.iter().any(|(name, _)| name == header::CORRELATION_ID) {
            headers.push((Bytes::from_static(header::CORRELATION_ID), token.correlation_id().into()));
        }
        let reply = Append {
            stream: stream.into(),
            fields: client::fields(payload, &headers, None),
            trim: client::trim(maxlen, minid, approximate),
        };
        check_size(&reply, self.max_value).map_err(|error| errors::to_py(py, &error))?;
        self.give(py, token, Outcome::Reply(Arc::new(reply)))
    }

    /// Seconds of the core's clock, from an arbitrary beginning.
    fn now(&self) -> f64 {
        self.subscription.clock.now_seconds()
    }

    /// Ask for an `ALARM` event in so many seconds of the core's clock.
    fn alarm(&self, after: f64) -> PyResult<()> {
        runtime::check()?;
        let consumer = self.subscription.id;
        self.ring_after(seconds(after), Event::Alarm { consumer });
        Ok(())
    }

    /// Attempts of this delivery's entry, this one included.
    fn attempts(&self, ctx: &Bound<'_, Context>) -> u32 {
        self.subscription.source.attempts(&ctx.get().token)
    }

    /// Ask for an `ACKED` event once this delivery's outcome is answered.
    fn watch(&self, ctx: &Bound<'_, Context>) {
        self.subscription.watch(ctx.get().token.id());
    }

    /// Acknowledge every element of a batch that was not settled yet.
    fn ack_batch(&self, batch: &Bound<'_, BatchContext>) {
        batch_drive::ack(self, batch.get());
    }

    /// The handler of this delivery, or of this batch, has ended: the next of its partitions may start.
    fn finish(&self, ctx: Ended<'_>) {
        match ctx {
            Ended::One(ctx) => self.lanes.lock().finish(ctx.get().partition),
            Ended::Many(batch) => self.finish_all(&batch.get().partitions),
        }
    }

    /// Read no more; returns once the last reply has been taken in.
    fn stop_reading<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.subscription.stop.cancel();
        let done = self.reader_done.clone();
        let started = *self.started.lock();
        let work = async move {
            if started {
                done.cancelled().await;
            }
            Ok(())
        };
        control::future(py, &self.tasks, work, control::nothing)
    }

    /// Keep no head of a key any more: each is retried as where no order is kept, and its key goes on.
    fn unkeep(&self) {
        self.subscription.unkeep();
        self.lanes.lock().let_go();
    }

    /// Give back what was never started.
    fn release<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.lanes.lock().clear();
        self.subscription.inbox.clear();
        self.asked.forget_failed_keys();
        self.subscription.source.withheld();
        // What is held back, or waits for its mark, is in neither queue.
        let tokens = self.subscription.withdraw(self.subscription.held.tokens());
        let subscription = Arc::clone(&self.subscription);
        let work = async move { if tokens.is_empty() { Ok(0) } else { subscription.release(tokens).await } };
        control::future(py, &self.tasks, work, control::number)
    }

    /// Return once nothing is held back from the lanes any more.
    fn let_through<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let subscription = Arc::clone(&self.subscription);
        let work = async move {
            subscription.source.let_through(&subscription).await;
            Ok(())
        };
        control::future(py, &self.tasks, work, control::nothing)
    }

    /// Return once every outcome given so far has been answered by the server.
    fn flush<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let subscription = Arc::clone(&self.subscription);
        let work = async move {
            subscription.settler.flush().await;
            Ok(())
        };
        control::future(py, &self.tasks, work, control::nothing)
    }

    /// Stop timers. What is unsettled stays pending.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let has_read = *self.started.lock() && self.reader_done.is_cancelled();
        self.subscription.stop.cancel();
        self.subscription.closed.cancel();
        self.binding.lock().take();
        self.lanes.lock().clear();
        let subscription = Arc::clone(&self.subscription);
        let work = async move {
            if has_read {
                subscription.source.depart(&subscription).await;
            }
            Ok(())
        };
        control::future(py, &self.tasks, work, control::nothing)
    }

    /// Hand the next batch over as it is, without waiting for it to fill. False: nothing waits.
    fn hurry(&self) -> bool {
        let waits = self.lanes.lock().has_ready();
        if waits {
            self.hurry.store(true, Ordering::Release);
            self.subscription.events.post(Event::Ready { consumer: self.subscription.id });
        }
        waits
    }

    /// Be gone as a killed process is: nothing more is sent, nothing is handed back, and what the group's other
    /// subscriptions here know of its entries is forgotten.
    fn abandon(&self, client: &RedisClient) {
        let Origin { stream, group, .. } = &*self.subscription.origin;
        client.groups.forget(stream, group);
        self.group.leave(&self.subscription.held);
        self.subscription.stop.cancel();
        self.subscription.closed.cancel();
        self.binding.lock().take();
        self.lanes.lock().clear();
        self.subscription.inbox.clear();
        self.asked.forget_failed_keys();
    }

    /// What was asked under this ticket: `None` where nobody waits for it any more.
    fn asked<'py>(slf: &Bound<'py, Self>, ticket: u64) -> PyResult<Option<Bound<'py, PyTuple>>> {
        slf.get().asked.what(ticket).map(|asked| marks::question(slf, asked)).transpose()
    }

    /// Answer it: keys or exceptions for `keys`, states or exceptions for everything else.
    fn answer(&self, ticket: u64, answers: &Bound<'_, PyList>) -> PyResult<()> {
        self.asked.answer(ticket, answers)
    }

    /// Counters and gauges.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, count) in self.subscription.stats.snapshot() {
            dict.set_item(name, count)?;
        }
        let marks = self.subscription.held.tokens();
        let count = |mark: Mark| marks.iter().filter(|token| token.mark() == mark).count();
        let waiting = self.marks.as_ref().map_or(0, |marks| marks.waiting());
        dict.set_item("queued", count(Mark::Queued))?;
        dict.set_item("waiting", waiting)?;
        dict.set_item("running", count(Mark::Running))?;
        dict.set_item("unsettled", self.subscription.settler.unanswered())?;
        dict.set_item("in_flight", self.subscription.credits.used())?;
        Ok(dict)
    }

    /// Ids of the entries that are not done, oldest first.
    fn unsettled<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let tokens = self.subscription.held.tokens();
        PyList::new(py, tokens.iter().map(|token| EntryId(token.id())))
    }

    /// How many entries it leaves pending, as far as this process knows.
    fn left_pending(&self) -> usize {
        self.subscription.left_pending()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A collection may interrupt whoever holds the lock on this very thread.
        if let Some(binding) = self.binding.try_lock()
            && let Some(binding) = &*binding
        {
            visit.call(&binding.owner)?;
            visit.call(&binding.invoke)?;
            if let Some(direct) = &binding.direct {
                visit.call(&direct.handler)?;
            }
            if let Some(batching) = &binding.batching {
                visit.call(&batching.extract)?;
            }
            if let Some(key_of) = &binding.key_of {
                visit.call(key_of)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let binding = self.binding.lock().take();
        drop(binding);
    }
}

impl Consumer {
    fn give(&self, py: Python<'_>, token: &Token, outcome: Outcome) -> PyResult<bool> {
        outcomes::answered(py, token, self.subscription.settle(token, outcome))
    }

    fn spawn<F, W>(&self, work: F)
    where
        F: FnOnce(Arc<Subscription>) -> W,
        W: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let subscription = Arc::clone(&self.subscription);
        let task = pump::caught(work(Arc::clone(&subscription)));
        self.tasks.spawn(async move {
            let failed = match task.await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                // A panic is a fault of ours: the subscription ends with an error instead of going deaf.
                Err(panic) => {
                    let text = pump::panic_text(panic.as_ref());
                    Error::Subscribe(format!("{}: internal error: {text}", subscription.describe()))
                }
            };
            subscription.post_state(State::Failed(failed));
        });
    }

    /// Post an event after a wait, unless the subscription ends before.
    pub(crate) fn ring_after(&self, wait: Duration, event: Event) {
        let subscription = Arc::clone(&self.subscription);
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = subscription.closed.cancelled() => {}
                () = subscription.clock.sleep(wait) => subscription.events.post(event),
            }
        });
    }

    /// The Python object that serves what `Context` leaves to Python.
    pub(crate) fn owner<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let binding = self.binding.lock();
        match &*binding {
            Some(binding) => Ok(binding.owner.bind(py).clone()),
            None => Err(errors::to_py(py, &Error::ShutDown("the subscription of this entry"))),
        }
    }

    /// Free the partitions that a batch had in its hands.
    pub(crate) fn finish_all(&self, partitions: &[u16]) {
        let mut lanes = self.lanes.lock();
        for partition in partitions {
            lanes.finish(*partition);
        }
    }

    /// Whether no entry will come until some of those that are here are settled.
    pub(crate) fn no_more_comes(&self) -> bool {
        self.subscription.stop.is_cancelled() || !self.subscription.credits.has(self.reads_at)
    }
}

/// What a stream is kept within, as Python says it: seconds, or entries.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number that was checked")]
fn bound(py: Python<'_>, policy: &str, figure: f64) -> PyResult<Within> {
    match policy {
        "acked" => Ok(Within::Acked),
        "max_length" => Ok(Within::Length(figure as u64)),
        "max_age" => Ok(Within::Age(seconds(figure))),
        other => Err(errors::config(py, &format!("there is no way to trim {other:?}"))),
    }
}

/// Outcomes worth a command: at most 1.5 acks per read, so that reads and acks together stay under 2.5 commands per
/// `count` entries.
fn gather(count: usize) -> usize {
    count * 4 / 5
}
