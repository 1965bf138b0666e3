//! A model: one server in the process. Brokers of the process that name the same one share it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use super::blocked::Blocked;
use super::keyspace::Keyspace;
use crate::clock::{Clock, Horizon};

#[derive(Debug, Default)]
struct State {
    keyspace: Keyspace,
    blocked: Blocked,
    clients: i64,
}

/// One server in the process: its keys, its clock, and the clients that wait for something.
#[derive(Debug)]
pub struct Model {
    clock: Arc<Clock>,
    state: Mutex<State>,
}

impl Model {
    /// An empty one that goes by this clock. What is handed back counts as delivered at the epoch, as on a server: a
    /// stopped clock that stands at a date of our time makes it older than any `min_idle`.
    pub fn new(clock: Arc<Clock>) -> Arc<Self> {
        let model = Arc::new(Self { clock, state: Mutex::default() });
        model.clock.watch(&model);
        model
    }

    /// The clock it goes by.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// Run commands as one step: nobody sees a part of it, and all of it happens at one time. What fell due before
    /// happens before; clients that wait for what the commands brought are served after.
    pub fn run<T>(&self, commands: impl FnOnce(&mut Keyspace) -> T) -> T {
        self.with_blocked(|keyspace, _| commands(keyspace))
    }

    /// The same, with the blocked clients.
    pub(super) fn with_blocked<T>(&self, commands: impl FnOnce(&mut Keyspace, &mut Blocked) -> T) -> T {
        let mut state = self.state.lock();
        let State { keyspace, blocked, .. } = &mut *state;
        keyspace.set_now(self.clock.server_ms());
        blocked.fire(keyspace);
        blocked.serve(keyspace);
        let result = commands(keyspace, blocked);
        blocked.serve(keyspace);
        result
    }

    /// A number for a client; what `unblock` knows it by.
    pub fn new_client(&self) -> i64 {
        let mut state = self.state.lock();
        state.clients += 1;
        state.clients
    }
}

impl Horizon for Model {
    fn next_due_ms(&self, now_ms: u64) -> Option<u64> {
        self.state.lock().keyspace.next_due(now_ms)
    }
}

static NAMED: LazyLock<Mutex<BTreeMap<String, Arc<Model>>>> = LazyLock::new(Mutex::default);

/// The models of this process that have a name (`memory://name`).
#[derive(Debug)]
pub struct Models;

impl Models {
    /// The one model of this name. It is made when it is asked for first, goes by the time of day, and keeps what it
    /// holds until the process ends or it is forgotten.
    pub fn named(name: &str) -> Arc<Model> {
        let mut named = NAMED.lock();
        let model = named.entry(name.to_owned()).or_insert_with(|| Model::new(Arc::new(Clock::new())));
        Arc::clone(model)
    }

    /// Let go of a name: the next one who asks for it gets an empty model. False: nobody had asked for it.
    pub fn forget(name: &str) -> bool {
        NAMED.lock().remove(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_model_until_it_is_forgotten() {
        let first = Models::named("models-test");
        first.run(|keys| keys.set("k", b"v"));
        assert_eq!(Models::named("models-test").run(|keys| keys.kind("k")), "string");
        assert_eq!(Models::named("models-other").run(|keys| keys.kind("k")), "none");
        assert!(Models::forget("models-test") && !Models::forget("models-test"));
        assert_eq!(Models::named("models-test").run(|keys| keys.kind("k")), "none");
        assert_eq!(first.run(|keys| keys.kind("k")), "string");
    }
}
