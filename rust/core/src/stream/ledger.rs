//! The ledger of marks: which entries have one, which wait for theirs, and which marks are on their way out.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::entry::EntryId;
use crate::mark::MarkKey;
use crate::token::Token;

/// An entry that waits for its message's mark.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) token: Token,
    pub(super) key: MarkKey,
    /// It was asked for and there was no answer: it may be ours.
    pub(super) asked: bool,
}

/// A mark that is to be taken away, and when that was tried first, in milliseconds of the clock.
pub(super) type Releasing = (MarkKey, Option<u64>);

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The marks of the entries held here.
    pub(super) by_entry: HashMap<EntryId, MarkKey>,
    /// The same marks, and those that are being taken away.
    pub(super) in_use: HashSet<MarkKey>,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) releasing: Vec<Releasing>,
    /// Handled, and the mark does not say so yet; the entry, where it is still to be acknowledged.
    pub(super) unfinished: Vec<(MarkKey, Option<Token>)>,
    /// The store fails: what comes waits behind what is there.
    pub(super) failing: bool,
    /// Some marks cannot be made done, and it was said so.
    pub(super) refusing: bool,
}

impl Ledger {
    pub(super) fn register(&mut self, id: EntryId, key: &MarkKey) {
        self.by_entry.insert(id, Arc::clone(key));
        self.in_use.insert(Arc::clone(key));
    }

    /// Whether the mark is in the hands of another entry here, or on its way out.
    pub(super) fn is_used_by_another(&self, id: EntryId, key: &MarkKey) -> bool {
        self.in_use.contains(key) && self.by_entry.get(&id) != Some(key)
    }

    /// Nothing of ours stands under this key. True: somebody here waits for that.
    pub(super) fn free(&mut self, key: &MarkKey) -> bool {
        self.in_use.remove(key);
        self.waiting.iter().any(|waiting| waiting.key == *key)
    }
}
