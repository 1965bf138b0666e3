//! Reads that block, by the time of day, on the model and on Redis 8.10: both end them by the same causes, and not
//! before their time.

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "model_support/resp.rs"]
mod resp;
#[path = "model_support/server.rs"]
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use resp::{Connection, Reply};
use ruststream_core::append::Append;
use ruststream_core::batch::{Origin, RawBatch};
use ruststream_core::clock::Clock;
use ruststream_core::error::{Error, Result};
use ruststream_core::model::{Keep, Model, ModelStore, TrimTo};
use ruststream_core::redis::{Address, RedisStore};
use ruststream_core::store::{EntryReader, StreamStore, Want};
use server::Server;

const STREAM: &str = "s";
/// A wait that only a cause ends.
const LONG: Duration = Duration::from_secs(60);
/// How late a read may end on a busy machine.
const LATE: Duration = Duration::from_secs(5);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn origin(consumer: &str) -> Arc<Origin> {
    let [subscription, stream, group, consumer] = ["test", STREAM, "g", consumer].map(str::to_owned);
    Arc::new(Origin { subscription, stream, group, consumer })
}

/// What is done behind a store's back.
#[derive(Clone, Copy)]
enum Behind {
    Remove,
    Text,
    Empty,
}

/// What is behind it.
enum Back {
    Server(u16),
    Model(Arc<Model>),
}

/// A store, and a way past it.
struct Side {
    store: Arc<dyn StreamStore>,
    back: Back,
}

impl Side {
    async fn redis(server: &Server) -> Self {
        let Ok(address) = Address::parse(&format!("redis://127.0.0.1:{}", server.port), None, None) else {
            panic!("no address")
        };
        let back = Back::Server(server.port);
        Self::connected(Arc::new(RedisStore::new(address)), back).await
    }

    async fn model() -> Self {
        let model = Model::new(Arc::new(Clock::new()));
        Self::connected(Arc::new(ModelStore::new(Arc::clone(&model))), Back::Model(model)).await
    }

    async fn connected(store: Arc<dyn StreamStore>, back: Back) -> Self {
        let connected = store.connect().await;
        assert!(connected.is_ok(), "{connected:?}");
        Self { store, back }
    }

    fn behind(&self, what: Behind) {
        match &self.back {
            Back::Server(port) => {
                let words: &[&str] = match what {
                    Behind::Remove => &["DEL", STREAM],
                    Behind::Text => &["SET", STREAM, "x"],
                    Behind::Empty => &["XTRIM", STREAM, "MAXLEN", "0"],
                };
                let done = Connection::open(*port).ask(words);
                assert!(!matches!(done, Reply::Error(_)), "{done:?}");
            }
            Back::Model(model) => model.run(|keys| match what {
                Behind::Remove => assert!(keys.del(&[STREAM]) < 2),
                Behind::Text => keys.set(STREAM, b"x"),
                Behind::Empty => {
                    let none = TrimTo { keep: Keep::Newest(0), approximate: false };
                    assert_eq!(keys.xtrim(STREAM, none), Ok(1));
                }
            }),
        }
    }

    async fn begin(&self) {
        self.behind(Behind::Remove);
        assert_eq!(self.store.create_group(STREAM, "g", "0").await, Ok(true));
    }

    async fn add(&self) {
        let fields = vec![(b"_payload"[..].into(), b"body"[..].into())];
        let added = self.store.append(&[Append { stream: STREAM.into(), fields, trim: None }], None).await;
        assert!(added.is_ok_and(|added| added[0].is_ok()));
    }

    async fn reader(&self, consumer: &str) -> Box<dyn EntryReader> {
        match self.store.open_reader(&origin(consumer), false).await {
            Ok(reader) => reader,
            Err(error) => panic!("no reader: {error}"),
        }
    }

    /// Add an entry and have it read by `consumer`.
    async fn deliver(&self, consumer: &str) {
        self.add().await;
        let read = self.reader(consumer).await.read(Want { count: 1, block: None, claim: None }, None).await;
        assert_eq!(read.map(|raw| raw.slots.len()), Ok(1));
    }

    /// Read in a task of its own. Returns the answer and how long it took.
    async fn read(
        &self,
        claim: Option<Duration>,
        block: Duration,
    ) -> tokio::task::JoinHandle<(Result<RawBatch>, Duration)> {
        let mut reader = self.reader("waiting").await;
        let begun = Instant::now();
        let reading = tokio::spawn(async move {
            (reader.read(Want { count: 5, block: Some(block), claim }, None).await, begun.elapsed())
        });
        // It blocks before anything else is done.
        tokio::time::sleep(ms(20)).await;
        reading
    }
}

async fn ended(reading: tokio::task::JoinHandle<(Result<RawBatch>, Duration)>) -> (Result<RawBatch>, Duration) {
    match tokio::time::timeout(LONG / 2, reading).await {
        Ok(Ok(ended)) => ended,
        other => panic!("the read does not end: {other:?}"),
    }
}

/// Run a case on both sides.
async fn on_both<F: Future<Output = ()>>(case: impl Fn(Arc<Side>) -> F) {
    let server = Server::start("redis-8.10-8.10.2");
    for side in [Side::redis(&server).await, Side::model().await] {
        case(Arc::new(side)).await;
    }
}

/// Nothing comes: the answer is empty when the time is over.
#[tokio::test]
async fn a_read_in_vain_ends_when_its_time_is_over() {
    on_both(|side| async move {
        side.begin().await;
        let (answer, took) = ended(side.read(None, ms(120)).await).await;
        assert!(answer.is_ok_and(|raw| raw.slots.is_empty()) && took >= ms(120) && took < LATE, "{took:?}");
    })
    .await;
}

/// A new entry ends the wait of a plain and of a claiming read.
#[tokio::test]
async fn a_new_entry_ends_the_wait() {
    on_both(|side| async move {
        for claim in [None, Some(LONG)] {
            side.begin().await;
            let reading = side.read(claim, LONG).await;
            side.add().await;
            let (answer, took) = ended(reading).await;
            assert!(answer.is_ok_and(|raw| raw.slots.len() == 1) && took < LATE, "{took:?}");
        }
    })
    .await;
}

/// A pending entry that becomes old enough ends the wait of those who claim, and not sooner; then it is young again.
#[tokio::test]
async fn an_aged_entry_ends_the_waits_of_those_who_claim_one_after_another() {
    on_both(|side| async move {
        side.begin().await;
        side.deliver("first").await;
        let (patient, hasty) = (side.read(Some(ms(250)), LONG).await, side.read(Some(ms(100)), LONG).await);
        let plain = side.read(None, ms(150)).await;
        let (answer, _) = ended(hasty).await;
        let slots = answer.unwrap_or_default().slots;
        assert!(
            matches!(&slots[..], [slot] if slot.idle_ms >= 100 && slot.idle_ms < 250 && slot.earlier == 1),
            "{slots:?}"
        );
        let (answer, _) = ended(patient).await;
        let slots = answer.unwrap_or_default().slots;
        assert!(matches!(&slots[..], [slot] if slot.idle_ms >= 250 && slot.earlier == 2), "{slots:?}");
        assert!(ended(plain).await.0.is_ok_and(|raw| raw.slots.is_empty()));
    })
    .await;
}

/// A pending entry without a body ends no wait.
#[tokio::test]
async fn an_entry_without_a_body_ends_no_wait() {
    on_both(|side| async move {
        side.begin().await;
        side.deliver("first").await;
        side.behind(Behind::Empty);
        let (answer, took) = ended(side.read(Some(ms(30)), ms(200)).await).await;
        assert!(answer.is_ok_and(|raw| raw.slots.is_empty()) && took >= ms(200), "{took:?}");
    })
    .await;
}

/// An entry that is handed back ends the wait of those who claim at once.
#[tokio::test]
async fn an_entry_that_is_handed_back_ends_the_wait() {
    on_both(|side| async move {
        side.begin().await;
        side.deliver("first").await;
        let last = side.store.last_id(STREAM).await.ok().flatten().unwrap_or_default();
        let reading = side.read(Some(LONG), LONG).await;
        assert_eq!(side.store.release(&origin("first"), &[(last, 0)]).await, Ok(1));
        let (answer, took) = ended(reading).await;
        let slots = answer.unwrap_or_default().slots;
        assert!(matches!(&slots[..], [slot] if slot.idle_ms == 0 && slot.earlier == 0) && took < LATE, "{slots:?}");
    })
    .await;
}

/// The end of the key, or another type in its place, ends the wait with an error; so does nothing else.
#[tokio::test]
async fn the_end_of_the_key_ends_the_wait_with_an_error() {
    on_both(|side| async move {
        side.begin().await;
        let reading = side.read(Some(LONG), LONG).await;
        side.behind(Behind::Remove);
        let (answer, _) = ended(reading).await;
        assert!(matches!(&answer, Err(Error::NoGroup(text)) if text.contains("'s'")), "{answer:?}");
        side.begin().await;
        let reading = side.read(None, LONG).await;
        side.behind(Behind::Text);
        let (answer, _) = ended(reading).await;
        assert!(matches!(&answer, Err(Error::Server(text)) if text.starts_with("WRONGTYPE")), "{answer:?}");
    })
    .await;
}

/// `unblock` ends a wait with an empty answer, and the reader reads on.
#[tokio::test]
async fn a_read_that_is_unblocked_answers_empty_and_reads_on() {
    on_both(|side| async move {
        side.begin().await;
        let mut reader = side.reader("waiting").await;
        let id = reader.id();
        let waiting = Want { count: 5, block: Some(LONG), claim: None };
        let reading = tokio::spawn(async move { (reader.read(waiting, Some(waiting)).await, reader) });
        while !reading.is_finished() {
            assert_eq!(side.store.unblock(id).await, Ok(()));
            tokio::time::sleep(ms(5)).await;
        }
        let Ok((answer, mut reader)) = reading.await else { panic!("the read is lost") };
        assert!(answer.is_ok_and(|raw| raw.slots.is_empty()));
        side.add().await;
        let ahead = reader.read(waiting, None).await;
        assert!(ahead.is_ok_and(|raw| raw.slots.len() == 1), "the read that was sent ahead brings the entry");
    })
    .await;
}
