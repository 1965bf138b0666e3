//! One consumer group as this process knows it, over all its subscriptions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::overtaken::Overtaken;
use super::trim::Trimmer;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::held::Held;
use crate::subscription::Subscription;
use crate::token::Token;

/// Ids left pending that are remembered, for where a lost group must begin again.
const MAX_LEFT: usize = 100_000;

/// Where a scan over the pending list stands. One per group and process.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) cursor: EntryId,
    /// By the clock, in milliseconds.
    pub(super) due_ms: u64,
}

#[derive(Debug, Default)]
struct Marks {
    read: EntryId,
    /// The highest id that is known to be settled.
    acked: EntryId,
    /// By whom it was read.
    left: BTreeMap<EntryId, Arc<Origin>>,
    /// What was held when the group was made again: the new one gives it out once more.
    held_over: BTreeSet<EntryId>,
}

/// A group's shared knowledge.
#[derive(Debug)]
pub struct Group {
    members: Mutex<Vec<Weak<Held>>>,
    subscriptions: Mutex<Vec<Weak<Subscription>>>,
    min_idle: Mutex<Option<Duration>>,
    marks: Mutex<Marks>,
    adopted: Mutex<HashMap<EntryId, (Arc<Origin>, u32)>>,
    any_adopted: AtomicBool,
    /// Subscriptions whose loop does not turn.
    stalled: AtomicUsize,
    /// Acks that overtake reads of pending entries.
    pub(super) overtaken: Overtaken,
    /// Rung when a read of pending entries was taken in.
    pub(super) taken_in: Notify,
    /// Held by whichever subscription scans.
    pub(super) scan: tokio::sync::Mutex<Scan>,
    /// Rung when an entry was delayed here.
    pub(super) delayed: Notify,
    /// Held while entries are parked, and while parked ones are taken over.
    pub(super) parking: tokio::sync::Mutex<()>,
    /// Held by whichever subscription looks after the group's consumers.
    pub(super) janitor: tokio::sync::Mutex<()>,
    /// The stream, over all its groups.
    pub(super) trimmer: Arc<Trimmer>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            members: Mutex::default(),
            subscriptions: Mutex::default(),
            min_idle: Mutex::default(),
            marks: Mutex::default(),
            adopted: Mutex::default(),
            any_adopted: AtomicBool::new(false),
            stalled: AtomicUsize::new(0),
            overtaken: Overtaken::default(),
            taken_in: Notify::new(),
            scan: tokio::sync::Mutex::new(Scan { cursor: EntryId::ZERO, due_ms: 0 }),
            delayed: Notify::new(),
            parking: tokio::sync::Mutex::default(),
            janitor: tokio::sync::Mutex::default(),
            trimmer: Arc::default(),
        }
    }
}

impl Group {
    /// A subscription recovers this group's entries after `min_idle`; the shortest counts.
    pub(super) fn recovered_after(&self, min_idle: Duration) {
        let mut known = self.min_idle.lock();
        *known = Some(known.map_or(min_idle, |known| known.min(min_idle)));
    }

    pub(super) fn min_idle(&self) -> Option<Duration> {
        *self.min_idle.lock()
    }

    pub(super) fn join(&self, subscription: &Arc<Subscription>) {
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&subscription.held));
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.retain(|subscription| subscription.strong_count() > 0);
        subscriptions.push(Arc::downgrade(subscription));
    }

    /// Whether several subscriptions of this process read the group: one may claim what another one holds.
    pub(super) fn is_shared(&self) -> bool {
        self.members.lock().len() > 1
    }

    /// The consumers of this process that are not closed.
    pub(super) fn living(&self) -> Vec<Arc<Origin>> {
        let subscriptions = self.subscriptions.lock();
        let open = subscriptions.iter().filter_map(Weak::upgrade).filter(|one| !one.closed.is_cancelled());
        open.map(|subscription| Arc::clone(&subscription.origin)).collect()
    }

    /// A subscription is gone as if its process had been killed: what it held is nobody's concern here any more.
    pub fn leave(&self, held: &Arc<Held>) {
        let gone = Arc::downgrade(held);
        self.members.lock().retain(|member| !member.ptr_eq(&gone));
    }

    /// A subscription's loop stopped turning, or turns again.
    pub(super) fn count_stalled(&self, stalled: bool) {
        if stalled {
            self.stalled.fetch_add(1, Ordering::AcqRel);
        } else {
            self.stalled.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire) > 0
    }

    /// The entry with this id, if any subscription of this process holds it.
    pub(super) fn find(&self, id: EntryId) -> Option<Token> {
        let members: Vec<_> = self.members.lock().iter().filter_map(Weak::upgrade).collect();
        members.iter().find_map(|held| held.find(id))
    }

    /// Note the highest id of a read. True: all of it is new to this process.
    pub(super) fn advance(&self, first: EntryId, last: EntryId) -> bool {
        let mut marks = self.marks.lock();
        let fresh = first > marks.read;
        marks.read = marks.read.max(last);
        fresh
    }

    /// Where the group's cursor stood when it was opened: what lies before was somebody's to handle already.
    pub(super) fn begins_after(&self, cursor: EntryId) {
        let mut marks = self.marks.lock();
        marks.acked = marks.acked.max(cursor);
    }

    pub(super) fn acked(&self, tokens: &[Token]) {
        let mut marks = self.marks.lock();
        for token in tokens {
            marks.acked = marks.acked.max(token.id());
        }
        if !marks.left.is_empty() {
            for token in tokens {
                marks.left.remove(&token.id());
            }
        }
    }

    pub(super) fn left(&self, token: &Token) {
        let mut marks = self.marks.lock();
        marks.left.insert(token.id(), Arc::clone(&token.batch().origin));
        if marks.left.len() > MAX_LEFT {
            marks.left.pop_last();
        }
    }

    /// What was left pending here and has not come back.
    pub(super) fn all_left(&self) -> Vec<EntryId> {
        self.marks.lock().left.keys().copied().collect()
    }

    /// Of these, what a reader of this name left.
    pub(super) fn left_by(&self, reader: &Origin) -> Vec<EntryId> {
        let marks = self.marks.lock();
        marks.left.iter().filter(|(_, by)| ***by == *reader).map(|(id, _)| *id).collect()
    }

    /// After which id a group that was lost must begin, so that nothing unsettled is skipped: behind the last
    /// acknowledged entry, but before any that is held or was left pending here.
    pub(super) fn resume_after(&self) -> EntryId {
        let members: Vec<_> = self.members.lock().iter().filter_map(Weak::upgrade).collect();
        let held: BTreeSet<_> = members.iter().flat_map(|held| held.tokens()).map(|token| token.id()).collect();
        let mut marks = self.marks.lock();
        let unsettled = [held.first().copied(), marks.left.keys().next().copied()].into_iter().flatten().min();
        let resume = unsettled.map_or(marks.acked, |id| id.previous().min(marks.acked));
        marks.held_over = held;
        resume
    }

    /// The stream was made anew: all of it is to be read, and what was held or left of the old one does not come back.
    pub(super) fn begins_anew(&self) -> EntryId {
        let mut marks = self.marks.lock();
        marks.left.clear();
        marks.held_over.clear();
        EntryId::ZERO
    }

    /// Whether an entry that is read now was settled here while its group was being made again.
    pub(super) fn settled_over(&self, id: EntryId) -> bool {
        let mut marks = self.marks.lock();
        marks.held_over.remove(&id) && !marks.left.contains_key(&id)
    }

    /// Whether the group was made again while the entry was held, and has not given it out since.
    pub(super) fn is_held_over(&self, id: EntryId) -> bool {
        self.marks.lock().held_over.contains(&id)
    }

    /// An entry held here was delivered once more, to `owner`: from now on that is what its settling must match.
    pub(super) fn adopt(&self, id: EntryId, owner: Arc<Origin>, count: u32) {
        self.adopted.lock().insert(id, (owner, count));
        self.any_adopted.store(true, Ordering::Release);
    }

    /// Under which name and count the entry is pending now, if that changed while it was held.
    pub(super) fn adopted(&self, id: EntryId) -> Option<(Arc<Origin>, u32)> {
        if !self.any_adopted.load(Ordering::Acquire) {
            return None;
        }
        self.adopted.lock().get(&id).cloned()
    }

    pub(super) fn forget_adopted(&self, id: EntryId) {
        if self.any_adopted.load(Ordering::Acquire) {
            let mut adopted = self.adopted.lock();
            let given_out = adopted.remove(&id).is_some();
            self.any_adopted.store(!adopted.is_empty(), Ordering::Release);
            drop(adopted);
            if given_out {
                self.marks.lock().held_over.remove(&id);
            }
        }
    }
}

/// The groups that subscriptions of one client belong to.
#[derive(Debug, Default)]
pub struct Groups {
    groups: Mutex<HashMap<(String, String), Weak<Group>>>,
    trimmers: Mutex<HashMap<String, Weak<Trimmer>>>,
}

impl Groups {
    /// The one `Group` of this stream and group name.
    pub fn get(&self, stream: &str, group: &str) -> Arc<Group> {
        let mut groups = self.groups.lock();
        let known = groups.entry((stream.to_owned(), group.to_owned())).or_default();
        if let Some(group) = known.upgrade() {
            return group;
        }
        let trimmer = self.trimmer(stream);
        let made = Arc::new(Group { trimmer: Arc::clone(&trimmer), ..Group::default() });
        trimmer.join(group, &made);
        *known = Arc::downgrade(&made);
        made
    }

    fn trimmer(&self, stream: &str) -> Arc<Trimmer> {
        let mut trimmers = self.trimmers.lock();
        let known = trimmers.entry(stream.to_owned()).or_default();
        if let Some(trimmer) = known.upgrade() {
            return trimmer;
        }
        let made = Arc::new(Trimmer::default());
        *known = Arc::downgrade(&made);
        made
    }

    /// Know nothing of a group any more: who asks for it next is as one in another process.
    pub fn forget(&self, stream: &str, group: &str) {
        self.groups.lock().remove(&(stream.to_owned(), group.to_owned()));
    }
}
