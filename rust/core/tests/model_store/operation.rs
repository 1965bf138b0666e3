//! Operations of a `StreamStore`, chosen by a seed before it is known which ids and deliveries they are about.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use ruststream_core::append::{Append, Trim};
use ruststream_core::header;
use ruststream_core::letter::{Letter, Reason};
use ruststream_core::order::Action;
use ruststream_core::store::{Bound, Look, Want};

use crate::side::{DELAYED, HOUR, LETTERS, MARKS, READERS, STREAM};

/// An order, before it is known whose token it is for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) token: usize,
    pub(crate) owner: Option<usize>,
    pub(crate) miscounted: bool,
    pub(crate) action: Action,
}

/// What is done to the server behind the store's back.
#[derive(Debug, Clone)]
pub(crate) enum Behind {
    Delete(Vec<usize>),
    Remove(&'static str),
    Text(&'static str),
    Strange(Vec<u8>),
    Destroy(&'static str),
}

/// One operation. Ids and deliveries are picked by their number.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Append(Vec<Append>, bool),
    Create { group: &'static str, start: &'static str },
    Move { group: &'static str, position: &'static str },
    Where { group: &'static str },
    Read { reader: usize, want: Want, ahead: Option<Want> },
    Settle { reader: usize, acks: Vec<usize>, orders: Vec<Wanted> },
    Renew { reader: usize, ids: Vec<usize> },
    Release { reader: usize, ids: Vec<usize>, earlier: u32 },
    Scan { reader: usize, own: Option<(Vec<usize>, bool)>, from: Vec<usize>, count: usize, letters: bool },
    Due { reader: usize, look: Look },
    Early { reader: usize, last: usize },
    Unpark { reader: usize, offset: usize, limit: usize },
    Mark { reader: usize, tokens: Vec<usize>, text: &'static str, miscounted: bool },
    Marks { ids: Vec<usize> },
    Unmark { reader: usize, ids: Vec<usize> },
    Unblock { reader: usize },
    Consumers { group: &'static str, living: Vec<&'static str> },
    Forget { group: &'static str, names: Vec<&'static str>, idle: Duration },
    Trim { groups: Vec<String>, bound: Bound, limit: usize },
    Behind(Behind),
}

/// A source of operations.
pub(crate) struct Chooser {
    pub(crate) rng: Rng,
    /// A key that holds a text for now.
    pub(crate) text: Option<&'static str>,
}

impl Chooser {
    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())].clone()
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    /// A few of what there is, mostly of the latest.
    fn picks(&mut self, there: usize, most: usize) -> Vec<usize> {
        let from = there.saturating_sub(if self.percent(80) { 12 } else { 60 });
        (0..self.rng.usize(..=most)).map(|_| self.rng.usize(from..there.max(from + 1))).collect()
    }

    fn append(&mut self) -> Append {
        let mut fields: Vec<(&[u8], &[u8])> = vec![(header::PAYLOAD, b"body")];
        let more: [(&[u8], &[u8]); 8] = [
            (header::KEY, b"acct-1"),
            (b"h:Redis-Partition-Key", b"\xff\r\n"),
            (header::RETRY_COUNT, b"2"),
            (header::RETRY_GROUP, b"g"),
            (header::RETRY_GROUP, b"h"),
            (b"h:redis-idle-ms", b"7"),
            (b"h:X-Dead-Letter-Group", b"old"),
            (b"", b""),
        ];
        for _ in 0..self.rng.usize(..3) {
            fields.push(self.one(&more));
        }
        let bad = [("MAXLEN", "-1"), ("MAXLEN", "x"), ("MINID", "x")];
        let good = [("MAXLEN", "40"), ("MINID", "0-1"), ("MAXLEN", "25")];
        let trim = self.percent(8).then(|| if self.percent(20) { self.one(&bad) } else { self.one(&good) });
        let trim = trim.map(|(strategy, threshold)| Trim {
            strategy,
            threshold: threshold.to_owned(),
            // How much an approximate trim leaves depends on the ids, which differ here.
            approximate: false,
        });
        let fields = if self.percent(1) { Vec::new() } else { fields };
        Append {
            stream: STREAM.into(),
            fields: fields
                .into_iter()
                .map(|(name, value)| (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)))
                .collect(),
            trim,
        }
    }

    fn order(&mut self, tokens: usize) -> Wanted {
        let letter = |error| Action::Bury(Letter::new(&Arc::from(LETTERS), Reason::Rejected, error));
        let action = match self.rng.u32(..8) {
            0 | 1 => Action::Ack,
            2 => Action::Copy,
            3 => Action::Delay(HOUR),
            5 if self.percent(50) => Action::Keep(HOUR),
            4 | 5 => Action::Park { delay: HOUR, resent: self.percent(30) },
            6 if self.percent(50) => letter(None),
            6 => letter(Some(b"ValueError: \xff")),
            7 => Action::Again { resent: self.percent(30) },
            _ => {
                // A reply always has fields: the two would say it in different words that there are none.
                let reply = self.append();
                if reply.fields.is_empty() { Action::Ack } else { Action::Reply(Arc::new(reply)) }
            }
        };
        let owner = self.percent(10).then(|| self.rng.usize(..READERS.len()));
        let token = self.picks(tokens, 1).first().copied().unwrap_or_else(|| tokens.saturating_sub(1));
        Wanted { token, owner, miscounted: self.percent(10), action }
    }

    fn behind(&mut self, ids: usize) -> Step {
        Step::Behind(match self.rng.u32(..20) {
            0..=14 => Behind::Delete(self.picks(ids, 4)),
            15 => Behind::Remove(self.one(&[STREAM, DELAYED, LETTERS, MARKS])),
            16 => {
                let key = self.one(&[STREAM, DELAYED, LETTERS, MARKS]);
                self.text = Some(key);
                Behind::Text(key)
            }
            17 | 18 => Behind::Strange(
                self.one(&[
                    &b"text"[..],
                    b"\x92\xa1a\xa1b",
                    b"\x93\xa1a\xa1b\xa1c",
                    b"\x93\xa31-1\xa1h\xa11",
                    b"\x80",
                    b"",
                ])
                .to_vec(),
            ),
            _ => Behind::Destroy(self.one(&["g", "h"])),
        })
    }

    /// What is done now and then: to consumers, and against growth.
    fn upkeep(&mut self, group: &'static str) -> Step {
        let names: Vec<_> = ["c1", "c2", "nobody"].into_iter().filter(|_| self.percent(50)).collect();
        match self.rng.u32(..4) {
            0 => Step::Consumers { group, living: names },
            1 => Step::Forget { group, names, idle: self.one(&[Duration::ZERO, HOUR]) },
            _ => {
                let lengths = [0, 3, 20, 60].map(Bound::Length);
                let bound =
                    self.one(&[&lengths[..], &[Bound::Acked, Bound::Age(HOUR), Bound::Age(Duration::ZERO)]].concat());
                let groups = ["g", "h"].into_iter().filter(|_| self.percent(30)).map(str::to_owned).collect();
                Step::Trim { groups, bound, limit: self.one(&[1, 7, 1000]) }
            }
        }
    }

    /// The next operation, where there are so many ids and tokens.
    pub(crate) fn step(&mut self, ids: usize, tokens: usize, claims: bool) -> Step {
        if self.text.is_some() && self.percent(10) {
            return Step::Behind(Behind::Remove(self.text.take().unwrap_or(STREAM)));
        }
        let group = self.one(&["g", "g", "h"]);
        let reader = self.rng.usize(..READERS.len());
        match self.rng.u32(..100) {
            0..=24 => {
                let entries: Vec<_> = (0..self.rng.usize(1..5)).map(|_| self.append()).collect();
                // What is wrong with a trim shows only when it is carried out; a publisher sends none that is.
                let sound = entries.iter().all(|entry| entry.trim.is_none() && !entry.fields.is_empty());
                Step::Append(entries, sound && self.percent(20))
            }
            25..=28 => Step::Create { group, start: self.one(&["0", "$", "0", "x", "-"]) },
            29 => Step::Move { group, position: self.one(&["0", "$", "-", "+", "x", "5-1"]) },
            30..=32 => Step::Where { group },
            33..=54 => {
                let block = if self.percent(10) { Some(Duration::from_millis(3)) } else { None };
                let claim =
                    self.one(&[None, None, Some(Duration::ZERO), Some(HOUR)]).filter(|_| claims || self.percent(5));
                let want = Want { count: self.rng.usize(1..7), block, claim };
                // A read that blocks ahead of its time would race with the next step.
                let ahead = (block.is_none() && self.percent(15)).then(|| Want { count: self.rng.usize(1..7), ..want });
                Step::Read { reader, want, ahead }
            }
            55..=71 => {
                let mut orders: Vec<_> = (0..self.rng.usize(..5)).map(|_| self.order(tokens)).collect();
                // One at most is due at once: ids that fall due together stand in the order of their text.
                if let Some(order) = orders.first_mut().filter(|_| self.percent(30)) {
                    let park = Action::Park { delay: Duration::ZERO, resent: false };
                    order.action = self.one(&[Action::Delay(Duration::ZERO), Action::Keep(Duration::ZERO), park]);
                }
                Step::Settle { reader, acks: self.picks(ids, 3), orders }
            }
            72..=76 => Step::Renew { reader, ids: self.picks(ids, 5) },
            77..=80 => Step::Release { reader, ids: self.picks(ids, 4), earlier: self.rng.u32(..3) },
            81..=88 => {
                let own = self.percent(50).then(|| (self.picks(ids, 3), self.percent(50)));
                let from = if self.percent(60) { Vec::new() } else { self.picks(ids, 1) };
                Step::Scan { reader, own, from, count: self.rng.usize(1..5), letters: self.percent(50) }
            }
            89 | 90 => Step::Due {
                reader,
                look: Look {
                    limit: self.rng.usize(..4),
                    room: self.rng.usize(..3),
                    offset: self.rng.usize(..2),
                    keeps_bodiless: self.percent(30),
                },
            },
            91 if self.percent(40) => {
                Step::Unpark { reader, offset: self.rng.usize(..2), limit: self.one(&[1, 3, 100]) }
            }
            91 => Step::Early { reader, last: self.rng.usize(1..12) },
            92 => {
                let text = self.one(&["1b", "2a?", "3", ""]);
                Step::Mark { reader, tokens: self.picks(tokens, 5), text, miscounted: self.percent(10) }
            }
            93 if self.percent(50) => Step::Marks { ids: self.picks(ids, 5) },
            93 => Step::Unmark { reader, ids: self.picks(ids, 5) },
            94 if self.percent(50) => Step::Unblock { reader },
            94..=96 => self.upkeep(group),
            _ => self.behind(ids),
        }
    }
}
