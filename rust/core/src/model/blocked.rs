//! Clients that wait in a read, and what ends their wait: an entry, a pending one that ages, the key's or the group's
//! end, the time they gave, or another client's word.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::Model;
use super::keyspace::Keyspace;
use super::read::{Delivery, GroupRead};
use crate::error::{Error, Result};

/// What a read is answered with; nothing: it waited in vain.
pub type Answer = Result<Vec<Delivery>>;

#[derive(Debug)]
struct Waiter {
    client: i64,
    read: GroupRead,
    /// When it gives up; none: never.
    deadline: Option<u64>,
    answer: oneshot::Sender<Answer>,
    /// Rung when it may have to wake earlier than it thought.
    rearm: Arc<Notify>,
}

/// All blocked clients, the longest blocked first.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    waiters: Vec<Waiter>,
    /// When pending entries of a key may be old enough for someone who waits for it.
    watches: BTreeMap<String, u64>,
}

impl Blocked {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    fn watch(&mut self, keyspace: &Keyspace, read: &GroupRead) {
        let Some(min_idle) = read.claim else {
            return;
        };
        let oldest = keyspace.oldest_delivery(&read.key, &read.group).unwrap_or_else(|| keyspace.now());
        let ripe = oldest.saturating_add(min_idle);
        let watch = self.watches.entry(read.key.clone()).or_insert(ripe);
        *watch = ripe.min(*watch);
    }

    fn due(&self, client: i64) -> Option<u64> {
        let waiter = self.waiters.iter().find(|waiter| waiter.client == client)?;
        let watch = waiter.read.claim.and_then(|_| self.watches.get(&waiter.read.key).copied());
        [waiter.deadline, watch].into_iter().flatten().min()
    }

    /// End waits whose time has come, and signal keys whose entries have aged.
    pub(super) fn fire(&mut self, keyspace: &mut Keyspace) {
        let now = keyspace.now();
        for waiter in self.waiters.extract_if(.., |waiter| waiter.deadline.is_some_and(|deadline| deadline <= now)) {
            let _ = waiter.answer.send(Ok(Vec::new()));
        }
        let due: Vec<_> = self.watches.iter().filter(|(_, ripe)| **ripe <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.watches.remove(&key);
            if keyspace.is_stream(&key) {
                keyspace.signal(&key);
            }
        }
    }

    /// Let those who wait for signalled keys read again, the longest blocked first.
    pub(super) fn serve(&mut self, keyspace: &mut Keyspace) {
        loop {
            let ready = keyspace.take_ready();
            if ready.is_empty() {
                return;
            }
            for key in ready {
                for mut waiter in std::mem::take(&mut self.waiters) {
                    if waiter.read.key == key {
                        match keyspace.xreadgroup(&waiter.read).transpose() {
                            Some(answer) => {
                                let _ = waiter.answer.send(answer);
                                continue;
                            }
                            None => waiter = self.wait_on(keyspace, waiter),
                        }
                    }
                    self.waiters.push(waiter);
                }
            }
        }
    }

    fn wait_on(&mut self, keyspace: &Keyspace, waiter: Waiter) -> Waiter {
        self.watch(keyspace, &waiter.read);
        waiter.rearm.notify_one();
        waiter
    }

    fn remove(&mut self, client: i64) -> Option<Waiter> {
        let at = self.waiters.iter().position(|waiter| waiter.client == client)?;
        Some(self.waiters.remove(at))
    }
}

/// A read that was sent: answered at once, or blocked. Dropping it is what closing the connection is to a server.
#[derive(Debug)]
pub struct Asked {
    model: Arc<Model>,
    client: i64,
    state: State,
}

#[derive(Debug)]
enum State {
    Answered(Answer),
    Blocked { answer: oneshot::Receiver<Answer>, rearm: Arc<Notify> },
    Taken,
}

impl Model {
    /// Send a read. With `block`, it waits for so many milliseconds where there is nothing; zero: for ever. A client
    /// has one read under way at most.
    pub fn ask(self: &Arc<Self>, client: i64, read: &GroupRead, block: Option<u64>) -> Asked {
        let state = self.with_blocked(|keyspace, blocked| {
            let answer = match (keyspace.xreadgroup(read), block) {
                (Err(error), _) => Err(error),
                (Ok(None), Some(block)) => return blocked.block(keyspace, client, read, block),
                (Ok(found), _) => Ok(found.unwrap_or_default()),
            };
            State::Answered(answer)
        });
        Asked { model: Arc::clone(self), client, state }
    }

    /// `CLIENT UNBLOCK`: end a client's wait as if its time were over. False: it was not blocked.
    pub fn unblock(&self, client: i64) -> bool {
        let waiter = self.with_blocked(|_, blocked| blocked.remove(client));
        waiter.is_some_and(|waiter| waiter.answer.send(Ok(Vec::new())).is_ok())
    }

    /// How many clients are blocked.
    pub fn blocked(&self) -> usize {
        self.with_blocked(|_, blocked| blocked.len())
    }
}

impl Blocked {
    fn block(&mut self, keyspace: &Keyspace, client: i64, read: &GroupRead, block: u64) -> State {
        self.watch(keyspace, read);
        let (answer, receiver) = oneshot::channel();
        let rearm = Arc::new(Notify::new());
        let deadline = (block > 0).then(|| keyspace.now().saturating_add(block));
        self.waiters.push(Waiter { client, read: read.clone(), deadline, answer, rearm: Arc::clone(&rearm) });
        State::Blocked { answer: receiver, rearm }
    }
}

impl Asked {
    /// A read that is refused before any key is looked at.
    pub(super) fn refused(model: &Arc<Model>, client: i64, error: Error) -> Self {
        Self { model: Arc::clone(model), client, state: State::Answered(Err(error)) }
    }

    /// The answer, once, if it is there.
    pub fn try_answer(&mut self) -> Option<Answer> {
        let (answer, state) = match std::mem::replace(&mut self.state, State::Taken) {
            State::Answered(answer) => (Some(answer), State::Taken),
            State::Taken => (None, State::Taken),
            State::Blocked { mut answer, rearm } => match answer.try_recv() {
                Ok(answer) => (Some(answer), State::Taken),
                Err(_) => (None, State::Blocked { answer, rearm }),
            },
        };
        self.state = state;
        answer
    }

    /// Wait for the answer, without an eye on the time.
    pub(super) async fn served(&mut self) -> Answer {
        if let Some(answer) = self.try_answer() {
            return answer;
        }
        let State::Blocked { answer, .. } = &mut self.state else {
            return Err(Error::Protocol("a read was answered twice".into()));
        };
        let answer = answer.await;
        self.state = State::Taken;
        answer.unwrap_or_else(|_| Err(Error::Lost("the model is gone".into())))
    }

    /// Wait for the answer.
    pub async fn answer(mut self) -> Answer {
        loop {
            if let Some(answer) = self.try_answer() {
                return answer;
            }
            let State::Blocked { answer, rearm } = &mut self.state else {
                return Err(Error::Protocol("a read was answered twice".into()));
            };
            let (model, client) = (&self.model, self.client);
            let ripen = async {
                match model.with_blocked(|_, blocked| blocked.due(client)) {
                    Some(due) => model.clock().sleep_until_server_ms(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answer = answer => {
                    self.state = State::Taken;
                    return answer.unwrap_or_else(|_| Err(Error::Lost("the model is gone".into())));
                }
                () = rearm.notified() => {}
                // Whatever is due now happens before any command does.
                () = ripen => model.run(|_| ()),
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if matches!(self.state, State::Blocked { .. }) {
            self.model.with_blocked(|_, blocked| blocked.remove(self.client));
        }
    }
}

#[cfg(test)]
#[path = "blocked_tests.rs"]
mod tests;
