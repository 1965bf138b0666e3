//! Runs tasks on the thread that says so, one after another in the order they became ready, until none is.
//!
//! In place of a runtime's threads: with a clock that stands still, the same calls lead to the same order of everything,
//! and whether anything is left to do can be told. Tasks may only wait for each other, for this thread, and for a stopped
//! clock; nothing here drives sockets or timers.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ready tasks, and whom to tell when there is one.
pub struct Pump {
    ready: Mutex<VecDeque<Arc<Task>>>,
    ring: Box<dyn Fn() + Send + Sync>,
}

struct Task {
    work: Mutex<Option<Work>>,
    queued: AtomicBool,
    pump: Weak<Pump>,
}

impl std::fmt::Debug for Pump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pump").field("ready", &self.ready.lock().len()).finish_non_exhaustive()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(pump) = self.pump.upgrade()
        {
            pump.push(self);
        }
    }
}

impl Pump {
    /// One without tasks. `ring` is called when the first task gets ready: then it is time to `run`.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { ready: Mutex::default(), ring: Box::new(ring) })
    }

    /// Take on a task. It runs when the pump does.
    pub fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let work = Mutex::new(Some(Box::pin(work) as Work));
        self.push(Arc::new(Task { work, queued: AtomicBool::new(true), pump: Arc::downgrade(self) }));
    }

    fn push(&self, task: Arc<Task>) {
        let first = {
            let mut ready = self.ready.lock();
            ready.push_back(task);
            ready.len() == 1
        };
        if first {
            (self.ring)();
        }
    }

    /// Whether a task is ready.
    pub fn is_busy(&self) -> bool {
        !self.ready.lock().is_empty()
    }

    /// Run what is ready, and what gets ready by that, in `limit` steps at most. Returns how many were taken.
    pub fn run(&self, limit: usize) -> usize {
        for taken in 0..limit {
            let Some(task) = self.ready.lock().pop_front() else {
                return taken;
            };
            task.step();
        }
        if self.is_busy() {
            (self.ring)();
        }
        limit
    }
}

impl Task {
    fn step(self: Arc<Self>) {
        self.queued.store(false, Ordering::Release);
        let Some(mut work) = self.work.lock().take() else {
            return;
        };
        let waker = Waker::from(Arc::clone(&self));
        if work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            *self.work.lock() = Some(work);
        }
    }
}

/// What work comes to, or what it panicked with.
pub async fn caught<F: Future>(work: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// The text of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    fn pump() -> (Arc<Pump>, Arc<AtomicUsize>) {
        let heard = Arc::new(AtomicUsize::new(0));
        let rings = Arc::clone(&heard);
        let count = move || {
            rings.fetch_add(1, Ordering::AcqRel);
        };
        (Pump::new(count), heard)
    }

    #[test]
    fn tasks_run_in_the_order_they_got_ready_until_none_is() {
        let (pump, heard) = pump();
        let said = Arc::new(Mutex::new(Vec::new()));
        let go = Arc::new(Notify::new());
        for number in 0..3 {
            let (said, go) = (Arc::clone(&said), Arc::clone(&go));
            pump.spawn(async move {
                said.lock().push(number);
                go.notified().await;
                said.lock().push(10 + number);
                go.notify_one();
            });
        }
        assert_eq!((pump.run(100), said.lock().clone(), pump.is_busy()), (3, vec![0, 1, 2], false));
        go.notify_one();
        assert!(pump.is_busy());
        assert_eq!((pump.run(100), said.lock().clone()), (3, vec![0, 1, 2, 10, 11, 12]));
        assert_eq!((heard.load(Ordering::Acquire) >= 2, pump.run(100)), (true, 0));
    }

    #[test]
    fn one_that_is_never_done_ends_with_the_limit_and_rings_again() {
        let (pump, heard) = pump();
        pump.spawn(std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        assert_eq!((pump.run(7), pump.is_busy()), (7, true));
        assert!(heard.load(Ordering::Acquire) >= 2);
    }

    #[test]
    fn a_panic_is_caught_and_says_what_it_said() {
        let (pump, _) = pump();
        let said = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&said);
        pump.spawn(async move {
            let failed = caught(async { panic!("no {}", 1) }).await;
            *heard.lock() = failed.map_or_else(|panic| panic_text(panic.as_ref()).into(), |()| String::new());
        });
        pump.run(10);
        assert_eq!(*said.lock(), "no 1");
    }
}
