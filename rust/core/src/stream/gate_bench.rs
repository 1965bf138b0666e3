//! A subscription behind the gate, over the model of a server, by a clock that stands until it is moved.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::admit::admit;
use super::{Cap, Groups, Mode, StreamSettings, StreamSource};
use crate::backoff::Backoff;
use crate::batch::{Mark, Origin};
use crate::clock::Clock;
use crate::entry::EntryId;
use crate::event::{Event, Events};
use crate::model::{AddId, GroupRead, Model, ModelStore, Position};
use crate::settle::{Outcome, Settler};
use crate::source::Source;
use crate::store::{Page, Pending, StreamStore};
use crate::subscription::{Parts, Subscription};
use crate::token::Token;

pub(super) const MARKS: &str = "{s}:g:attempts";

#[derive(Debug, Default)]
pub(super) struct Log(pub(super) Mutex<Vec<String>>);

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

/// A subscription whose entries were read by another consumer that is gone.
pub(super) struct Bench {
    pub(super) model: Arc<Model>,
    pub(super) source: Arc<StreamSource>,
    pub(super) subscription: Arc<Subscription>,
    pub(super) log: Arc<Log>,
    pub(super) ids: Vec<EntryId>,
}

impl Bench {
    pub(super) async fn new(attempts: u32, workers: usize, keys: &[&str]) -> Self {
        let clock = Arc::new(Clock::stopped(1_800_000_000_000));
        let model = Model::new(Arc::clone(&clock));
        let ids = model.run(|keyspace| {
            let fields = |key| [("_payload", "x"), ("h:redis-partition-key", key)];
            let ids = keys.iter().map(|key| keyspace.xadd("s", AddId::Auto, &fields(*key), None).unwrap_or_default());
            let ids: Vec<_> = ids.collect();
            assert!(keyspace.xgroup_create("s", "g", Position::After(EntryId::ZERO), true, None).is_ok());
            assert!(keyspace.xreadgroup(&GroupRead::new("s", "g", "gone")).is_ok());
            ids
        });
        let store = Arc::new(ModelStore::new(Arc::clone(&model)));
        assert!(store.connect().await.is_ok());
        let settings = StreamSettings {
            mode: Mode::Recovering,
            min_idle: Some(Duration::from_secs(3600)),
            count: 100,
            block: Duration::from_secs(1),
            start_id: "0".into(),
            start_at: None,
            create_group: true,
            recreate_group: true,
            by_key: true,
            renew_stalled: None,
            delay_key: "{s}:g:delayed".into(),
            fixed_consumer: false,
            forget_after: Duration::from_secs(3600),
            trim: None,
            dead_letter: None,
            cap: Some(Cap { attempts, exhausted: Outcome::Drop, key: MARKS.into(), workers }),
            reconnect: Backoff::new(Duration::from_millis(50), Duration::from_millis(100)),
        };
        let source = Arc::new(StreamSource::new(settings, store, Groups::default().get("s", "g")));
        let log = Arc::new(Log::default());
        let [name, stream, group, consumer] = ["test", "s", "g", "c"].map(str::to_owned);
        let subscription = Subscription::new(Parts {
            id: 1,
            origin: Arc::new(Origin { subscription: name, stream, group, consumer }),
            source: Arc::clone(&source) as _,
            held: Arc::default(),
            max_in_flight: 1000,
            gather: 1,
            events: Arc::clone(&log) as _,
            clock,
        });
        assert!(source.open(&subscription).await.is_ok());
        let (tended, of) = (Arc::clone(&source), Arc::clone(&subscription));
        tokio::spawn(async move { tended.tend(&of).await });
        tokio::spawn(Settler::run(Arc::clone(&subscription), Backoff::new(Duration::ZERO, Duration::ZERO)));
        Self { model, source, subscription, log, ids }
    }

    /// Take over everything that is pending.
    pub(super) async fn claim(&self) {
        let which = Pending::Idle(Duration::ZERO);
        let page = Page { cursor: EntryId::ZERO, count: 1000, hash_keys: true, dead_letter: None };
        let scanned = self.source.store.scan(&self.subscription.origin, &which, page).await;
        let Ok(scanned) = scanned else { panic!("{scanned:?}") };
        assert!(admit(&self.source, &self.subscription, scanned.raw, 0).await.is_ok());
        rest().await;
    }

    /// What has come to the lanes since it was asked last; all of it starts.
    pub(super) async fn started(&self) -> Vec<Token> {
        rest().await;
        let mut tokens = Vec::new();
        while let Some(arrival) = self.subscription.inbox.pop() {
            tokens.extend(arrival.tokens().into_iter().filter(Token::begin));
        }
        self.source.moved_on();
        rest().await;
        tokens
    }

    /// What is marked and has not started.
    pub(super) fn queued(&self) -> Vec<Token> {
        let marked: Vec<_> = self.marks().into_iter().filter(|(_, mark)| mark.contains('b')).collect();
        let marked = |token: &Token| marked.iter().any(|(number, _)| self.ids.get(*number) == Some(&token.id()));
        self.subscription
            .held
            .tokens()
            .into_iter()
            .filter(|token| token.mark() == Mark::Queued && marked(token))
            .collect()
    }

    pub(super) fn numbers(&self, tokens: &[Token]) -> Vec<usize> {
        let at = |token: &Token| self.ids.iter().position(|id| *id == token.id()).unwrap_or(usize::MAX);
        tokens.iter().map(at).collect()
    }

    pub(super) fn put(&self, number: usize, mark: &str) {
        let field = self.ids[number].to_string();
        assert!(self.model.run(|keyspace| keyspace.hset(MARKS, field.as_bytes(), mark.as_bytes())).is_ok());
    }

    pub(super) fn marks(&self) -> Vec<(usize, String)> {
        self.model.run(|keyspace| {
            let marks = keyspace.hgetall(MARKS).unwrap_or_default();
            let found = marks.into_iter().map(|(id, mark)| {
                let id = EntryId::parse(id).unwrap_or_default();
                let number = self.ids.iter().position(|known| *known == id).unwrap_or(usize::MAX);
                (number, String::from_utf8_lossy(mark).into_owned())
            });
            found.collect()
        })
    }

    pub(super) async fn settle(&self, tokens: &[Token], outcome: Outcome) {
        for token in tokens {
            self.subscription.settle(token, outcome.clone());
        }
        self.subscription.settler.flush().await;
        rest().await;
    }
}

pub(super) async fn rest() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
