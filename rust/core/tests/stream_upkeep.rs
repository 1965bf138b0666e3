//! What a subscription's slow timers do to its stream and its group, on the model and a clock that is moved by hand:
//! consumers of ended processes, and trimming.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ruststream_core::backoff::Backoff;
use ruststream_core::batch::Origin;
use ruststream_core::clock::Clock;
use ruststream_core::entry::EntryId;
use ruststream_core::event::{Event, Events};
use ruststream_core::model::{AddId, GroupRead, Keyspace, Model, ModelStore, Position, Range};
use ruststream_core::store::{Bound, StreamStore};
use ruststream_core::stream::{Groups, Mode, StreamSettings, StreamSource};
use ruststream_core::subscription::{Parts, Subscription};

const SECOND: Duration = Duration::from_secs(1);
/// What the tests set as the time after which a consumer is taken for dead.
const AFTER: Duration = Duration::from_secs(300);
const START: u64 = 1_000_000;

/// What was logged.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<String>>);

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
struct World {
    clock: Arc<Clock>,
    model: Arc<Model>,
    log: Arc<Log>,
}

/// One process: a client of its own, which knows nothing of the others.
struct Process {
    store: Arc<ModelStore>,
    groups: Groups,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(Clock::stopped(START));
        let model = Model::new(Arc::clone(&clock));
        let world = Self { clock, model, log: Arc::default() };
        world.run(|keys| keys.xgroup_create("s", "g", Position::After(EntryId::ZERO), true, None));
        world
    }

    fn run<T>(&self, commands: impl FnOnce(&mut Keyspace) -> ruststream_core::error::Result<T>) -> T {
        match self.model.run(commands) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }

    fn process(&self) -> Process {
        Process { store: Arc::new(ModelStore::new(Arc::clone(&self.model))), groups: Groups::default() }
    }

    /// A subscription whose timers run; it reads nothing.
    async fn subscribe(
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
    async fn pass(&self, duration: Duration) {
        let mut left = duration;
        while !left.is_zero() {
            let piece = left.min(SECOND);
            left -= self.clock.step(piece).unwrap_or(piece);
            rest().await;
        }
    }

    fn read(&self, group: &str, consumer: &str, count: usize) -> Vec<EntryId> {
        let read = GroupRead { count, ..GroupRead::new("s", group, consumer) };
        let read = self.run(|keys| keys.xreadgroup(&read)).unwrap_or_default();
        read.iter().map(|delivery| delivery.id).collect()
    }

    fn add(&self, count: usize) {
        for _ in 0..count {
            self.run(|keys| keys.xadd("s", AddId::Auto, &[("_payload", "body")], None));
        }
    }

    fn consumers(&self, group: &str) -> Vec<String> {
        self.run(|keys| keys.xinfo_consumers("s", group)).into_iter().map(|row| row.name).collect()
    }

    fn length(&self) -> usize {
        self.run(|keys| keys.xlen("s"))
    }

    fn logged(&self, part: &str) -> usize {
        self.log.0.lock().iter().filter(|line| line.contains(part)).count()
    }
}

async fn rest() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

const DEAD: &str = "ruststream-host-1-0badc0de";
const ALIVE: &str = "ruststream-host-2-0badc0de";
const OTHER: &str = "ruststream-else-9-0badc0de";

/// B059: names of ended processes do not pile up, and nobody else's name goes.
#[tokio::test]
async fn consumers_of_ended_processes_are_deleted_and_no_others() {
    let world = World::new();
    for consumer in [DEAD, "worker-1", "fixed", "other-framework-17-deadbeef"] {
        world.read("g", consumer, 1);
    }
    let process = world.process();
    let subscription = world.subscribe(&process, "g", ALIVE, None).await;
    world.read("g", ALIVE, 1);
    world.pass(AFTER).await;
    assert_eq!(world.consumers("g").len(), 5, "nobody is dead before the time is over");
    world.pass(AFTER / 2).await;
    assert_eq!(world.consumers("g"), ["fixed", "other-framework-17-deadbeef", ALIVE, "worker-1"]);
    assert_eq!((subscription.stats.forgotten.get(), world.logged(DEAD)), (1, 1));
    world.pass(AFTER * 20).await;
    assert_eq!(world.consumers("g").len(), 4, "one that is quiet and lives is spoken for");
    assert_eq!(world.log.0.lock().len(), 1, "{:?}", world.log.0.lock());
}

/// One that has something pending stays until that was taken over.
#[tokio::test]
async fn a_dead_consumer_with_pending_entries_stays_until_they_were_taken_over() {
    let world = World::new();
    world.add(1);
    let ids = world.read("g", DEAD, 1);
    let process = world.process();
    let _subscription = world.subscribe(&process, "g", ALIVE, None).await;
    world.pass(AFTER * 3).await;
    assert_eq!(world.consumers("g"), [DEAD]);
    world.run(|keys| keys.xack("s", "g", &ids));
    world.pass(AFTER).await;
    assert!(world.consumers("g").is_empty());
}

/// Two processes, both quiet for long: neither takes the other for dead, whoever began first and whatever it is set to.
#[tokio::test]
async fn processes_that_are_merely_quiet_do_not_delete_each_other() {
    let world = World::new();
    let (one, two) = (world.process(), world.process());
    let first = world.subscribe(&one, "g", ALIVE, None).await;
    world.pass(7 * SECOND).await;
    let second = world.subscribe(&two, "g", OTHER, None).await;
    for consumer in [ALIVE, OTHER] {
        world.read("g", consumer, 1);
    }
    world.pass(AFTER * 10).await;
    assert_eq!(world.consumers("g"), [OTHER, ALIVE]);
    // The one that ends without a stop is deleted by the other.
    second.closed.cancel();
    world.pass(AFTER * 2).await;
    assert_eq!((world.consumers("g"), first.stats.forgotten.get()), (vec![ALIVE.to_owned()], 1));
}

/// The subscription that looked after the group ends: another one of the process goes on.
#[tokio::test]
async fn another_subscription_goes_on_when_the_first_one_ends() {
    let world = World::new();
    let process = world.process();
    let first = world.subscribe(&process, "g", OTHER, None).await;
    let second = world.subscribe(&process, "g", ALIVE, None).await;
    world.pass(AFTER).await;
    first.closed.cancel();
    rest().await;
    for consumer in [DEAD, OTHER] {
        world.read("g", consumer, 1);
    }
    world.pass(AFTER * 2).await;
    assert!(world.consumers("g").is_empty());
    assert_eq!(second.stats.forgotten.get(), 2);
}

/// After an outage every consumer looks as old as the outage: they are given the time to come back.
#[tokio::test]
async fn nobody_is_deleted_right_after_an_outage() {
    let world = World::new();
    let process = world.process();
    world.read("g", OTHER, 1);
    let _subscription = world.subscribe(&process, "g", ALIVE, None).await;
    // The group is gone for longer than anybody is given.
    world.pass(AFTER).await;
    world.run(|keys| keys.xgroup_destroy("s", "g"));
    world.pass(AFTER * 2).await;
    world.run(|keys| keys.xgroup_create("s", "g", Position::End, true, None));
    world.read("g", OTHER, 1);
    world.clock.advance(AFTER * 2);
    rest().await;
    world.pass(AFTER / 10).await;
    assert_eq!(world.consumers("g"), [OTHER], "it looks dead, but was not seen to be for long");
    world.pass(AFTER).await;
    assert!(world.consumers("g").is_empty());
}

/// A clean stop leaves no name behind, unless it is fixed or something is pending under it.
#[tokio::test]
async fn a_stop_deletes_its_own_consumer_if_it_has_nothing_left() {
    let world = World::new();
    let process = world.process();
    for (consumer, entries, stays) in [(ALIVE, 0, false), ("fixed", 0, true), (OTHER, 1, true)] {
        let subscription = world.subscribe(&process, "g", consumer, None).await;
        world.add(entries);
        world.read("g", consumer, 1);
        subscription.closed.cancel();
        subscription.source.depart(&subscription).await;
        assert_eq!(world.consumers("g").contains(&consumer.to_owned()), stays, "{consumer}");
    }
}

/// Entries that a group has not read, or has not acknowledged, are never trimmed.
#[tokio::test]
async fn a_length_is_kept_as_far_as_no_group_needs_more() {
    let world = World::new();
    world.run(|keys| keys.xgroup_create("s", "audit", Position::After(EntryId::ZERO), true, None));
    world.add(1_000);
    let process = world.process();
    let subscription = world.subscribe(&process, "g", ALIVE, Some(Bound::Length(100))).await;
    world.pass(30 * SECOND).await;
    assert_eq!((world.length(), subscription.stats.held_back.get()), (1_000, 900));
    assert_eq!(world.logged("group audit (0 pending, 1000 not delivered yet), group g"), 1);

    let ours = world.read("g", ALIVE, 1_000);
    let theirs = world.read("audit", "c", 600);
    world.run(|keys| keys.xack("s", "g", &ours));
    world.run(|keys| keys.xack("s", "audit", &theirs[..500]));
    world.pass(10 * SECOND).await;
    // What audit has pending and not read stays: 100 and 400.
    assert_eq!((world.length(), subscription.stats.trimmed.get()), (500, 500));

    world.run(|keys| keys.xack("s", "audit", &theirs[500..]));
    world.read("audit", "c", 1_000);
    world.pass(10 * SECOND).await;
    assert_eq!((world.length(), subscription.stats.held_back.get()), (400, 300), "all of the rest is pending in audit");
    world.run(|keys| keys.xgroup_destroy("s", "audit"));
    world.pass(10 * SECOND).await;
    assert_eq!((world.length(), subscription.stats.held_back.get()), (100, 0));
}

/// Age goes by the server's clock.
#[tokio::test]
async fn entries_that_are_too_old_go_when_nobody_needs_them() {
    let world = World::new();
    world.add(10);
    let process = world.process();
    let subscription = world.subscribe(&process, "g", ALIVE, Some(Bound::Age(60 * SECOND))).await;
    let old = world.read("g", ALIVE, 10);
    world.run(|keys| keys.xack("s", "g", &old[..4]));
    world.pass(50 * SECOND).await;
    assert_eq!((world.length(), subscription.stats.held_back.get()), (10, 0));
    world.add(5);
    world.pass(20 * SECOND).await;
    assert_eq!((world.length(), subscription.stats.held_back.get()), (11, 1), "six are pending, five are young");
    world.pass(SECOND * 9).await;
    assert_eq!(
        world.logged("older than Trim.max_age(60) are kept, because they are still needed by group g (6 pend"),
        1
    );
    world.run(|keys| keys.xack("s", "g", &old[4..]));
    world.pass(10 * SECOND).await;
    assert_eq!((world.length(), subscription.stats.held_back.get()), (5, 0));
    world.pass(600 * SECOND).await;
    assert_eq!(world.length(), 5, "not delivered");
    assert!(matches!(world.logged("Trim.max_age"), 9..=11), "once a minute");
}

/// A group that is made while it is trimmed needs what is there then.
#[tokio::test]
async fn a_group_that_is_made_meanwhile_is_minded() {
    let world = World::new();
    world.add(300);
    let process = world.process();
    let _subscription = world.subscribe(&process, "g", ALIVE, Some(Bound::Length(50))).await;
    let read = world.read("g", ALIVE, 300);
    world.run(|keys| keys.xack("s", "g", &read[..100]));
    world.pass(5 * SECOND).await;
    assert_eq!(world.length(), 200);
    world.run(|keys| keys.xgroup_create("s", "late", Position::After(EntryId::ZERO), true, None));
    world.run(|keys| keys.xack("s", "g", &read[100..]));
    world.pass(20 * SECOND).await;
    assert_eq!(world.length(), 200);
    assert_eq!(world.read("late", "c", 1_000).len(), 200);
}

/// A lost group of ours is made again where it stood: until then nothing goes.
#[tokio::test]
async fn nothing_goes_while_a_group_of_ours_is_missing() {
    let world = World::new();
    world.add(300);
    let process = world.process();
    let _subscription = world.subscribe(&process, "g", ALIVE, Some(Bound::Length(50))).await;
    world.run(|keys| keys.xgroup_create("s", "done", Position::End, true, None));
    world.run(|keys| keys.xgroup_destroy("s", "g"));
    world.pass(20 * SECOND).await;
    assert_eq!(world.length(), 300);
    world.run(|keys| keys.xgroup_create("s", "g", Position::End, true, None));
    world.pass(20 * SECOND).await;
    assert_eq!(world.length(), 50);
}

/// `Bound::Acked` sweeps what was acknowledged by others' plain `XACK`, and minds all groups.
#[tokio::test]
async fn what_all_have_acknowledged_goes_whoever_acknowledged_it() {
    let world = World::new();
    world.run(|keys| keys.xgroup_create("s", "audit", Position::After(EntryId::ZERO), true, None));
    world.add(50);
    let process = world.process();
    let subscription = world.subscribe(&process, "g", ALIVE, Some(Bound::Acked)).await;
    let ours = world.read("g", "redis-py", 50);
    let theirs = world.read("audit", "c", 30);
    world.run(|keys| keys.xack("s", "g", &ours));
    world.pass(20 * SECOND).await;
    assert_eq!((world.length(), subscription.stats.held_back.get()), (50, 50));
    world.run(|keys| keys.xack("s", "audit", &theirs));
    world.pass(20 * SECOND).await;
    assert_eq!((world.length(), world.logged("kept")), (20, 0));
    let left = world.run(|keys| keys.xrange("s", Range::ALL, None));
    assert_eq!(left.first().map(|body| body.id()), Some(ours[30]));
}

/// Entries are added while the stream is trimmed: the bound is kept, and the new ones are there.
#[tokio::test]
async fn entries_that_come_meanwhile_stay() {
    let world = World::new();
    let process = world.process();
    let _subscription = world.subscribe(&process, "g", ALIVE, Some(Bound::Length(10))).await;
    for _ in 0..20 {
        world.add(30);
        let read = world.read("g", ALIVE, 30);
        world.run(|keys| keys.xack("s", "g", &read[..29]));
        world.run(|keys| keys.xack("s", "g", &read));
        world.add(3);
        world.pass(SECOND / 5).await;
        assert!(world.length() >= 10);
        let read = world.read("g", ALIVE, 30);
        assert_eq!(read.len(), 3);
        world.run(|keys| keys.xack("s", "g", &read));
    }
    world.pass(20 * SECOND).await;
    assert_eq!(world.length(), 10);
}
