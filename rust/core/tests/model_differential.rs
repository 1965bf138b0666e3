//! The same random commands on the model and on Redis 8.10, one after another, by several clients, some of them blocked:
//! every reply is the same, and so is all that is left.
//!
//! Times are the same too: a command on the server runs in one transaction with an `XADD *`, whose id tells the time it
//! saw; the model's clock is set to that. Only when a blocked client is served cannot be known before, so that the model
//! takes those delivery times over from the server.
//!
//! `MODEL_SEED` and `MODEL_STEPS` choose the run; a failure names both.

#[path = "model_differential/choice.rs"]
mod choice;
#[path = "model_differential/replies.rs"]
mod replies;
#[path = "model_support/resp.rs"]
mod resp;
#[path = "model_support/server.rs"]
mod server;
#[path = "model_differential/steps.rs"]
mod steps;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use choice::{BLOCKER, Chooser, KEYS, LONG};
use fastrand::Rng;
use resp::{Connection, Reply};
use ruststream_core::clock::Clock;
use ruststream_core::model::{Asked, Claim, Delivered, GroupRead, Model, Range};
use server::Server;
use steps::{Step, line, read_words};

/// Clients that may block.
const CLIENTS: usize = 4;
/// Steps between two looks at everything.
const LOOK: usize = 60;
/// How far apart the times of blocked clients may be: the server serves them at times of its own.
const TOLERANCE: i64 = 2_000;
/// Where the server tells the time.
const TELLER: &str = "clock";

struct Client {
    connection: Connection,
    id: String,
    waiting: Option<(GroupRead, Asked)>,
}

struct Pair {
    model: Arc<Model>,
    server: Connection,
    clients: Vec<Client>,
    rng: Rng,
    last: VecDeque<String>,
    served: usize,
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

impl Pair {
    fn new(port: u16, seed: u64) -> Self {
        let client = |_| {
            let mut connection = Connection::open(port);
            let Reply::Int(id) = connection.ask(&words(&["CLIENT", "ID"])) else { panic!("a client has an id") };
            Client { connection, id: id.to_string(), waiting: None }
        };
        let mut server = Connection::open(port);
        server.ask(&words(&["FLUSHALL"]));
        Self {
            model: Model::new(Arc::new(Clock::stopped(0))),
            server,
            clients: (0..CLIENTS).map(client).collect(),
            rng: Rng::with_seed(seed),
            last: VecDeque::new(),
            served: 0,
        }
    }

    fn note(&mut self, what: String) {
        if self.last.len() == 12 {
            self.last.pop_front();
        }
        self.last.push_back(what);
    }

    /// Run a command on the server, and bring the model's clock to the time it saw.
    fn ask(&mut self, command: &[Vec<u8>]) -> Reply {
        let tell = words(&["XADD", TELLER, "MAXLEN", "1", "*", "t", "1"]);
        self.server.send(&[&words(&["MULTI"])[..], &tell[..], command, &words(&["EXEC"])[..]]);
        let queued: Vec<_> = (0..3).map(|_| self.server.reply()).collect();
        let Reply::List(mut replies) = self.server.reply() else { panic!("not carried out: {queued:?}") };
        let reply = replies.pop().unwrap_or(Reply::Nil);
        let told = replies.pop().unwrap_or(Reply::Nil).words();
        let now: u64 = told.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or_default();
        let clock = self.model.clock();
        clock.advance(Duration::from_millis(now.saturating_sub(clock.server_ms())));
        reply
    }

    fn step(&mut self) -> Result<(), String> {
        let model = Arc::clone(&self.model);
        match self.rng.u32(..100) {
            0..=5 => return self.block(),
            6 => return self.unblock(),
            _ => {}
        }
        let step = model.run(|keys| Chooser { rng: &mut self.rng, keys }.step());
        let there = self.ask(&step.words());
        let there = step.known(there);
        let here = model.run(|keys| step.apply(keys));
        self.note(format!("{}\n   => {there:?}", line(&step.words())));
        if here != there {
            return Err(format!("{}\n   server: {there:?}\n   model:  {here:?}", line(&step.words())));
        }
        self.serve()
    }

    /// A client that is free sends a read that blocks.
    fn block(&mut self) -> Result<(), String> {
        let Some(at) = self.clients.iter().position(|client| client.waiting.is_none()) else {
            return Ok(());
        };
        let model = Arc::clone(&self.model);
        let mut read = model.run(|keys| Chooser { rng: &mut self.rng, keys }.read());
        (read.claim, read.consumer) = (read.claim.map(|_| LONG), BLOCKER.to_owned());
        self.note(format!("client {at} blocks: {read:?}"));
        self.ask(&words(&["PING"]));
        let asked = model.ask(i64::try_from(at).unwrap_or(0), &read, Some(0));
        let client = &mut self.clients[at];
        client.connection.send(&[&read_words(&read, Some(0)).0]);
        client.waiting = Some((read, asked));
        let before = self.served;
        self.serve()?;
        let patience = Instant::now() + Duration::from_secs(5);
        while self.served == before {
            let list = self.server.ask(&words(&["CLIENT", "LIST", "ID", &self.clients[at].id])).words();
            if list.contains("flags=b") {
                return Ok(());
            }
            if Instant::now() > patience {
                return Err(format!("client {at} is blocked in the model, on the server it is: {list}"));
            }
        }
        Ok(())
    }

    fn unblock(&mut self) -> Result<(), String> {
        let at = self.rng.usize(..CLIENTS);
        self.note(format!("client {at} is unblocked"));
        let id = self.clients[at].id.clone();
        let there = self.server.ask(&words(&["CLIENT", "UNBLOCK", &id]));
        let here = self.model.unblock(i64::try_from(at).unwrap_or(0));
        if there != Reply::int(i64::from(here)) {
            return Err(format!("unblocking client {at}: server {there:?}, model {here}"));
        }
        self.serve()
    }

    /// Compare what blocked clients were answered by now.
    fn serve(&mut self) -> Result<(), String> {
        let mut served = false;
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            let Some((read, mut asked)) = client.waiting.take() else { continue };
            let Some(answer) = asked.try_answer() else {
                if let Some(reply) = client.connection.poll() {
                    return Err(format!("client {at}, which waits in the model, is answered by the server: {reply:?}"));
                }
                client.waiting = Some((read, asked));
                continue;
            };
            // A wait in vain and one for one's own entries, of which there are none, are answered differently.
            let answer = answer.map(|found| (!found.is_empty() || !replies::is_new(read.from)).then_some(found));
            let (here, there) = (replies::read(&read, answer), client.connection.reply());
            if replies::without_idle(&here) != replies::without_idle(&there) {
                return Err(format!("blocked client {at}: {read:?}\n   server: {there:?}\n   model:  {here:?}"));
            }
            (served, self.served) = (true, self.served + 1);
            self.note(format!("client {at} is served: {there:?}"));
        }
        if served { self.take_over_times() } else { Ok(()) }
    }

    /// The server served blocked clients at a time of its own: take it over.
    fn take_over_times(&mut self) -> Result<(), String> {
        for key in KEYS {
            let full = self.ask(&words(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]));
            let model = Arc::clone(&self.model);
            for group in full.named("groups").items() {
                let name = group.named("name").words();
                let times: Vec<_> = group.named("pending").items().iter().map(Reply::items).collect();
                let order = model.run(|keys| keys.pending_by_age(key, &name)).map_err(|error| error.to_string())?;
                for entry in order.iter().filter(|entry| !entry.consumer.is_empty()) {
                    let id = Reply::text(entry.id.to_string());
                    let there = times.iter().find(|parts| parts[0] == id).map(|parts| parts[2].clone());
                    let Some(Reply::Int(there)) = there else {
                        return Err(format!("{} is pending in group {name} of {key} in the model only", entry.id));
                    };
                    let here = i64::try_from(model.clock().server_ms()).unwrap_or(0) - entry.idle;
                    if here == there {
                        continue;
                    }
                    if (here - there).abs() > TOLERANCE {
                        return Err(format!("{} was delivered at {there}, in the model at {here}", entry.id));
                    }
                    let at = Claim {
                        delivered: Delivered::At(there),
                        count: Some(entry.count),
                        just_id: true,
                        ..Claim::default()
                    };
                    let taken = model.run(|keys| keys.xclaim(key, &name, &entry.consumer, &at, &[entry.id]));
                    taken.map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Compare everything that is there.
    fn look(&mut self) -> Result<(), String> {
        for key in KEYS {
            let full = self.ask(&words(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]));
            let model = Arc::clone(&self.model);
            let here = model.run(|keys| replies::everything(keys, key));
            let there = replies::everything_known(&full);
            if here != there {
                return Err(format!("all of {key}\n   server: {there:?}\n   model:  {here:?}"));
            }
            for group in full.named("groups").items() {
                let name = group.named("name").words();
                let step = Step::PendingRange {
                    key: key.into(),
                    group: name,
                    idle: 0,
                    range: Range::ALL,
                    count: 1_000_000,
                    consumer: None,
                };
                let there = self.ask(&step.words());
                let here = model.run(|keys| step.apply(keys));
                if here != there {
                    return Err(format!("{step:?}\n   server: {there:?}\n   model:  {here:?}"));
                }
            }
        }
        Ok(())
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn run(port: u16, seed: u64, steps: u64) -> usize {
    let mut pair = Pair::new(port, seed);
    for step in 1..=steps {
        let mut result = pair.step();
        if result.is_ok() && (step % LOOK as u64 == 0 || step == steps) {
            result = pair.look();
        }
        if let Err(difference) = result {
            let last = pair.last.make_contiguous().join("\n");
            panic!("step {step}, again with MODEL_SEED={seed} MODEL_STEPS={step}\n{last}\n\nDIFFERENCE {difference}");
        }
    }
    pair.served
}

/// One run of commands on a model of its own, by a clock that is moved: all that it answers.
fn alone(seed: u64) -> Vec<Reply> {
    let model = Model::new(Arc::new(Clock::stopped(1_800_000_000_000)));
    let mut rng = Rng::with_seed(seed);
    let mut waiting: VecDeque<(GroupRead, Asked)> = VecDeque::new();
    let mut answers = Vec::new();
    for client in 0..4_000 {
        if rng.u32(..10) == 0 {
            let read = model.run(|keys| Chooser { rng: &mut rng, keys }.read());
            let asked = model.ask(client, &read, Some(rng.u64(1..90)));
            waiting.push_back((read, asked));
        } else {
            let step = model.run(|keys| Chooser { rng: &mut rng, keys }.step());
            answers.push(model.run(|keys| step.apply(keys)));
        }
        model.clock().advance(Duration::from_millis(rng.u64(..20)));
        for _ in 0..waiting.len() {
            let Some((read, mut asked)) = waiting.pop_front() else { break };
            match asked.try_answer() {
                Some(answer) => answers.push(replies::read(&read, answer.map(Some))),
                None => waiting.push_back((read, asked)),
            }
        }
    }
    answers.extend(KEYS.map(|key| model.run(|keys| replies::everything(keys, key))));
    answers
}

/// The same commands at the same times have the same results, blocked clients included.
#[test]
fn a_model_with_a_stopped_clock_does_the_same_every_time() {
    let first = alone(1);
    assert!((0..10).all(|_| alone(1) == first) && alone(2) != first);
}

/// The model is what it says it is.
#[test]
#[expect(clippy::print_stdout, reason = "how much was compared is part of the result")]
fn random_commands_have_the_same_replies_and_leave_the_same_behind() {
    let server = Server::start("redis-8.10-8.10.2");
    let begun = Instant::now();
    let steps = number("MODEL_STEPS").unwrap_or(15_000);
    // One that is the same in every run, and one that is new in each.
    for seed in number("MODEL_SEED").map_or_else(|| vec![1, fastrand::u64(..)], |seed| vec![seed]) {
        let woken = run(server.port, seed, steps);
        println!("seed {seed}: {steps} steps, {woken} blocked clients served, {:?}", begun.elapsed());
        assert!(steps < 5_000 || woken > 20, "blocked clients were hardly ever served: {woken}");
    }
}
