//! One bell per loop: a descriptor that becomes readable, and the events behind it.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ruststream_core::event::{Event, Events};

/// Log lines beyond this many waiting events are dropped: a loop that does not turn must not fill the memory.
const MAX_WAITING: usize = 10_000;

/// The bell of one loop.
#[derive(Debug)]
pub(crate) struct Doorbell {
    listen: OwnedFd,
    /// The other end of a pipe, where there is no eventfd.
    strike: Option<OwnedFd>,
    rung: AtomicBool,
    events: Mutex<VecDeque<Event>>,
    /// Since when a ring of `stalled` is unanswered.
    asked: Mutex<Option<Instant>>,
}

impl Doorbell {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (listen, strike) = descriptors()?;
        Ok(Self { listen, strike, rung: AtomicBool::new(false), events: Mutex::default(), asked: Mutex::default() })
    }

    pub(crate) fn fileno(&self) -> RawFd {
        self.listen.as_raw_fd()
    }

    /// Silence the bell, then take what happened: what comes after the silence rings again.
    pub(crate) fn drain(&self) -> VecDeque<Event> {
        let mut buffer = [0u8; 64];
        // Nothing to read means that it did not ring, which is as good.
        let _ = rustix::io::read(&self.listen, &mut buffer);
        self.rung.store(false, Ordering::Release);
        *self.asked.lock() = None;
        std::mem::take(&mut *self.events.lock())
    }

    /// Whether something waits to be drained.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.events.lock().is_empty()
    }

    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // A full pipe means that it has rung already.
            let _ = rustix::io::write(self.strike.as_ref().unwrap_or(&self.listen), &1u64.to_ne_bytes());
        }
    }
}

impl Events for Doorbell {
    fn post(&self, event: Event) {
        {
            let mut events = self.events.lock();
            if events.len() >= MAX_WAITING && matches!(event, Event::Log { .. }) {
                return;
            }
            events.push_back(event);
        }
        self.ring();
    }

    fn stalled(&self) -> Duration {
        let mut asked = self.asked.lock();
        if let Some(since) = *asked {
            return since.elapsed();
        }
        *asked = Some(Instant::now());
        drop(asked);
        self.ring();
        Duration::ZERO
    }
}

#[cfg(target_os = "linux")]
fn descriptors() -> std::io::Result<(OwnedFd, Option<OwnedFd>)> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok((eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, None))
}

#[cfg(not(target_os = "linux"))]
fn descriptors() -> std::io::Result<(OwnedFd, Option<OwnedFd>)> {
    let (listen, strike) = rustix::pipe::pipe()?;
    for end in [&listen, &strike] {
        rustix::io::ioctl_fionbio(end, true)?;
        rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok((listen, Some(strike)))
}
