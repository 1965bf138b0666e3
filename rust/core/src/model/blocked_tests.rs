use std::time::Duration;

use super::*;
use crate::clock::Clock;
use crate::entry::EntryId;
use crate::model::argument::{AddId, Position};
use crate::model::settle::HandBack;

const HOUR: u64 = 3_600_000;
const START: u64 = 1_800_000_000_000;

fn model() -> Arc<Model> {
    let model = Model::new(Arc::new(Clock::stopped(START)));
    assert!(model.run(|keys| keys.xgroup_create("s", "g", Position::End, true, None)).is_ok());
    model
}

fn add(model: &Model) -> u64 {
    model.run(|keys| keys.xadd("s", AddId::Auto, &[("f", "v")], None)).map_or(0, |id| id.ms * 100 + id.seq)
}

fn block(model: &Arc<Model>, consumer: &str, claim: Option<u64>, block: u64) -> Asked {
    let read = GroupRead { claim, count: 1, ..GroupRead::new("s", "g", consumer) };
    model.ask(model.new_client(), &read, Some(block))
}

fn answered(asked: &mut Asked) -> Option<Vec<u64>> {
    let answer = asked.try_answer()?.unwrap_or_default();
    Some(answer.iter().map(|delivery| delivery.id.ms * 100 + delivery.id.seq).collect())
}

fn pass(model: &Model, ms: u64) {
    model.clock().advance(Duration::from_millis(ms));
    model.run(|_| ());
}

#[test]
fn the_longest_blocked_gets_the_entry() {
    let model = model();
    let (mut first, mut second) = (block(&model, "b", None, 0), block(&model, "a", None, 0));
    let one = add(&model);
    assert_eq!((answered(&mut first), answered(&mut second)), (Some(vec![one]), None));
    let two = add(&model);
    assert_eq!((answered(&mut second), answered(&mut first), model.blocked()), (Some(vec![two]), None, 0));
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let model = model();
    let mut waiting = block(&model, "a", None, 50);
    pass(&model, 49);
    assert_eq!(answered(&mut waiting), None);
    pass(&model, 1);
    assert_eq!(answered(&mut waiting), Some(vec![]));
}

#[test]
fn a_wait_ends_when_a_pending_entry_has_aged() {
    let model = model();
    let entry = add(&model);
    assert_eq!(answered(&mut block(&model, "a", None, 0)), Some(vec![entry]));
    let (mut patient, mut hasty) = (block(&model, "b", Some(300), 0), block(&model, "c", Some(100), 0));
    let mut plain = block(&model, "d", None, 0);
    pass(&model, 99);
    assert_eq!((answered(&mut patient), answered(&mut hasty)), (None, None));
    pass(&model, 1);
    assert_eq!(answered(&mut hasty), Some(vec![entry]));
    pass(&model, 299);
    assert_eq!(answered(&mut patient), None);
    pass(&model, 1);
    assert_eq!((answered(&mut patient), answered(&mut plain)), (Some(vec![entry]), None));
}

#[test]
fn an_entry_that_is_read_by_someone_later_wakes_who_waited_before() {
    let model = model();
    let mut waiting = block(&model, "a", Some(100), 0);
    pass(&model, 70);
    let entry = add(&model);
    assert_eq!(answered(&mut waiting), Some(vec![entry]));
    let mut waiting = block(&model, "b", Some(100), 0);
    pass(&model, 60);
    assert!(
        model
            .run(|keys| keys.xclaim("s", "g", "a", &crate::model::Claim::default(), &[EntryId::new(START + 70, 0)]))
            .is_ok()
    );
    pass(&model, 60);
    assert_eq!(answered(&mut waiting), None);
    pass(&model, 40);
    assert_eq!(answered(&mut waiting), Some(vec![entry]));
}

#[test]
fn what_is_handed_back_wakes_who_claims_and_nobody_else() {
    let model = model();
    let entry = add(&model);
    assert_eq!(answered(&mut block(&model, "a", None, 0)), Some(vec![entry]));
    let (mut plain, mut claiming) = (block(&model, "b", None, 0), block(&model, "c", Some(HOUR), 0));
    let id = [EntryId::new(START, 0)];
    assert_eq!(model.run(|keys| keys.xnack("s", "g", HandBack::Silent, &id, false)), Ok(1));
    assert_eq!((answered(&mut plain), answered(&mut claiming)), (None, Some(vec![entry])));
}

#[test]
fn a_wait_ends_with_the_group_the_key_or_its_type() {
    let model = model();
    let mut waiting = block(&model, "a", None, 0);
    assert_eq!(model.run(|keys| keys.xgroup_destroy("s", "g")), Ok(true));
    assert!(matches!(waiting.try_answer(), Some(Err(Error::NoGroup(_)))));
    for end in [|keys: &mut Keyspace| keys.flush(), |keys: &mut Keyspace| keys.set("s", b"text")] {
        model.run(|keys| keys.del(&["s"]));
        assert!(model.run(|keys| keys.xgroup_create("s", "g", Position::End, true, None)).is_ok());
        let mut waiting = block(&model, "a", None, 0);
        model.run(end);
        assert!(matches!(waiting.try_answer(), Some(Err(Error::NoGroup(_) | Error::Server(_)))));
    }
    let mut refused = block(&model, "a", None, 0);
    assert!(matches!(refused.try_answer(), Some(Err(Error::Server(text))) if text.starts_with("WRONGTYPE")));
}

#[test]
fn a_group_that_comes_back_in_the_same_step_was_never_gone() {
    let model = model();
    let mut waiting = block(&model, "a", None, 0);
    model
        .run(|keys| {
            keys.del(&["s"]);
            keys.xgroup_create("s", "g", Position::End, true, None)
        })
        .unwrap_or_default();
    assert_eq!((answered(&mut waiting), model.blocked()), (None, 1));
}

#[test]
fn another_client_ends_a_wait_and_a_dropped_read_waits_no_more() {
    let model = model();
    let read = GroupRead::new("s", "g", "a");
    let mut waiting = model.ask(7, &read, Some(0));
    assert_eq!((model.unblock(7), model.unblock(7), answered(&mut waiting)), (true, false, Some(vec![])));
    drop(model.ask(7, &read, Some(0)));
    assert_eq!(model.blocked(), 0);
    add(&model);
    assert_eq!(model.run(|keys| keys.xpending("s", "g")).map(|pending| pending.count), Ok(0));
}

#[tokio::test]
async fn waits_end_in_the_order_they_fall_due_by_a_stopped_clock() {
    let model = model();
    let entry = add(&model);
    assert_eq!(answered(&mut block(&model, "a", None, 0)), Some(vec![entry]));
    let (order, mut tasks) = (Arc::new(parking_lot::Mutex::new(Vec::new())), Vec::new());
    for (name, claim, wait) in [("late", None, 500), ("claims", Some(300), 9_000), ("early", None, 100)] {
        let (asked, order, model) = (block(&model, name, claim, wait), Arc::clone(&order), Arc::clone(&model));
        tasks.push(tokio::spawn(async move {
            let answer = asked.answer().await.unwrap_or_default();
            order.lock().push((name, model.clock().now_ms(), answer.len()));
        }));
    }
    let mut left = Duration::from_secs(1);
    for _ in 0..8 {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        left -= model.clock().step(left).unwrap_or(left);
    }
    assert_eq!(*order.lock(), [("early", 100, 0), ("claims", 300, 1), ("late", 500, 0)]);
}

#[tokio::test(start_paused = true)]
async fn waits_end_by_a_running_clock() {
    let model = Model::new(Arc::new(Clock::new()));
    assert!(model.run(|keys| keys.xgroup_create("s", "g", Position::End, true, None)).is_ok());
    let begun = tokio::time::Instant::now();
    assert_eq!(block(&model, "a", None, 40).answer().await, Ok(vec![]));
    assert!(begun.elapsed() >= Duration::from_millis(40) && begun.elapsed() < Duration::from_millis(45));
}
