//! `XREADGROUP` of one stream: new entries, aged ones before them, or a consumer's own.

use std::sync::Arc;

use super::argument::{LAST, Range};
use super::body::Body;
use super::entries::Entries;
use super::group::Group;
use super::keyspace::Keyspace;
use super::refusal;
use crate::entry::EntryId;
use crate::error::Result;

/// Which entries are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// `>`: those that were never delivered.
    New,
    /// The consumer's own pending ones behind this id.
    Own(EntryId),
}

/// One read, without what a client does when there is nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRead {
    /// The stream.
    pub key: String,
    /// The group.
    pub group: String,
    /// The consumer; it is created where it is not there.
    pub consumer: String,
    /// Which entries.
    pub from: From,
    /// How many at most, aged and new ones together; zero: all.
    pub count: usize,
    /// `CLAIM`: entries that lay pending for so many milliseconds come first.
    pub claim: Option<u64>,
    /// `NOACK`: new entries do not become pending.
    pub no_ack: bool,
    /// `MAXSIZE`: add no entry once the reply has so many bytes.
    pub max_size: Option<usize>,
}

impl GroupRead {
    /// A read of all new entries.
    pub fn new(key: &str, group: &str, consumer: &str) -> Self {
        Self {
            key: key.to_owned(),
            group: group.to_owned(),
            consumer: consumer.to_owned(),
            from: From::New,
            count: 0,
            claim: None,
            no_ack: false,
            max_size: None,
        }
    }
}

/// One entry of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: EntryId,
    /// What it holds; none: it was deleted while it was pending.
    pub body: Option<Arc<Body>>,
    /// How long it lay pending before, in milliseconds. Told by reads that claim; else zero.
    pub idle: u64,
    /// Deliveries before this one. Told by reads that claim; else zero.
    pub earlier: i64,
}

/// Room left in a reply.
struct Room {
    entries: usize,
    bytes: usize,
    empty: bool,
}

impl Room {
    fn new(read: &GroupRead) -> Self {
        let entries = if read.count == 0 { usize::MAX } else { read.count };
        Self { entries, bytes: read.max_size.unwrap_or(usize::MAX), empty: true }
    }

    /// Whether one more fits; the first always does.
    fn is_left(&self) -> bool {
        self.entries > 0 && (self.empty || self.bytes > 0)
    }

    fn take(&mut self, body: &Body) {
        self.entries -= 1;
        self.bytes = self.bytes.saturating_sub(body.size());
        self.empty = false;
    }
}

impl Keyspace {
    /// `XREADGROUP`. None: there is nothing, and a client that may block does.
    pub fn xreadgroup(&mut self, read: &GroupRead) -> Result<Option<Vec<Delivery>>> {
        let now = self.now();
        let (entries, group) =
            self.group_mut(&read.key, &read.group)?.ok_or_else(|| refusal::no_group_to_read(&read.key, &read.group))?;
        let consumer = group.seen(&read.consumer, now);
        let behind = match read.from {
            // The server cannot tell the greatest id from `>`.
            From::Own(id) if id != LAST => return Ok(Some(own(entries, group, consumer, id, read, now))),
            From::Own(_) | From::New => group.last,
        };
        let mut room = Room::new(read);
        let mut deliveries = Vec::new();
        if let Some(min_idle) = read.claim {
            group.takes_over(min_idle);
            claim(entries, group, consumer, min_idle, now, &mut room, &mut deliveries);
        }
        let new = new(entries, group, behind, &mut room, &mut deliveries);
        if !read.no_ack {
            for id in deliveries[deliveries.len() - new..].iter().map(|delivery| delivery.id) {
                if let Some(nack) = group.put(id, Some(consumer), now) {
                    // One may be pending from before the group was moved back: it counts anew.
                    nack.count = 1;
                }
                group.active(consumer, now);
            }
        }
        Ok((!deliveries.is_empty()).then_some(deliveries))
    }

    /// When the oldest pending entry that still has a body was delivered.
    pub(super) fn oldest_delivery(&self, key: &str, group: &str) -> Option<u64> {
        let (entries, group) = self.group(key, group).ok().flatten()?;
        group.by_age().find(|(id, _)| entries.contains(*id)).map(|(_, delivered)| delivered)
    }
}

/// A consumer's own pending entries, once more.
fn own(
    entries: &Entries,
    group: &mut Group,
    consumer: usize,
    behind: EntryId,
    read: &GroupRead,
    now: u64,
) -> Vec<Delivery> {
    let mut room = Room::new(read);
    let mut deliveries = Vec::new();
    for (id, _) in group.owned(consumer, Range::from(behind.next())) {
        if !room.is_left() {
            break;
        }
        let body = entries.get(id).cloned();
        match &body {
            Some(body) => room.take(body),
            None => room.entries -= 1,
        }
        deliveries.push(Delivery { id, body, idle: 0, earlier: 0 });
    }
    for delivery in deliveries.iter().filter(|delivery| delivery.body.is_some()) {
        if let Some(nack) = group.put(delivery.id, Some(consumer), now) {
            nack.counted();
        }
    }
    deliveries
}

/// Take over what is old enough, the oldest first. Entries without a body are passed over and stay as they are.
fn claim(
    entries: &Entries,
    group: &mut Group,
    consumer: usize,
    min_idle: u64,
    now: u64,
    room: &mut Room,
    deliveries: &mut Vec<Delivery>,
) {
    for (id, delivered) in group.by_age() {
        let idle = now.saturating_sub(delivered);
        if idle < min_idle || !room.is_left() {
            break;
        }
        if let (Some(body), Some(nack)) = (entries.get(id), group.get(id)) {
            room.take(body);
            deliveries.push(Delivery { id, body: Some(Arc::clone(body)), idle, earlier: nack.count });
        }
    }
    for delivery in deliveries.iter() {
        if let Some(nack) = group.put(delivery.id, Some(consumer), now) {
            nack.counted();
        }
        group.active(consumer, now);
    }
}

/// Entries behind the group's cursor, which moves along. Returns how many there were.
fn new(
    entries: &Entries,
    group: &mut Group,
    behind: EntryId,
    room: &mut Room,
    deliveries: &mut Vec<Delivery>,
) -> usize {
    let before = deliveries.len();
    if behind == LAST {
        return 0;
    }
    for body in entries.range(Range::from(behind.next())) {
        if !room.is_left() {
            break;
        }
        let id = body.id();
        let sure = group.last >= entries.first() && !entries.is_holed_from(group.last);
        group.read = match group.read {
            Some(read) if sure => Some(read + 1),
            _ => entries.distance(id),
        };
        group.last = id;
        room.take(body);
        deliveries.push(Delivery { id, body: Some(Arc::clone(body)), idle: 0, earlier: 0 });
    }
    deliveries.len() - before
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
