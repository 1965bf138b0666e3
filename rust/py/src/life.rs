//! The life of a consumer: opened, started, read no more, handed back, flushed, closed.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ruststream_core::batch::Origin;
use ruststream_core::error::Error;
use ruststream_core::event::State;
use ruststream_core::pump;
use ruststream_core::settle::Settler;
use ruststream_core::subscription::Subscription;

use crate::client::RedisClient;
use crate::consumer::Consumer;
use crate::{control, runtime};

/// Check the server, create the group, move its cursor.
pub(crate) fn open<'py>(this: &Consumer, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let subscription = Arc::clone(&this.subscription);
    let work = async move { subscription.source.open(&subscription).await };
    control::future(py, &this.tasks, work, control::nothing)
}

/// Begin to read.
pub(crate) fn start(this: &Consumer) -> PyResult<()> {
    runtime::check()?;
    if std::mem::replace(&mut *this.started.lock(), true) {
        return Err(PyRuntimeError::new_err("the consumer was started before"));
    }
    let done = this.reader_done.clone();
    spawn(this, move |subscription| async move {
        let result = subscription.source.read(&subscription).await;
        done.cancel();
        if result.is_ok() {
            subscription.post_state(State::Stopped);
        }
        result
    });
    let reconnect = this.reconnect.clone();
    spawn(this, move |subscription| async move {
        Settler::run(subscription, reconnect).await;
        Ok(())
    });
    spawn(this, |subscription| async move {
        subscription.source.tend(&subscription).await;
        Ok(())
    });
    Ok(())
}

/// Read no more; returns once the last reply has been taken in.
pub(crate) fn stop_reading<'py>(this: &Consumer, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    this.subscription.stop.cancel();
    let done = this.reader_done.clone();
    let started = *this.started.lock();
    let work = async move {
        if started {
            done.cancelled().await;
        }
        Ok(())
    };
    control::future(py, &this.tasks, work, control::nothing)
}

/// Give back what was never started.
pub(crate) fn release<'py>(this: &Consumer, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    this.lanes.lock().clear();
    this.subscription.inbox.clear();
    this.asked.forget_failed_keys();
    this.subscription.source.withheld();
    // What is held back, or waits for its mark, is in neither queue.
    let tokens = this.subscription.withdraw(this.subscription.held.tokens());
    let subscription = Arc::clone(&this.subscription);
    let work = async move { if tokens.is_empty() { Ok(0) } else { subscription.release(tokens).await } };
    control::future(py, &this.tasks, work, control::number)
}

/// Return once nothing is held back from the lanes any more.
pub(crate) fn let_through<'py>(this: &Consumer, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let subscription = Arc::clone(&this.subscription);
    let work = async move {
        subscription.source.let_through(&subscription).await;
        Ok(())
    };
    control::future(py, &this.tasks, work, control::nothing)
}

/// Return once every outcome given so far has been answered by the server.
pub(crate) fn flush<'py>(this: &Consumer, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let subscription = Arc::clone(&this.subscription);
    let work = async move {
        subscription.settler.flush().await;
        Ok(())
    };
    control::future(py, &this.tasks, work, control::nothing)
}

/// Stop timers. What is unsettled stays pending.
pub(crate) fn close<'py>(this: &Consumer, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let has_read = *this.started.lock() && this.reader_done.is_cancelled();
    this.subscription.stop.cancel();
    this.subscription.closed.cancel();
    this.binding.lock().take();
    this.lanes.lock().clear();
    let subscription = Arc::clone(&this.subscription);
    let work = async move {
        if has_read {
            subscription.source.depart(&subscription).await;
        }
        Ok(())
    };
    control::future(py, &this.tasks, work, control::nothing)
}

/// Be gone as a killed process is: nothing more is sent, nothing is handed back, and what the group's other
/// subscriptions here know of its entries is forgotten.
pub(crate) fn abandon(this: &Consumer, client: &RedisClient) {
    let Origin { stream, group, .. } = &*this.subscription.origin;
    client.groups.forget(stream, group);
    this.group.leave(&this.subscription.held);
    this.subscription.stop.cancel();
    this.subscription.closed.cancel();
    this.binding.lock().take();
    this.lanes.lock().clear();
    this.subscription.inbox.clear();
    this.asked.forget_failed_keys();
}

/// Run a task of the subscription, which fails with it.
fn spawn<F, W>(this: &Consumer, work: F)
where
    F: FnOnce(Arc<Subscription>) -> W,
    W: Future<Output = Result<(), Error>> + Send + 'static,
{
    let subscription = Arc::clone(&this.subscription);
    let task = pump::caught(work(Arc::clone(&subscription)));
    this.tasks.spawn(async move {
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
