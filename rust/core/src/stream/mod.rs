//! A stream's consumer group as a `Source`: reading, recovering, settling, leases and delayed retries,
//! over any `StreamStore`.

mod admit;
mod attempts;
mod claims;
mod delay;
mod foreign;
mod gate;
#[cfg(test)]
mod gate_bench;
#[cfg(test)]
mod gate_tests;
mod group;
mod idempotency;
mod janitor;
mod keep;
mod lease;
mod ledger;
mod line;
mod marked;
mod marks;
mod overtaken;
mod passing;
mod reader;
mod scan;
mod settings;
mod settlement;
mod starts;
mod trim;

use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

pub use group::{Group, Groups};
pub use marks::Marks;
pub use settings::{Cap, MarkSettings, Mode, StreamSettings};
pub use trim::Trimmer;

use foreign::Foreign;
use gate::Gate;

use crate::backoff::Quiet;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::event::Level;
use crate::order::SideKeys;
use crate::settle::Work;
use crate::source::Source;
use crate::store::{Bound, StreamStore};
use crate::subscription::Subscription;
use crate::token::Token;

/// What a subscription reads, once the server has been asked what it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// Entries that were never delivered.
    new: bool,
    /// Pending ones, in the same command.
    claim: bool,
    /// Pending ones, by scanning: all of them where there is no CLAIM, else those whose body is gone, which CLAIM
    /// passes over for ever.
    scan: bool,
}

/// One consumer of one group.
#[derive(Debug)]
pub struct StreamSource {
    settings: StreamSettings,
    store: Arc<dyn StreamStore>,
    group: Arc<Group>,
    plan: OnceLock<Plan>,
    /// Where redelivered entries wait, if attempts are capped.
    gate: Option<Gate>,
    /// The marks of its messages, where it is idempotent.
    marks: Option<Arc<Marks>>,
    /// The event loop does not turn, and what this subscription held was given up.
    stalled: AtomicBool,
    /// Copies that other groups' retries made.
    foreign: Foreign,
    /// How often to say that bodies are gone, and that the server refused outcomes.
    bodiless: Quiet,
    refusals: Quiet,
    /// What the store knows this subscription's reading connection by.
    reader: AtomicI64,
}

impl StreamSource {
    /// A source that has asked nothing yet.
    pub fn new(settings: StreamSettings, store: Arc<dyn StreamStore>, group: Arc<Group>) -> Self {
        if settings.mode != Mode::New
            && let Some(min_idle) = settings.min_idle
        {
            group.recovered_after(min_idle);
        }
        Self {
            gate: settings.cap.clone().map(Gate::new),
            settings,
            store,
            group,
            plan: OnceLock::new(),
            marks: None,
            stalled: AtomicBool::new(false),
            foreign: Foreign::default(),
            bodiless: Quiet::default(),
            refusals: Quiet::default(),
            reader: AtomicI64::new(0),
        }
    }

    /// The same, with marks for its messages.
    #[must_use]
    pub fn marking(mut self, marks: Option<Arc<Marks>>) -> Self {
        self.marks = marks;
        self
    }

    /// How long an entry may lie before a recoverer takes it: what renewal and late acks go by.
    fn min_idle(&self) -> Option<Duration> {
        self.settings.min_idle.or_else(|| self.group.min_idle())
    }

    /// What is kept beside the stream; the marks of these entries go when they are settled.
    fn side_keys<'a>(&'a self, settled: &'a [EntryId]) -> SideKeys<'a> {
        let marks = self.gate.as_ref().filter(|_| !settled.is_empty()).map(|gate| (gate.cap.key.as_str(), settled));
        SideKeys { delay_key: &self.settings.delay_key, marks }
    }

    /// Whether nothing more is to be taken in: a loop of this group's subscriptions does not turn.
    fn is_stalled(&self) -> bool {
        self.group.is_stalled()
    }

    fn plan(&self) -> Plan {
        let unopened = Plan { new: false, claim: false, scan: false };
        *self.plan.get().unwrap_or(&unopened)
    }

    fn make_plan(&self, subscription: &Subscription) -> Result<Plan> {
        let abilities = self.store.abilities();
        let mode = self.settings.mode;
        let claim = matches!(mode, Mode::Claiming | Mode::Recovering) && abilities.claim;
        let Origin { subscription: name, stream, .. } = &*subscription.origin;
        let too_old = |subscription, required: &str| Error::TooOld {
            subscription,
            required: required.into(),
            actual: format!("{} {}", abilities.server, abilities.version),
        };
        if mode == Mode::Claiming && !claim {
            return Err(too_old(
                format!("RedisStream.claiming({stream:?}) of {name}"),
                "Redis 8.4.0 or later (XREADGROUP CLAIM), or RedisStream.recovering",
            ));
        }
        if self.settings.trim == Some(Bound::Acked) && !abilities.xackdel {
            return Err(too_old(
                format!("trim=Trim.acked() of {name} (stream {stream:?})"),
                "Redis 8.2.0 or later (XACKDEL), or Trim.max_length or Trim.max_age",
            ));
        }
        Ok(Plan { new: mode != Mode::Reclaim, claim, scan: mode != Mode::New })
    }
}

impl StreamSource {
    /// Make the group, unless it is there. True: it was made.
    async fn make_group(&self, origin: &Origin, start: &str) -> Result<bool> {
        // Before there is anything that could be parked in it.
        delay::unpark(self, origin).await?;
        let made = self.store.create_group(&origin.stream, &origin.group, start).await;
        // A full server still serves the groups that it has, and reading them is what may empty it.
        if matches!(&made, Err(Error::Server(text)) if text.starts_with("OOM"))
            && self.store.cursor(&origin.stream, &origin.group).await?.is_some()
        {
            return Ok(false);
        }
        made
    }

    /// Say so where the stream of dead letters is no stream: nothing is lost by it, but nothing can be given up either.
    async fn check_letters(&self, subscription: &Subscription) -> Result<()> {
        let Some(letters) = &self.settings.dead_letter else {
            return Ok(());
        };
        match self.store.last_id(letters).await {
            Err(Error::Server(text)) if text.starts_with("WRONGTYPE") => {
                let text = format!(
                    "dead_letter names the key {letters}, which holds no stream: what is to go there stays pending \
                     until the key is removed, or dead_letter is another name"
                );
                subscription.log(Level::Error, &text);
                Ok(())
            }
            Err(error @ Error::Lost(_)) => Err(error),
            // One who may write there need not be allowed to look.
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Source for StreamSource {
    fn retries_in_place(&self) -> bool {
        matches!(self.settings.mode, Mode::Claiming | Mode::Recovering)
    }

    fn left(&self, token: &Token) {
        self.group.left(token);
        if let Some(marks) = &self.marks {
            marks.left(token.id());
        }
    }

    fn all_left(&self, reader: &Origin) -> Vec<EntryId> {
        self.group.left_by(reader)
    }

    fn ended_late(&self, token: &Token, handled: bool) {
        match &self.marks {
            Some(marks) if handled => marks.handled(token.id()),
            Some(marks) => marks.left(token.id()),
            None => {}
        }
    }

    async fn open(&self, subscription: &Arc<Subscription>) -> Result<()> {
        let plan = self.make_plan(subscription)?;
        let origin = &subscription.origin;
        let refused = |error: Error| match error {
            Error::Server(text) | Error::NoGroup(text) => Error::Subscribe(format!(
                "{}: the server refused the group: {text}; check the stream's name and type",
                subscription.describe()
            )),
            other => other,
        };
        if self.settings.create_group {
            let start = &self.settings.start_id;
            let created = self.make_group(origin, start).await.map_err(refused)?;
            if created && start == "$" && self.store.last_id(&origin.stream).await?.is_some_and(|id| id > EntryId::ZERO)
            {
                subscription.log(
                    Level::Info,
                    "the group is new and begins at the stream's end; start_id=StreamStart.BEGINNING would have read \
                     what was added before",
                );
            }
        } else if self.store.cursor(&origin.stream, &origin.group).await.map_err(refused)?.is_none() {
            return Err(Error::Subscribe(format!(
                "{}: there is no such group; create it, or leave create_group on",
                subscription.describe()
            )));
        }
        if let Some(position) = &self.settings.start_at {
            self.store.move_group(&origin.stream, &origin.group, position).await.map_err(refused)?;
            subscription.log(Level::Info, &format!("start_at moved the whole group's cursor to {position}"));
        }
        self.check_letters(subscription).await?;
        let cursor = self.store.cursor(&origin.stream, &origin.group).await.map_err(refused)?;
        self.group.begins_after(cursor.unwrap_or_default());
        self.group.join(subscription);
        if self.settings.trim == Some(Bound::Acked) {
            self.store.delete_acked(&origin.stream);
        }
        // A second opening finds the same server, so the first plan may stand.
        let _ = self.plan.set(plan);
        Ok(())
    }

    async fn read(&self, subscription: &Arc<Subscription>) -> Result<()> {
        reader::run(self, subscription).await
    }

    async fn settle(&self, subscription: &Subscription, work: &mut Work) -> Result<()> {
        settlement::carry_out(self, subscription, work).await
    }

    async fn release(&self, subscription: &Subscription, tokens: &[Token]) -> Result<usize> {
        if let Some(marks) = &self.marks {
            marks.hand_back(subscription, tokens).await;
        }
        if let Some(gate) = &self.gate {
            starts::restore(self, subscription, gate, tokens).await;
        }
        let mut released = 0;
        for chunk in tokens.chunks(settlement::CHUNK) {
            let entries: Vec<_> = chunk.iter().map(|token| (token.id(), token.slot().earlier)).collect();
            released += self.store.release(&subscription.origin, &entries).await?;
        }
        Ok(released)
    }

    fn counts_attempts(&self) -> bool {
        self.gate.is_some()
    }

    fn attempts(&self, token: &Token) -> u32 {
        self.gate.as_ref().map_or_else(|| token.delivery_count(), |gate| gate.used(token))
    }

    fn moved_on(&self) {
        if let Some(gate) = &self.gate {
            gate.moved_on();
        }
    }

    fn withheld(&self) -> Vec<Token> {
        self.gate.as_ref().map(Gate::withheld).unwrap_or_default()
    }

    async fn let_through(&self, subscription: &Subscription) {
        if let Some(marks) = &self.marks {
            marks.let_through(subscription).await;
        }
        if let Some(gate) = &self.gate {
            gate.let_through().await;
        }
    }

    async fn tend(&self, subscription: &Arc<Subscription>) {
        tokio::join!(
            lease::run(self, subscription),
            delay::run(self, subscription),
            idempotency::run(self, subscription),
            keep::run(self, subscription),
            janitor::run(self, subscription),
            trim::run(self, subscription),
            passing::run(self, subscription),
        );
    }

    async fn depart(&self, subscription: &Subscription) {
        janitor::depart(self, subscription).await;
    }
}
