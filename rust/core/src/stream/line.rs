//! Who waits in front of the gate, and who goes next: some that may run beside others, or one that runs alone.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use super::attempts::{Attempts, Next};
use super::settings::Cap;
use crate::batch::Mark;
use crate::entry::{EntryId, KEYLESS};
use crate::token::Token;

/// How long one that has to run alone lets others go first, how long it then waits for those that run to end before
/// others may go on, and how long others wait for it: a slow handler must not stop the rest for ever.
const OTHERS_FIRST: Duration = Duration::from_secs(5);
const OTHERS_END: Duration = Duration::from_secs(30);
const OTHERS_WAIT: Duration = Duration::from_secs(5);
/// Entries looked at for the next group.
const LOOK: usize = 1000;
/// How many are marked ahead of the lanes at most, where handlers are quicker than a round trip, of which each costs its
/// share: 30,800 parked retries/s against 16,400 with 8 workers, 30,400 against 6,200 with one.
const AHEAD: usize = 64;

/// One that waits, and what is known of its starts.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    token: Token,
    attempts: Attempts,
    next: Next,
    /// It may be marked ahead of the lanes.
    may_wait: bool,
    /// The lanes keep its key for it: what was let through behind it starts after it.
    is_head: bool,
}

/// One that was let through and is not done.
#[derive(Debug, Clone)]
pub(super) struct Passed {
    pub(super) token: Token,
    /// What was known of its starts before this one.
    pub(super) before: Attempts,
    /// The mark that was written.
    pub(super) now: Attempts,
    alone: bool,
    may_wait: bool,
    /// The server knows that it ended, and that it stays pending.
    pub(super) is_noted: bool,
}

impl Passed {
    /// Whether it would count as one whose end is not known, should the process die now: until its outcome was answered,
    /// or its end noted.
    fn is_open(&self) -> bool {
        self.token.mark() != Mark::Done && !self.is_noted
    }

    fn is_unstarted(&self) -> bool {
        self.token.mark() == Mark::Queued
    }
}

/// Those that wait, in the order they came, and those that were let through.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Nothing is known of their starts yet.
    pub(super) arrived: VecDeque<Token>,
    waiting: VecDeque<Waiting>,
    pub(super) passed: BTreeMap<EntryId, Passed>,
    /// Those of what has come that the lanes keep their keys for.
    pub(super) heads: HashSet<EntryId>,
    /// What waits is given back: nothing more is let through.
    closed: bool,
    /// Since when, in milliseconds of the clock, one that has to run alone waits, and runs.
    alone_waits: Option<u64>,
    alone_runs: Option<u64>,
    /// How many may be marked and not started, where waiting does them no harm: more, while the lanes start all of them
    /// during one write. Never fewer than there are workers.
    ahead: usize,
}

fn since(moment: Option<u64>, now: u64) -> Duration {
    Duration::from_millis(moment.map_or(0, |moment| now.saturating_sub(moment)))
}

impl Line {
    /// Whether nothing waits, nor is on its way to a lane.
    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.waiting.is_empty() && !self.passed.values().any(Passed::is_unstarted)
    }

    /// Take out what has not started. Nothing is let through from now on.
    pub(super) fn close(&mut self) -> Vec<Token> {
        self.closed = true;
        let mut tokens: Vec<_> = self.arrived.drain(..).collect();
        tokens.extend(self.waiting.drain(..).map(|waiting| waiting.token));
        // Also those on their way to a lane: whoever takes one out of the queue first has it.
        tokens.extend(self.passed.values().map(|passed| passed.token.clone()));
        tokens.retain(|token| token.mark() == Mark::Queued);
        tokens
    }

    /// Forget what is done.
    pub(super) fn sweep(&mut self) {
        self.passed.retain(|_, passed| passed.token.mark() != Mark::Done);
        if self.is_empty() {
            self.ahead = 0;
        }
    }

    /// Of what has come, put those that may run in line, and return those that may not.
    pub(super) fn sort(&mut self, cap: &Cap, tokens: &[Token], marks: &[Option<String>]) -> Vec<Token> {
        let mut exhausted = Vec::new();
        let came = tokens.len().min(self.arrived.len());
        self.arrived.drain(..came);
        for (at, token) in tokens.iter().enumerate() {
            let is_head = self.heads.remove(&token.id());
            if token.mark() != Mark::Queued {
                continue;
            }
            let mark = marks.get(at).and_then(Option::as_deref).and_then(Attempts::parse);
            // With a cap of one even the first start is marked. Otherwise it may have been started as a fresh entry.
            let doubtful = cap.attempts > 1;
            let attempts = mark.unwrap_or(Attempts { doubtful, ..Attempts::default() });
            let before = token.attempts_before();
            let (next, may_wait) = (attempts.next(before, cap.attempts), attempts.may_wait(before, cap.attempts));
            let token = token.clone();
            if next == Next::Exhausted {
                exhausted.push(token.clone());
                let (before, now) = (attempts, attempts);
                let passed = Passed { token, before, now, alone: false, may_wait, is_noted: false };
                self.passed.insert(passed.token.id(), passed);
            } else {
                let waiting = Waiting { token, attempts, next, may_wait, is_head };
                if is_head {
                    self.waiting.push_front(waiting);
                } else {
                    self.waiting.push_back(waiting);
                }
            }
        }
        exhausted
    }

    /// Take out what was taken back meanwhile. Returns those of them that are somebody else's by now.
    pub(super) fn take_lost(&mut self) -> Vec<Token> {
        let lost = self.waiting.iter().map(|waiting| &waiting.token).filter(|token| token.is_lost());
        let lost: Vec<_> = lost.cloned().collect();
        self.waiting.retain(|Waiting { token, .. }| !token.is_lost() && token.mark() == Mark::Queued);
        lost
    }

    /// Note what has to run alone at this moment. Returns whether others may go on before it or beside it.
    fn others_may_go(&mut self, now: u64) -> bool {
        if self.passed.values().any(|passed| passed.alone && passed.is_open()) {
            self.alone_waits = None;
            self.alone_runs.get_or_insert(now);
            return since(self.alone_runs, now) >= OTHERS_WAIT;
        }
        self.alone_runs = None;
        if !self.waiting.iter().any(|waiting| waiting.next == Next::Alone) {
            self.alone_waits = None;
            return true;
        }
        self.alone_waits.get_or_insert(now);
        let waited = since(self.alone_waits, now).as_millis();
        waited % (OTHERS_FIRST + OTHERS_END).as_millis() < OTHERS_FIRST.as_millis()
    }

    /// Choose the next to go, by their places in line: some that may run beside others, or one that runs alone.
    fn choose(&mut self, workers: usize, now: u64) -> (Vec<usize>, bool) {
        let others = self.others_may_go(now);
        let heads = self.waiting.iter().filter(|waiting| waiting.is_head);
        let kept: HashSet<_> = heads.map(|waiting| waiting.token.slot().partition).collect();
        // What was let through behind one that the lanes keep its key for can't start before it, and is not waited for.
        let is_behind = |passed: &Passed| passed.is_unstarted() && kept.contains(&passed.token.slot().partition);
        let mut open = self.passed.values().filter(|passed| passed.is_open() && !is_behind(passed));
        let unstarted: Vec<_> = self.passed.values().filter(|passed| passed.is_unstarted()).collect();
        let mut taken: HashSet<u16> = unstarted.iter().map(|passed| passed.token.slot().partition).collect();
        let mut room = workers.saturating_sub(unstarted.iter().filter(|passed| !passed.may_wait).count());
        let room_ahead = self.ahead.max(workers).saturating_sub(unstarted.len());
        let (mut chosen, mut alone) = (Vec::new(), None);
        for (at, waiting) in self.waiting.iter().enumerate().take(LOOK) {
            // Not past one of the same key, and one of a key at a time: a key that is stuck keeps no others back.
            let partition = waiting.token.slot().partition;
            if partition != KEYLESS && !taken.insert(partition) && !waiting.is_head {
                continue;
            }
            let has_room = waiting.is_head || chosen.len() < room_ahead && (waiting.may_wait || room > 0);
            match waiting.next {
                Next::Beside if others && has_room => {
                    room = room.saturating_sub(usize::from(!waiting.may_wait));
                    chosen.push(at);
                }
                Next::Alone if alone.is_none() => alone = Some(at),
                _ => {}
            }
        }
        match alone {
            Some(at) if chosen.is_empty() && open.next().is_none() => (vec![at], true),
            _ => (chosen, false),
        }
    }

    /// Let the next go. Returns them with the marks that they are to have, and whether only time lets more of them go.
    pub(super) fn advance(&mut self, workers: usize, now: u64) -> (Vec<Passed>, bool) {
        if self.closed || self.waiting.is_empty() {
            return (Vec::new(), false);
        }
        let (places, alone) = self.choose(workers, now);
        let mut chosen: Vec<_> = places.iter().rev().filter_map(|at| self.waiting.remove(*at)).collect();
        chosen.reverse();
        let pass = |Waiting { token, attempts, may_wait, .. }: Waiting| {
            let now = attempts.begun(alone);
            Passed { token, before: attempts, now, alone, may_wait, is_noted: false }
        };
        let chosen: Vec<_> = chosen.into_iter().map(pass).collect();
        self.passed.extend(chosen.iter().map(|passed| (passed.token.id(), passed.clone())));
        (chosen, self.alone_waits.is_some() || self.alone_runs.is_some())
    }

    /// So many of those that go next were marked: have the lanes run dry meanwhile, or is there more ahead of them than
    /// they start?
    pub(super) fn pace(&mut self, workers: usize, marked: usize) {
        let first = self.ahead == 0;
        let ahead = self.ahead.max(workers);
        let unstarted = self.passed.values().filter(|passed| passed.is_unstarted()).count();
        self.ahead = match unstarted.saturating_sub(marked) {
            0 if !first && marked > ahead / 2 => (ahead * 2).min(AHEAD),
            before if before > ahead / 2 => ahead / 2,
            _ => ahead,
        };
    }
}
