//! A server whose clock is moved by hand, the processes that read it, and what they log.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ruststream_core::backoff::Backoff;
use ruststream_core::batch::Origin;
use ruststream_core::clock::Clock;
use ruststream_core::entry::EntryId;
use ruststream_core::event::{Event, Events};
use ruststream_core::model::{AddId, GroupRead, Keyspace, Model, ModelStore, Position};
use ruststream_core::store::{Bound, StreamStore};
use ruststream_core::stream::{Groups, Mode, StreamSettings, StreamSource};
use ruststream_core::subscription::{Parts, Subscription};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// What the tests set as the time after which a consumer is taken for dead.
pub(crate) const AFTER: Duration = Duration::from_secs(300);
/// The consumer of a process that lives.
pub(crate) const ALIVE: &str = "ruststream-host-2-0badc0de";
const START: u64 = 1_000_000;

/// What was logged.
#[derive(Debug, Default)]
pub(crate) struct Log(pub(crate) Mutex<Vec<String>>);

impl Events for Log {
    fn post(&self, event: Event) {
        if let Event::Log { message, .. } = event {
            self.0.lock().push(message);
        }
    }
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }
}

/// A server, and the processes that read it.
pub(crate) struct World {
    pub(crate) clock: Arc<Clock>,
    model: Arc<Model>,
    pub(crate) log: Arc<Log>,
}

/// One process: a client of its own, which knows nothing of the others.
pub(crate) struct Process {
    store: Arc<ModelStore>,
    groups: Groups,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(Clock::stopped(START));
        let model = Model::new(Arc::clone(&clock));
        let world = Self { clock, model, log: Arc::default() };
        world.run(|keys| keys.xgroup_create("s", "g", Position::After(EntryId::ZERO), true, None));
        world
    }

    pub(crate) fn run<T>(&self, commands: impl FnOnce(&mut Keyspace) -> ruststream_core::error::Result<T>) -> T {
        match self.model.run(commands) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn process(&self) -> Process {
        Process { store: Arc::new(ModelStore::new(Arc::clone(&self.model))), groups: Groups::default() }
    }

    /// A subscription whose timers run; it reads nothing.
    pub(crate) async fn subscribe(
        &self,
        process: &Process,
        group: &str,
        consumer: &str,
        trim: Option<Bound>,
    ) -> Arc<Subscription> {
        let settings = StreamSettings {
            mode: Mode::Recovering,
            min_idle: Some(30 * SECOND),
            count: 10,
            block: 2 * SECOND,
            start_id: "0".into(),
            start_at: None,
            create_group: true,
            recreate_group: true,
            by_key: false,
            renew_stalled: None,
            delay_key: format!("{{s}}:{group}:delayed"),
            dead_letter: None,
            fixed_consumer: consumer == "fixed",
            forget_after: AFTER,
            trim,
            cap: None,
            reconnect: Backoff::new(SECOND / 20, SECOND),
        };
        let store: Arc<ModelStore> = Arc::clone(&process.store);
        assert!(store.connect().await.is_ok());
        let source = StreamSource::new(settings, store, process.groups.get("s", group));
        let [subscription, stream, group, consumer] = ["test", "s", group, consumer].map(str::to_owned);
        let subscription = Subscription::new(Parts {
            id: 1,
            origin: Arc::new(Origin { subscription, stream, group, consumer }),
            source: Arc::new(source),
            held: Arc::default(),
            max_in_flight: 100,
            gather: 1,
            events: Arc::clone(&self.log) as _,
            clock: Arc::clone(&self.clock),
        });
        let opened = subscription.source.open(&subscription).await;
        assert!(opened.is_ok(), "{opened:?}");
        let tended = Arc::clone(&subscription);
        tokio::spawn(async move { tended.source.tend(&tended).await });
        rest().await;
        subscription
    }

    /// Let time pass, a second at most at once: what falls due on the way is done then, and who dozes looks.
    pub(crate) async fn pass(&self, duration: Duration) {
        let mut left = duration;
        while !left.is_zero() {
            let piece = left.min(SECOND);
            left -= self.clock.step(piece).unwrap_or(piece);
            rest().await;
        }
    }

    pub(crate) fn read(&self, group: &str, consumer: &str, count: usize) -> Vec<EntryId> {
        let read = GroupRead { count, ..GroupRead::new("s", group, consumer) };
        let read = self.run(|keys| keys.xreadgroup(&read)).unwrap_or_default();
        read.iter().map(|delivery| delivery.id).collect()
    }

    pub(crate) fn add(&self, count: usize) {
        for _ in 0..count {
            self.run(|keys| keys.xadd("s", AddId::Auto, &[("_payload", "body")], None));
        }
    }

    pub(crate) fn consumers(&self, group: &str) -> Vec<String> {
        self.run(|keys| keys.xinfo_consumers("s", group)).into_iter().map(|row| row.name).collect()
    }

    pub(crate) fn length(&self) -> usize {
        self.run(|keys| keys.xlen("s"))
    }

    pub(crate) fn logged(&self, part: &str) -> usize {
        self.log.0.lock().iter().filter(|line| line.contains(part)).count()
    }
}

pub(crate) async fn rest() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}
