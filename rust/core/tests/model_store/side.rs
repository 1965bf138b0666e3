//! One of two stores under the same operations: what it is asked, what it showed, and under which names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ruststream_core::append::Append;
use ruststream_core::batch::{Batch, Origin, RawBatch};
use ruststream_core::entry::EntryId;
use ruststream_core::error::{Error, Result};
use ruststream_core::header;
use ruststream_core::model::LAST;
use ruststream_core::order::{Order, SideKeys, Verdict};
use ruststream_core::store::{EntryReader, Page, Parked, Pending, StartMark, StreamStore};
use ruststream_core::token::Token;

use crate::operation::{Step, Wanted};

/// The stream.
pub(crate) const STREAM: &str = "s";
/// Its delayed entries.
pub(crate) const DELAYED: &str = "{s}:g:delayed";
/// Its dead letters.
pub(crate) const LETTERS: &str = "s.dlq";
/// Its marks of starts.
pub(crate) const MARKS: &str = "{s}:g:attempts";
/// Longer than any test.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Names of readers: consumer and group.
pub(crate) const READERS: [(&str, &str); 3] = [("c1", "g"), ("c2", "g"), ("c1", "h")];

/// One of the two stores, and what it gave so far.
pub(crate) struct Side {
    pub(crate) store: Arc<dyn StreamStore>,
    readers: Vec<Box<dyn EntryReader>>,
    names: BTreeMap<EntryId, usize>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) ids: Vec<EntryId>,
}

/// What a step showed.
pub(crate) type Shown = Vec<String>;

pub(crate) fn origin(reader: usize) -> Arc<Origin> {
    let (consumer, group) = READERS[reader];
    let [subscription, stream, group, consumer] = ["test", STREAM, group, consumer].map(str::to_owned);
    Arc::new(Origin { subscription, stream, group, consumer })
}

/// The error without what tells of the script.
pub(crate) fn refusal(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split(" script: ").next().unwrap_or_default().trim_end_matches("\")").to_owned()
}

impl Side {
    pub(crate) async fn new(store: Arc<dyn StreamStore>) -> Self {
        let connected = store.connect().await;
        assert!(connected.is_ok(), "{connected:?}");
        let mut readers = Vec::new();
        for reader in 0..READERS.len() {
            match store.open_reader(&origin(reader), true).await {
                Ok(reader) => readers.push(reader),
                Err(error) => panic!("no reader: {error}"),
            }
        }
        Self { store, readers, names: BTreeMap::new(), tokens: Vec::new(), ids: Vec::new() }
    }

    /// An id's number: the same on both sides, whatever the clock was.
    pub(crate) fn name(&mut self, id: EntryId) -> String {
        if id == EntryId::ZERO || id == LAST {
            return id.to_string();
        }
        let next = self.names.len();
        let name = *self.names.entry(id).or_insert(next);
        if name == next {
            self.ids.push(id);
        }
        format!("#{name}")
    }

    fn shown<T>(&mut self, result: Result<T>, show: impl FnOnce(&mut Self, T) -> String) -> String {
        match result {
            Ok(value) => show(self, value),
            Err(error) => refusal(&error),
        }
    }

    /// Show entries, and keep them to settle.
    fn taken(&mut self, raw: RawBatch, reader: usize) -> String {
        let batch = Batch::new(raw, origin(reader), 0);
        let mut shown = Vec::new();
        for token in batch.tokens() {
            let slot = *token.slot();
            let mut fields = Vec::new();
            for (name, value) in token.fields() {
                let shown = match name {
                    header::ORIGINAL_ID => self.name(EntryId::parse(value).unwrap_or_default()),
                    _ => value.escape_ascii().to_string(),
                };
                fields.push(format!("{}={shown}", name.escape_ascii()));
            }
            let marks = (slot.earlier, slot.retries, slot.partition, slot.deleted, slot.field_count);
            let parts = (token.payload().escape_ascii().to_string(), token.key(), token.copy_of());
            shown.push(format!("{} {marks:?} {parts:?} {}", self.name(slot.id), fields.join(" ")));
            self.tokens.push(token);
        }
        shown.join("\n    ")
    }

    pub(crate) fn ids(&self, picks: &[usize]) -> Vec<EntryId> {
        picks.iter().filter_map(|pick| self.ids.get(pick % self.ids.len().max(1))).copied().collect()
    }

    async fn upkeep(&mut self, step: &Step) -> String {
        let store = Arc::clone(&self.store);
        match step {
            Step::Consumers { group, living } => {
                let result = store.consumers(STREAM, group, living).await;
                self.shown(result, |_, rows| {
                    let rows =
                        rows.iter().map(|row| format!("{} {} {}", row.name, row.pending, row.inactive.is_some()));
                    rows.collect::<Vec<_>>().join(", ")
                })
            }
            Step::Forget { group, names, idle } => {
                let result = store.forget_consumers(STREAM, group, names, *idle).await;
                self.shown(result, |_, names| names.join(" "))
            }
            Step::Trim { groups, bound, limit } => {
                // How the entries are packed differs, and with it what one step removes; what is left in the end does not.
                let mut removed = 0;
                // What was added just now is older than now on both sides.
                tokio::time::sleep(Duration::from_millis(2)).await;
                let last = loop {
                    match store.trim(STREAM, groups, *bound, *limit).await {
                        Ok(trimmed) if trimmed.removed > 0 => removed += trimmed.removed,
                        last => break last,
                    }
                };
                self.shown(last, |_, last| format!("{removed} {} {:?}", last.over, last.holders))
            }
            _ => String::new(),
        }
    }

    async fn append(&mut self, entries: &[Append], together: bool) -> Shown {
        let store = Arc::clone(&self.store);
        let result =
            if together { store.append_together(entries, None).await } else { store.append(entries, None).await };
        match result {
            Ok(results) => results.into_iter().map(|result| self.shown(result, Self::name)).collect(),
            Err(error) => vec![refusal(&error)],
        }
    }

    pub(crate) async fn run(&mut self, step: &Step) -> Shown {
        let store = Arc::clone(&self.store);
        let mut shown = Vec::new();
        match step {
            Step::Append(entries, together) => shown = self.append(entries, *together).await,
            Step::Create { group, start } => {
                let result = store.create_group(STREAM, group, start).await;
                shown.push(self.shown(result, |_, created| created.to_string()));
            }
            Step::Move { group, position } => {
                let result = store.move_group(STREAM, group, position).await;
                shown.push(self.shown(result, |_, ()| "moved".into()));
            }
            Step::Where { group } => {
                for result in [store.cursor(STREAM, group).await, store.last_id(STREAM).await] {
                    shown.push(self.shown(result, |side, id| id.map_or("none".into(), |id| side.name(id))));
                }
            }
            Step::Read { reader, want, ahead } => {
                let result = self.readers[*reader].read(*want, *ahead).await;
                if ahead.is_some() {
                    // What is sent ahead may reach the server a little later; the next step must not overtake it.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                shown.push(self.shown(result, |side, raw| side.taken(raw, *reader)));
            }
            Step::Settle { reader, acks, orders } => {
                let acks = self.ids(acks);
                let orders: Vec<_> = orders.iter().filter_map(|order| self.order(order)).collect();
                let marks = Some((MARKS, acks.as_slice())).filter(|(_, ids)| !ids.is_empty());
                let result =
                    store.settle(&origin(*reader), &acks, &orders, SideKeys { delay_key: DELAYED, marks }).await;
                shown.push(self.shown(result, |_, verdicts| {
                    let texts = verdicts.iter().map(|verdict| match verdict {
                        Verdict::Refused(error) => refusal(error),
                        other => format!("{other:?}"),
                    });
                    texts.collect::<Vec<_>>().join(" ")
                }));
                // Entries that are delayed at different times keep their order.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Step::Renew { reader, ids } => {
                let result = store.renew(&origin(*reader), &self.ids(ids)).await;
                shown.push(self.shown(result, Self::names));
            }
            Step::Release { reader, ids, earlier } => {
                let entries: Vec<_> = self.ids(ids).into_iter().map(|id| (id, *earlier)).collect();
                let result = store.release(&origin(*reader), &entries).await;
                shown.push(self.shown(result, |_, released| released.to_string()));
            }
            Step::Scan { reader, own, from, count, letters } => {
                let which = self.which(own.as_ref(), *count);
                let cursor = self.ids(from).first().copied().unwrap_or(EntryId::ZERO);
                let dead_letter = letters.then_some(LETTERS);
                let page = Page { cursor, count: *count, hash_keys: true, dead_letter };
                let result = store.scan(&origin(*reader), &which, page).await;
                shown.push(self.shown(result, |side, scanned| {
                    let cursor = scanned.cursor.map_or("end".into(), |id| side.name(id));
                    let deleted = side.names(scanned.deleted);
                    let refused = scanned.refused.map(|(refused, error)| (refused, refusal(&error)));
                    format!("{cursor} [{deleted}] {refused:?} {}", side.taken(scanned.raw, *reader))
                }));
            }
            Step::Consumers { .. } | Step::Forget { .. } | Step::Trim { .. } => shown.push(self.upkeep(step).await),
            Step::Due { reader, look } => {
                let result = store.due(&origin(*reader), DELAYED, *look, true).await;
                shown.push(self.shown(result, |side, due| {
                    let far = due.next.map(|next| next > HOUR / 2);
                    let counts = (due.moved, due.strange, due.seen, due.passed, due.waiting);
                    let deleted = side.names(due.deleted);
                    format!("{counts:?} {far:?} [{deleted}] {}", side.taken(due.raw, *reader))
                }));
            }
            Step::Early { reader, last } => {
                let tokens = &self.tokens[self.tokens.len().saturating_sub(*last)..];
                let claimed: Vec<_> = tokens.iter().map(|token| *token.slot()).collect();
                let result = store.early(&origin(*reader), DELAYED, &claimed).await;
                shown.push(self.shown(result, |side, parked| {
                    let show = |(id, parked)| {
                        let due = matches!(parked, Parked::Due(_));
                        format!("{} due {due}", side.name(id))
                    };
                    parked.into_iter().map(show).collect::<Vec<_>>().join(" ")
                }));
            }
            Step::Unpark { reader, offset, limit } => {
                let result = store.unpark(&origin(*reader), DELAYED, *offset, *limit).await;
                shown.push(self.shown(result, |_, stay| format!("{stay:?}")));
            }
            Step::Unblock { reader } => {
                let id = self.readers[*reader].id();
                let result = store.unblock(id).await;
                shown.push(self.shown(result, |_, ()| "unblocked".into()));
            }
            step => self.run_marks(step, &mut shown).await,
        }
        shown
    }

    fn which(&self, own: Option<&(Vec<usize>, bool)>, count: usize) -> Pending {
        let idle = || Pending::Idle(if count.is_multiple_of(2) { Duration::ZERO } else { HOUR });
        own.map_or_else(idle, |(held, uncounted)| Pending::Own {
            held: self.ids(held).into_iter().collect(),
            uncounted: *uncounted,
        })
    }

    async fn run_marks(&mut self, step: &Step, shown: &mut Shown) {
        let store = Arc::clone(&self.store);
        match step {
            Step::Mark { reader, tokens, text, miscounted } => {
                let marks: Vec<_> = tokens.iter().filter_map(|pick| self.mark(*pick, text, *miscounted)).collect();
                let result = store.mark_starts(&origin(*reader), MARKS, &marks).await;
                shown.push(self.shown(result, |_, verdicts| format!("{verdicts:?}")));
            }
            Step::Marks { ids } => {
                let ids = self.ids(ids);
                if !ids.is_empty() {
                    let result = store.start_marks(MARKS, &ids).await;
                    shown.push(self.shown(result, |_, marks| format!("{marks:?}")));
                }
                let result = store.marked_starts(MARKS, 0, 10_000).await;
                shown.push(self.shown(result, |side, (mut ids, next)| {
                    ids.sort_unstable();
                    format!("{} {next}", side.names(ids))
                }));
            }
            Step::Unmark { reader, ids } => {
                let result = store.unmark_starts(&origin(*reader), MARKS, &self.ids(ids)).await;
                shown.push(self.shown(result, |_, removed| removed.to_string()));
            }
            _ => {}
        }
    }

    pub(crate) fn names(&mut self, ids: Vec<EntryId>) -> String {
        ids.into_iter().map(|id| self.name(id)).collect::<Vec<_>>().join(" ")
    }

    fn mark(&self, pick: usize, text: &str, miscounted: bool) -> Option<StartMark> {
        let token = self.tokens.get(pick % self.tokens.len().max(1))?;
        let count = token.server_count() + u32::from(miscounted);
        let count = (!pick.is_multiple_of(3)).then_some(count);
        Some(StartMark { id: token.id(), count, text: text.to_owned() })
    }

    fn order(&self, order: &Wanted) -> Option<Order> {
        let token = self.tokens.get(order.token % self.tokens.len().max(1))?.clone();
        let count = token.server_count() + u32::from(order.miscounted);
        let owner = order.owner.map_or_else(|| Arc::clone(&token.batch().origin), origin);
        let attempts = order.miscounted.then_some(7);
        let exact = !order.token.is_multiple_of(3);
        Some(Order { token, owner, count, exact, action: order.action.clone(), attempts })
    }
}
