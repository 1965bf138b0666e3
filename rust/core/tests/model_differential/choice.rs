//! Chooses commands by a seed, with an eye on what is there: most of them hit something, some miss on purpose.

use fastrand::Rng;
use ruststream_core::entry::EntryId;
use ruststream_core::model::{
    AddId, Claim, Delivered, From, GroupRead, HandBack, Keep, Keyspace, LAST, Position, Range, References, TrimTo,
};

use crate::steps::{Fields, Step};

/// Streams; ids are given by hand in the first two and by the clock in the last.
pub(crate) const STREAMS: [&str; 3] = ["a", "b", "auto"];
/// A sorted set.
pub(crate) const SORTED: &str = "z";
/// All keys; any may get any type.
pub(crate) const KEYS: [&str; 4] = ["a", "b", "auto", SORTED];
/// Longer than any test, shorter than since the epoch.
pub(crate) const LONG: u64 = 10_000_000_000;
const GROUPS: [&str; 3] = ["g1", "g2", "g3"];
const CONSUMERS: [&str; 3] = ["c1", "c2", "c3"];
/// The consumer of reads that block.
pub(crate) const BLOCKER: &str = "blocker";

/// A source of commands.
pub(crate) struct Chooser<'a> {
    /// The seed's numbers.
    pub(crate) rng: &'a mut Rng,
    /// What is there.
    pub(crate) keys: &'a Keyspace,
}

impl Chooser<'_> {
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    fn key(&mut self) -> String {
        if self.percent(1) { SORTED.into() } else { self.one(&STREAMS).into() }
    }

    /// A group, mostly one that is there.
    fn group(&mut self, key: &str) -> String {
        let there = self.keys.xinfo_groups(key).unwrap_or_default();
        if there.is_empty() || self.percent(10) {
            return self.one(&GROUPS).into();
        }
        there[self.rng.usize(..there.len())].name.clone()
    }

    fn consumer(&mut self) -> String {
        self.one(&CONSUMERS).into()
    }

    fn near(&mut self, id: EntryId) -> EntryId {
        match self.rng.u32(..8) {
            0 => id.previous(),
            1 => id.next(),
            2 => EntryId::new(id.ms + 1, 0),
            3 => EntryId::new(id.ms.saturating_sub(1), id.seq),
            _ => id,
        }
    }

    /// An id of this stream: of an entry, of a pending one, or near to one.
    fn id(&mut self, key: &str, group: &str) -> EntryId {
        let pending = self.keys.xpending_range(key, group, 0, Range::ALL, 400, None).unwrap_or_default();
        let known: Vec<_> = if pending.is_empty() || self.percent(25) {
            self.keys.xrange(key, Range::ALL, Some(400)).unwrap_or_default().iter().map(|body| body.id()).collect()
        } else {
            pending.iter().map(|entry| entry.id).collect()
        };
        let id = if known.is_empty() { EntryId::new(self.rng.u64(..50), 0) } else { self.one(&known) };
        if self.percent(15) { self.near(id) } else { id }
    }

    fn ids(&mut self, key: &str, group: &str) -> Vec<EntryId> {
        let count = if self.percent(10) { 10 } else { 4 };
        (0..self.rng.usize(1..=count)).map(|_| self.id(key, group)).collect()
    }

    fn range(&mut self, key: &str, group: &str) -> Range {
        let start = if self.percent(50) { EntryId::ZERO } else { self.id(key, group) };
        let end = if self.percent(60) { LAST } else { self.id(key, group) };
        Range { start, end }
    }

    fn count(&mut self) -> usize {
        self.one(&[0, 1, 1, 2, 2, 3, 5, 10, 100])
    }

    fn idle(&mut self) -> u64 {
        self.one(&[0, 0, 1, 2, 5, 50, 1_000, 60_000, LONG, 1_000 * LONG])
    }

    fn fields(&mut self) -> Fields {
        let count = self.one(&[1, 1, 1, 2, 3, 20]);
        let value = |chooser: &mut Self| -> Vec<u8> {
            match chooser.rng.u32(..8) {
                0 => chooser.rng.i64(..).to_string().into_bytes(),
                1 => chooser.rng.u32(..5000).to_string().into_bytes(),
                2 => vec![b'v'; chooser.one(&[0, 63, 64, 300, 3000])],
                3 => (0..chooser.rng.usize(..9)).map(|_| chooser.rng.u8(..)).collect(),
                _ => b"value".to_vec(),
            }
        };
        let names: [&[u8]; 5] = [b"_payload", b"f", b"", b"12", b"h:redis-partition-key"];
        (0..count).map(|_| (self.one(&names).to_vec(), value(self))).collect()
    }

    fn trim(&mut self, key: &str) -> TrimTo {
        let approximate = self.percent(40);
        let length = self.keys.xlen(key).unwrap_or_default();
        let keep = if self.percent(60) {
            let cut = self.one(&[0, 1, 3, 50, 101, 250]);
            Keep::Newest(if self.percent(3) { 0 } else { length.saturating_sub(cut) as u64 })
        } else {
            let early = self.keys.xrange(key, Range::ALL, Some(120)).unwrap_or_default();
            Keep::From(if early.is_empty() { EntryId::ZERO } else { early[self.rng.usize(..early.len())].id() })
        };
        TrimTo { keep, approximate }
    }

    fn add(&mut self, key: String) -> Step {
        let last = self.keys.xinfo_stream(&key).map_or(EntryId::ZERO, |info| info.last_generated_id);
        let id = if key == STREAMS[2] && !self.percent(5) {
            AddId::Auto
        } else {
            match self.rng.u32(..40) {
                0 => AddId::Exact(last),
                1 => AddId::Exact(EntryId::ZERO),
                2..=4 => AddId::Ms(last.ms),
                5 => AddId::Ms(last.ms.saturating_sub(1)),
                6..=20 => AddId::Exact(EntryId::new(last.ms, last.seq + self.rng.u64(1..4))),
                _ => AddId::Exact(EntryId::new(last.ms + self.rng.u64(1..3), self.rng.u64(..3))),
            }
        };
        let trim = self.percent(4).then(|| self.trim(&key));
        Step::Add { id, fields: self.fields(), trim, key }
    }

    /// A read of a group.
    pub(crate) fn read(&mut self) -> GroupRead {
        let (key, consumer) = (self.key(), self.consumer());
        let group = self.group(&key);
        let from = match self.rng.u32(..20) {
            0 => From::Own(LAST),
            1 | 2 => From::Own(EntryId::ZERO),
            3 => From::Own(self.id(&key, &group)),
            _ => From::New,
        };
        let claim = self.percent(50).then(|| self.idle());
        let no_ack = self.percent(5);
        GroupRead { from, count: self.count(), claim, no_ack, ..GroupRead::new(&key, &group, &consumer) }
    }

    fn claim(&mut self) -> Claim {
        let now = i64::try_from(self.keys.now()).unwrap_or(i64::MAX);
        let delivered = match self.rng.u32(..10) {
            0..=4 => Delivered::Now,
            5..=7 => Delivered::Ago(self.one(&[0, 1, 4, 900, 59_990, 60_001, -5, i64::MAX / 2])),
            _ => Delivered::At(self.one(&[0, -7, now, now - 3, now - 2_000, now + 5_000])),
        };
        let count = self.percent(20).then(|| self.one(&[0, 1, 5, i64::MAX, -3]));
        let min_idle = self.idle();
        Claim { min_idle, delivered, count, force: self.percent(15), just_id: self.percent(40) }
    }

    fn position(&mut self, key: &str, group: &str) -> Position {
        match self.rng.u32(..4) {
            0 => Position::End,
            1 => Position::After(EntryId::ZERO),
            _ => Position::After(self.id(key, group)),
        }
    }

    fn on_groups(&mut self) -> Step {
        let key = self.key();
        let group = if self.percent(50) { self.one(&GROUPS).into() } else { self.group(&key) };
        let read = self.percent(10).then(|| self.rng.u64(..80));
        match self.rng.u32(..20) {
            0..=8 => Step::Create { at: self.position(&key, &group), make: self.percent(70), read, key, group },
            9..=12 => Step::SetId { at: self.position(&key, &group), read, key, group },
            13 => Step::Destroy { key, group },
            14..=16 => Step::CreateConsumer { key, group, consumer: self.consumer() },
            _ => Step::DeleteConsumer { key, group, consumer: self.consumer() },
        }
    }

    fn on_the_set(&mut self) -> Step {
        let key: String = if self.percent(95) { SORTED.into() } else { self.one(&STREAMS).into() };
        let member = self.one(&["m1", "m2", "m3", "M", ""]).to_owned();
        match self.rng.u32(..6) {
            0 | 1 => Step::Zadd { key, score: self.rng.i32(-3..4), member },
            2 => Step::Zrem { key, member },
            3 => Step::ZrangeByScore { key, maximum: self.rng.i32(-4..5), limit: self.rng.usize(..4) },
            4 => Step::Zrange { key, first: self.rng.i64(-6..6), last: self.rng.i64(-6..6) },
            _ => Step::Zcard { key },
        }
    }

    /// The next command.
    pub(crate) fn step(&mut self) -> Step {
        let (key, consumer) = (self.key(), self.consumer());
        let group = self.group(&key);
        if self.keys.kind(&key) == "string" && self.percent(30) {
            return Step::Remove { key };
        }
        match self.rng.u32(..1000) {
            0..=279 => self.add(key),
            280..=289 => Step::Len { key },
            290..=309 => {
                let range = self.range(&key, &group);
                Step::Range { range, count: self.count(), reverse: self.percent(30), key }
            }
            310..=349 => Step::Delete { ids: self.ids(&key, &group), key },
            350..=364 => Step::Trim { to: self.trim(&key), key },
            365..=389 => self.on_groups(),
            390..=569 => Step::Read(self.read()),
            570..=639 => Step::Ack { ids: self.ids(&key, &group), key, group },
            640..=679 => {
                let references = self.one(&[References::Keep, References::Delete, References::Acked]);
                Step::AckDelete { references, ids: self.ids(&key, &group), key, group }
            }
            680..=739 => {
                let count = HandBack::Count(self.one(&[0, 3, i64::MAX, -1]));
                let how = self.one(&[HandBack::Silent, HandBack::Fail, HandBack::Fatal, count]);
                Step::Nack { how, ids: self.ids(&key, &group), force: self.percent(15), key, group }
            }
            740..=819 => {
                let (claim, ids) = (self.claim(), self.ids(&key, &group));
                Step::Claim { claim, ids, consumer, key, group }
            }
            820..=869 => {
                let start = if self.percent(60) { EntryId::ZERO } else { self.id(&key, &group) };
                let (min_idle, count, just_id) = (self.idle(), self.count(), self.percent(30));
                Step::Autoclaim { min_idle, start, count, just_id, consumer, key, group }
            }
            870..=884 => Step::Pending { key, group },
            885..=929 => {
                let (idle, range) = (self.idle(), self.range(&key, &group));
                let consumer = self.percent(40).then_some(consumer);
                Step::PendingRange { idle, range, count: self.count(), consumer, key, group }
            }
            930..=939 => Step::InfoStream { key },
            940..=959 => Step::InfoGroups { key },
            960..=961 => Step::Remove { key },
            962 => Step::Set { key },
            _ => self.on_the_set(),
        }
    }
}
