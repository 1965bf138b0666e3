//! Streams are kept within their bounds, as far as no group needs more.

use ruststream_core::entry::EntryId;
use ruststream_core::model::{Position, Range};
use ruststream_core::store::Bound;

use crate::world::{ALIVE, SECOND, World};

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
