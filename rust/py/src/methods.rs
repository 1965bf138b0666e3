//! What Python calls on a `Consumer`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySequence, PyTuple};
use ruststream_core::batch::Origin;
use ruststream_core::event::Event;
use ruststream_core::held::Held;
use ruststream_core::letter::Reason;
use ruststream_core::stream::{Cap, Mode, StreamSettings, StreamSource};
use ruststream_core::subscription::{Parts, Subscription};
use tokio_util::sync::CancellationToken;

use crate::append::{bound, trim};
use crate::batch_context::BatchContext;
use crate::batch_drive;
use crate::binding::{BatchParts, Binding, DirectParts};
use crate::client::{RedisClient, seconds};
use crate::consumer::Consumer;
use crate::context::Context;
use crate::engine::Engine;
use crate::entry_id::EntryId;
use crate::marks::{LoopMarks, MarkOptions};
use crate::{drive, errors, life, marks, outcomes, runtime, settle};

/// What a handler was called with.
#[derive(FromPyObject)]
enum Ended<'py> {
    One(Bound<'py, Context>),
    Many(Bound<'py, BatchContext>),
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
        direct: Option<DirectParts>,
        batch: Option<BatchParts>,
    ) -> PyResult<()> {
        *self.binding.lock() = Some(Arc::new(Binding::new(py, owner, invoke, key_of, direct, batch)?));
        Ok(())
    }

    /// Check the server, create the group, move its cursor.
    fn open<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        life::open(self, py)
    }

    /// Begin to read.
    fn start(&self) -> PyResult<()> {
        life::start(self)
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
        settle::settle(self, py, ctx.get(), (outcome, delay, reason, error))
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
        settle::reply(self, py, ctx.get(), stream, payload, headers, trim(maxlen, minid, approximate))
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
        life::stop_reading(self, py)
    }

    /// Keep no head of a key any more: each is retried as where no order is kept, and its key goes on.
    fn unkeep(&self) {
        self.subscription.unkeep();
        self.lanes.lock().let_go();
    }

    /// Give back what was never started.
    fn release<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        life::release(self, py)
    }

    /// Return once nothing is held back from the lanes any more.
    fn let_through<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        life::let_through(self, py)
    }

    /// Return once every outcome given so far has been answered by the server.
    fn flush<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        life::flush(self, py)
    }

    /// Stop timers. What is unsettled stays pending.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        life::close(self, py)
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
        life::abandon(self, client);
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
        self.counts(py)
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
        match self.binding.try_lock().as_deref() {
            Some(Some(binding)) => binding.traverse(&visit),
            Some(None) | None => Ok(()),
        }
    }

    fn __clear__(&self) {
        let binding = self.binding.lock().take();
        drop(binding);
    }
}

/// Outcomes worth a command: at most 1.5 acks per read, so that reads and acks together stay under 2.5 commands per
/// `count` entries.
fn gather(count: usize) -> usize {
    count * 4 / 5
}
