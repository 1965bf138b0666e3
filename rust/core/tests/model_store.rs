//! The same random operations on `ModelStore` and on `RedisStore`: what the model does natively is what the scripts do.
//!
//! Both go by the time of day, so ids differ: they are compared by the order in which they first show. Redis 8.10 is
//! compared with the model as it is, Redis 8.2 with a model that can do as little.
//!
//! `MODEL_SEED` and `MODEL_STEPS` choose the run; a failure names both.

#[path = "model_store/operation.rs"]
mod operation;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "model_support/resp.rs"]
mod resp;
#[path = "model_support/server.rs"]
mod server;
#[path = "model_store/side.rs"]
mod side;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use operation::{Behind, Chooser, Step};
use resp::{Connection, Reply};
use ruststream_core::clock::Clock;
use ruststream_core::entry::EntryId;
use ruststream_core::model::{Model, ModelStore, Range};
use ruststream_core::redis::{Address, RedisStore};
use ruststream_core::store::Abilities;
use server::Server;
use side::{DELAYED, LETTERS, STREAM, Side};

/// Steps between two looks at everything.
const LOOK: u64 = 10;

/// Both stores.
struct Pair {
    redis: Side,
    model: Side,
    server: Connection,
    inside: Arc<Model>,
}

impl Pair {
    async fn new(server: &Server, offered: Abilities) -> Self {
        let Ok(address) = Address::parse(&format!("redis://127.0.0.1:{}", server.port), None, None) else {
            panic!("no address")
        };
        let mut witness = Connection::open(server.port);
        assert_eq!(witness.ask(&["FLUSHALL"]), Reply::text("OK"));
        let inside = Model::new(Arc::new(Clock::new()));
        let model = ModelStore::with_abilities(Arc::clone(&inside), offered);
        Self {
            redis: Side::new(Arc::new(RedisStore::new(address))).await,
            model: Side::new(Arc::new(model)).await,
            server: witness,
            inside,
        }
    }

    /// Change both behind their stores' backs.
    fn behind(&mut self, what: &Behind) {
        match what {
            Behind::Delete(picks) => {
                let ids = self.redis.ids(picks).into_iter().map(|id| id.to_string());
                let words: Vec<_> = ["XDEL", STREAM].map(str::to_owned).into_iter().chain(ids).collect();
                self.server.ask(&words);
                let _ = self.inside.run(|keys| keys.xdel(STREAM, &self.model.ids(picks)));
            }
            Behind::Remove(key) => {
                self.server.ask(&["DEL", key]);
                self.inside.run(|keys| keys.del(&[key]));
                // A stream that is made again within the same millisecond would give out the same ids again.
                std::thread::sleep(Duration::from_millis(2));
            }
            Behind::Text(key) => {
                self.server.ask(&["SET", key, "text"]);
                self.inside.run(|keys| keys.set(key, b"text"));
            }
            Behind::Strange(member) => {
                self.server.ask(&[b"ZADD", DELAYED.as_bytes(), b"1", member]);
                let _ = self.inside.run(|keys| keys.zadd(DELAYED, 1.0, member));
            }
            Behind::Destroy(group) => {
                self.server.ask(&["XGROUP", "DESTROY", STREAM, group]);
                let _ = self.inside.run(|keys| keys.xgroup_destroy(STREAM, group));
            }
        }
    }

    /// Compare the entries and what is pending of them.
    fn look(&mut self) -> std::result::Result<(), String> {
        let there = self.server.ask(&["XRANGE", STREAM, "-", "+"]);
        let id = |row: &Reply| EntryId::parse(row.items()[0].words().as_bytes()).unwrap_or_default();
        let there = self.redis.names(there.items().iter().map(id).collect());
        let here = self.inside.run(|keys| keys.xrange(STREAM, Range::ALL, None)).unwrap_or_default();
        let here = self.model.names(here.iter().map(|body| body.id()).collect());
        if there != here {
            return Err(format!("entries\n  server: {there}\n  model:  {here}"));
        }
        self.look_at_letters()?;
        for group in ["g", "h"] {
            let rows = self.server.ask(&["XPENDING", STREAM, group, "-", "+", "10000"]);
            let mut there = Vec::new();
            for row in rows.items() {
                there.push((self.redis.name(id(row)), row.items()[1].words(), row.items()[3].clone()));
            }
            let rows = self.inside.run(|keys| keys.xpending_range(STREAM, group, 0, Range::ALL, 10_000, None));
            let mut here = Vec::new();
            for row in rows.unwrap_or_default() {
                here.push((self.model.name(row.id), row.consumer, Reply::int(row.count)));
            }
            if there != here {
                return Err(format!("pending in {group}\n  server: {there:?}\n  model:  {here:?}"));
            }
        }
        Ok(())
    }

    /// Compare the dead letters, field by field.
    fn look_at_letters(&mut self) -> std::result::Result<(), String> {
        let mut there = Vec::new();
        for row in self.server.ask(&["XRANGE", LETTERS, "-", "+"]).items() {
            let fields = row.items()[1].items();
            there.push(fields.chunks(2).map(|pair| letter_field(&mut self.redis, pair)).collect::<Vec<_>>());
        }
        let bodies = self.inside.run(|keys| keys.xrange(LETTERS, Range::ALL, None)).unwrap_or_default();
        let mut here = Vec::new();
        for body in bodies {
            let pairs: Vec<_> = body.fields().map(|(name, value)| [name, value].map(Reply::text)).collect();
            here.push(pairs.iter().map(|pair| letter_field(&mut self.model, pair)).collect::<Vec<_>>());
        }
        if there == here {
            return Ok(());
        }
        Err(format!("letters\n  server: {there:?}\n  model:  {here:?}"))
    }

    async fn step(&mut self, step: &Step) -> std::result::Result<(), String> {
        if let Step::Behind(what) = step {
            self.behind(what);
        }
        let (there, here) = (self.redis.run(step).await, self.model.run(step).await);
        if there != here {
            return Err(format!("{step:?}\n  server: {}\n  model:  {}", there.join("\n   "), here.join("\n   ")));
        }
        Ok(())
    }
}

/// A field of a letter, its entry's id by number, without the time.
fn letter_field(side: &mut Side, pair: &[Reply]) -> String {
    let [name, value] = pair else { panic!("a name and a value: {pair:?}") };
    let value = match name.words().as_str() {
        "h:x-dead-letter-entry-id" | "h:x-original-entry-id" => {
            side.name(EntryId::parse(value.words().as_bytes()).unwrap_or_default())
        }
        "h:x-dead-letter-time-ms" => "some".into(),
        _ => format!("{value:?}"),
    };
    format!("{name:?}={value}")
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[expect(clippy::print_stdout, reason = "how much was compared is part of the result")]
async fn compare(build: &str, abilities: Abilities, deletes: bool) {
    let server = Server::start(build);
    let steps = number("MODEL_STEPS").unwrap_or(4_000);
    for seed in number("MODEL_SEED").map_or_else(|| vec![1, fastrand::u64(..)], |seed| vec![seed]) {
        let mut pair = Pair::new(&server, abilities.clone()).await;
        let mut chooser = Chooser { rng: Rng::with_seed(seed), text: None };
        if deletes {
            for side in [&pair.redis, &pair.model] {
                side.store.delete_acked(STREAM);
            }
        }
        let found = pair.redis.store.abilities();
        assert_eq!((found.claim, found.xnack, found.max_size), (abilities.claim, abilities.xnack, abilities.max_size));
        let mut last = Vec::new();
        for at in 1..=steps {
            let step = chooser.step(pair.redis.ids.len(), pair.redis.tokens.len(), abilities.claim);
            let mut result = pair.step(&step).await;
            if result.is_ok() && (at % LOOK == 0 || at == steps) {
                result = pair.look();
            }
            if let Err(difference) = result {
                let last = last[last.len().saturating_sub(12)..].join("\n");
                panic!("step {at}, again with MODEL_SEED={seed} MODEL_STEPS={at}\n{last}\n\nDIFFERENCE {difference}");
            }
            last.push(format!("{step:.0?}").chars().take(300).collect::<String>());
        }
        let (ids, tokens) = (pair.redis.ids.len(), pair.redis.tokens.len());
        println!("{build}, seed {seed}: {steps} steps, {ids} entries, {tokens} deliveries");
    }
}

/// The scripts and the model's own steps are one, where the server has everything.
#[tokio::test]
async fn operations_are_the_same_as_on_redis_8_10() {
    let abilities = Abilities { claim: true, xnack: true, xackdel: true, max_size: true, ..Abilities::default() };
    compare("redis-8.10-8.10.2", abilities, false).await;
}

/// What is acknowledged is deleted once no group needs it, by the same commands or in the same way.
#[tokio::test]
async fn operations_that_delete_are_the_same_as_on_redis_8_10() {
    let abilities = Abilities { claim: true, xnack: true, xackdel: true, max_size: true, ..Abilities::default() };
    compare("redis-8.10-8.10.2", abilities, true).await;
}

/// The same where the server has no `CLAIM` and no `XNACK`, and the model is told so.
#[tokio::test]
async fn operations_are_the_same_as_on_redis_8_2() {
    compare("redis-8.2-8.2.3", Abilities { xackdel: true, ..Abilities::default() }, false).await;
}
