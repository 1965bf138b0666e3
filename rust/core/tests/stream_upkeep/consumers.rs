//! Consumers of ended processes are deleted, and no others.

use ruststream_core::model::Position;

use crate::world::{AFTER, ALIVE, SECOND, World, rest};

const DEAD: &str = "ruststream-host-1-0badc0de";
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
