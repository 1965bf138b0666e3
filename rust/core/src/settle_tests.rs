//! The settler over a source whose server goes away: what is gathered, sent again, and waited for.

use async_trait::async_trait;
use tokio::time::Instant;

use super::*;
use crate::batch::{Batch, Origin, RawBatch};
use crate::entry::{EntryId, Slot};
use crate::error::{Error, Result};
use crate::event::{Event, Events};
use crate::source::Source;
use crate::subscription::Parts;

/// A source whose server goes away as often as it is told to, and that notes what it was given and what was logged.
#[derive(Debug, Default)]
struct Flaky {
    losses: AtomicUsize,
    given: Mutex<Vec<(usize, usize, bool)>>,
    log: Mutex<Vec<String>>,
    acked: Mutex<Vec<EntryId>>,
}

#[async_trait]
impl Source for Flaky {
    fn retries_in_place(&self) -> bool {
        false
    }
    fn left(&self, _: &Token) {}
    async fn tend(&self, _: &Arc<Subscription>) {}
    async fn open(&self, _: &Arc<Subscription>) -> Result<()> {
        Ok(())
    }
    async fn read(&self, _: &Arc<Subscription>) -> Result<()> {
        Ok(())
    }
    async fn release(&self, _: &Subscription, tokens: &[Token]) -> Result<usize> {
        Ok(tokens.len())
    }
    async fn settle(&self, subscription: &Subscription, work: &mut Work) -> Result<()> {
        self.given.lock().push((work.acks.len(), work.others.len(), work.resend));
        if self.losses.load(Ordering::Acquire) > 0 {
            self.losses.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::Lost("gone".into()));
        }
        let Work { acks, others, .. } = std::mem::take(work);
        let tokens: Vec<_> = acks.into_iter().chain(others.into_iter().map(|(token, _)| token)).collect();
        subscription.complete(&tokens);
        Ok(())
    }
}

impl Events for Flaky {
    fn post(&self, event: Event) {
        match event {
            Event::Log { message, .. } => self.log.lock().push(message),
            Event::Acked { ids, .. } => self.acked.lock().extend(ids),
            _ => {}
        }
    }
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }
}

fn batch(count: u64) -> Arc<Batch> {
    let (stream, group) = ("payments".into(), "ledger".into());
    let origin = Origin { subscription: "s".into(), stream, group, consumer: "c".into() };
    let slots = (1..=count).map(|ms| Slot::new(EntryId::new(ms, 0))).collect();
    Batch::new(RawBatch { slots, ..RawBatch::default() }, Arc::new(origin), 0)
}

/// A subscription whose server is lost so often, and its settler.
fn settling(losses: usize) -> (Arc<Flaky>, Arc<Subscription>, tokio::task::JoinHandle<()>) {
    let source = Arc::new(Flaky { losses: AtomicUsize::new(losses), ..Flaky::default() });
    let subscription = Subscription::new(Parts {
        id: 1,
        origin: Arc::clone(&batch(0).origin),
        source: Arc::clone(&source) as _,
        held: Arc::default(),
        max_in_flight: 100,
        gather: 1,
        events: Arc::clone(&source) as _,
        clock: Arc::new(Clock::new()),
    });
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(100));
    let running = tokio::spawn(Settler::run(Arc::clone(&subscription), backoff));
    (source, subscription, running)
}

/// Take entries in, run their handlers, and give them these outcomes.
fn settle(subscription: &Subscription, outcomes: &[Outcome]) {
    let batch = batch(outcomes.len() as u64);
    subscription.take_in(Arc::clone(&batch));
    for (token, outcome) in batch.tokens().zip(outcomes) {
        assert!(token.begin());
        subscription.settle(&token, outcome.clone());
    }
}

/// How many outcomes the next gathering holds, and how long it took, where these were given to a settler that waits.
async fn gathered(gather: usize, given: &[u64]) -> (usize, Duration) {
    let settler = Arc::new(Settler::new(gather));
    let waiting = Arc::clone(&settler);
    let next = tokio::spawn(async move { waiting.next(&Clock::new()).await });
    let begun = Instant::now();
    for count in given {
        tokio::task::yield_now().await;
        settler.acks(&mut batch(*count).tokens().collect());
    }
    (next.await.map_or(0, |work| work.len()), begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_lone_outcome_waits_for_company_and_enough_of_them_do_not() {
    for (given, together) in [(&[1][..], 1), (&[1, 1], 2)] {
        let (outcomes, waited) = gathered(3, given).await;
        assert!(outcomes == together && waited >= LINGER && waited <= LINGER * 2, "{outcomes} in {waited:?}");
    }
    assert_eq!(gathered(3, &[1, 2]).await, (3, Duration::ZERO));
    assert_eq!(gathered(3, &[4]).await, (4, Duration::ZERO));
}

#[tokio::test]
async fn a_stopped_clock_is_not_waited_for() {
    let settler = Settler::new(100);
    settler.acks(&mut batch(1).tokens().collect());
    assert_eq!(settler.next(&Clock::stopped(0)).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_the_last_answer_and_for_no_company() {
    let settler = Arc::new(Settler::new(100));
    settler.flush().await;
    settler.acks(&mut batch(2).tokens().collect());
    batch(1).tokens().for_each(|token| settler.other(token, Outcome::Drop));
    let waiting = Arc::clone(&settler);
    let flush = tokio::spawn(async move { waiting.flush().await });
    tokio::task::yield_now().await;
    let begun = Instant::now();
    let work = settler.next(&Clock::new()).await;
    assert_eq!((work.acks.len(), work.len(), work.resend, begun.elapsed()), (2, 3, false, Duration::ZERO));
    for answered in [2, 1] {
        assert!(!flush.is_finished());
        settler.answered(answered);
        tokio::task::yield_now().await;
    }
    assert!(settler.unanswered() == 0 && flush.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn unanswered_outcomes_are_sent_again_and_checked_for_their_owner() {
    let (source, subscription, running) = settling(2);
    settle(&subscription, &[Outcome::Ack, Outcome::Retry(None)]);
    subscription.settler.flush().await;
    assert_eq!(*source.given.lock(), [(1, 1, false), (1, 1, true), (1, 1, true)]);
    assert_eq!((subscription.settler.unanswered(), subscription.credits.used()), (0, 0));
    assert!(source.log.lock()[0].ends_with("group ledger): 2 outcomes not answered, sending them again: gone"));
    settle(&subscription, &[Outcome::Ack]);
    subscription.settler.flush().await;
    assert_eq!(source.given.lock().last(), Some(&(1, 0, false)), "what comes after is sent plainly again");
    subscription.closed.cancel();
    assert!(running.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_was_left_is_watched_no_more_and_what_is_acked_is_told() {
    let (source, subscription, running) = settling(0);
    for outcome in [Outcome::Leave, Outcome::Ack] {
        subscription.watch(EntryId::new(1, 0));
        settle(&subscription, &[outcome]);
        subscription.settler.flush().await;
        assert_eq!(subscription.watched(), 0);
    }
    assert_eq!(*source.acked.lock(), [EntryId::new(1, 0)]);
    subscription.closed.cancel();
    assert!(running.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_is_asked_at_a_pace_until_the_close() {
    let (source, subscription, running) = settling(usize::MAX);
    settle(&subscription, &[Outcome::Ack]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let seen = (source.given.lock().len(), source.log.lock().len(), subscription.settler.unanswered());
    assert!(matches!(seen, (30..=70, 2..=4, 1)), "tries and lines in 3 s, and what is kept: {seen:?}");
    subscription.closed.cancel();
    assert!(running.await.is_ok());
}
