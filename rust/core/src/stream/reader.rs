//! The read loop of one subscription: connect, recover, read, take in; and all of it again after a loss.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::overtaken::Open;
use super::scan::{self, Step};
use super::{StreamSource, admit, lease};
use crate::backoff::{Backoff, Quiet};
use crate::batch::RawBatch;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::event::{Level, State};
use crate::store::{EntryReader, Want};
use crate::subscription::Subscription;

/// How long a read that was told to end may take to say so. Past it the server is taken for gone.
const UNBLOCK: Duration = Duration::from_millis(500);
/// How long a stop waits for what was asked of the server before it.
const LAST_ANSWER: Duration = Duration::from_millis(700);
const UNBLOCK_AGAIN: Duration = Duration::from_millis(50);
/// How often to look whether a loop that stood still turns again.
const STALLED: Duration = Duration::from_millis(50);
/// A read error that lasts this long makes the subscription unhealthy; one that passes does not.
const UNHEALTHY: Duration = Duration::from_millis(250);

/// Read until told to stop, through every loss of the server.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) -> Result<()> {
    let mut backoff = source.settings.reconnect.clone();
    let quiet = Quiet::default();
    let (mut again, mut refused) = (false, false);
    loop {
        let reading = connected(source, subscription, again, refused, &mut backoff);
        let patience = async {
            subscription.stop.cancelled().await;
            subscription.clock.sleep(LAST_ANSWER).await;
        };
        let result = tokio::select! {
            biased;
            result = reading => result,
            // A server that does not answer must not hold up the stop, whatever was being asked of it.
            () = patience => Ok(()),
        };
        let Err(error) = result else {
            return Ok(());
        };
        if matches!(error, Error::NoGroup(_)) && !source.settings.recreate_group {
            return Err(Error::Subscribe(format!(
                "{}: the group is gone ({error}); on_missing_group=\"fail\" ends the subscription here",
                subscription.describe()
            )));
        }
        (again, refused) = (true, !error.is_lost());
        subscription.stats.read_errors.add(1);
        let wait = backoff.wait();
        if wait > UNHEALTHY || !error.is_lost() {
            subscription.post_state(State::Retrying(error.clone()));
        }
        subscription.log_paced(&quiet, Level::Warning, || format!("reading failed, trying again: {error}"));
        tokio::select! {
            biased;
            () = subscription.stop.cancelled() => return Ok(()),
            () = subscription.clock.sleep(wait) => {}
        }
    }
}

async fn connected(
    source: &StreamSource,
    subscription: &Arc<Subscription>,
    again: bool,
    mut refused: bool,
    backoff: &mut Backoff,
) -> Result<()> {
    let origin = &subscription.origin;
    let opening = source.store.open_reader(origin, source.settings.by_key);
    let mut reader = tokio::select! {
        biased;
        () = subscription.stop.cancelled() => return Ok(()),
        reader = opening => reader?,
    };
    source.reader.store(reader.id(), Ordering::Release);
    if again {
        subscription.stats.reconnects.add(1);
        ensure_group(source, subscription).await?;
        // Idle times are absolute: after an outage what is held here looks abandoned, to us and to others.
        lease::renew(source, subscription, 0).await?;
    }
    let own_may_wait = again || source.settings.fixed_consumer;
    if source.settings.mode == super::Mode::New && own_may_wait {
        scan::own(source, subscription, again).await?;
    }
    // What the server refused before, it may refuse again: then only a read that it answers says otherwise.
    if !refused {
        subscription.post_state(State::Reading);
    }
    let mut turn = Turn::default();
    while !subscription.stop.is_cancelled() {
        match turn.take(source, subscription, reader.as_mut()).await {
            Ok(()) => {
                backoff.reset();
                if std::mem::take(&mut refused) {
                    subscription.post_state(State::Reading);
                }
            }
            Err(error @ Error::NoGroup(_)) if source.settings.recreate_group => {
                subscription.stats.read_errors.add(1);
                subscription.log(Level::Warning, &format!("the group is gone ({error})"));
                ensure_group(source, subscription).await?;
                subscription.clock.sleep(backoff.wait()).await;
            }
            Err(error) => return Err(error),
        }
    }
    turn.finish(source, subscription, reader.as_mut()).await
}

/// Make the group again if it is gone, where nothing unsettled is skipped.
async fn ensure_group(source: &StreamSource, subscription: &Subscription) -> Result<()> {
    let origin = &subscription.origin;
    if source.store.cursor(&origin.stream, &origin.group).await?.is_some() {
        return Ok(());
    }
    if !source.settings.recreate_group {
        return Err(Error::NoGroup(format!("group {} of stream {} is gone", origin.group, origin.stream)));
    }
    let last = source.store.last_id(&origin.stream).await?.unwrap_or(EntryId::ZERO);
    let resume = source.group.resume_after();
    // A stream that was made anew may count from anywhere: none of it was seen.
    let start = if resume > last { source.group.begins_anew() } else { resume };
    if source.make_group(origin, &start.to_string()).await? {
        let text = format!("the server lost the group; created it again, reading on after {start}");
        subscription.log(Level::Warning, &text);
    }
    Ok(())
}

/// What the last read says about the next one.
#[derive(Debug, Default)]
struct Turn {
    /// It was full of claimed entries: the next one leaves CLAIM out, so that new entries never starve.
    only_new: bool,
    /// It was full of new entries: there is a backlog, and the next read may be asked for before this one is answered.
    backlog: bool,
    /// A read that was asked for ahead.
    ahead: Option<Ask>,
}

/// A read that was asked for.
#[derive(Debug)]
struct Ask {
    want: Want,
    /// It may return pending entries.
    open: Option<Open>,
}

impl Ask {
    fn new(source: &StreamSource, want: Want) -> Self {
        Self { want, open: want.claim.map(|_| Open::new(&source.group)) }
    }
}

impl Turn {
    async fn take(
        &mut self,
        source: &StreamSource,
        subscription: &Arc<Subscription>,
        reader: &mut dyn EntryReader,
    ) -> Result<()> {
        let Ask { want, open } = match self.ahead.take() {
            Some(ask) => ask,
            None => match self.next(source, subscription).await? {
                Some(want) => Ask::new(source, want),
                None => return Ok(()),
            },
        };
        let ahead = self.look_ahead(source, subscription, want);
        self.ahead = ahead.map(|want| Ask::new(source, want));
        let asked_ms = subscription.clock.now_ms();
        let raw = answer(source, subscription, reader, want, ahead).await?;
        subscription.stats.reads.add(1);
        if source.is_stalled() {
            let entries: Vec<_> = raw.slots.iter().map(|slot| (slot.id, slot.earlier)).collect();
            source.store.release(&subscription.origin, &entries).await?;
            return Ok(());
        }
        let full = raw.slots.len() == want.count;
        let claimed = raw.slots.iter().filter(|slot| slot.earlier > 0).count();
        self.only_new = full && want.claim.is_some() && claimed == want.count;
        self.backlog = full && claimed == 0;
        // The age of what a blocked read brought counts from its answer, of what was there from before it.
        let read_ms = if full { asked_ms } else { subscription.clock.now_ms() };
        let admitted = admit::admit(source, subscription, raw, read_ms).await.map(drop);
        drop(open);
        admitted
    }

    /// The read after this one, where a backlog and the room for both allow it to be asked for at once.
    fn look_ahead(&self, source: &StreamSource, subscription: &Subscription, want: Want) -> Option<Want> {
        let count = source.settings.count;
        let left = subscription.credits.room().saturating_sub(want.count);
        let worth_it = self.backlog && left >= count.div_ceil(4);
        (worth_it && !scan::is_due(source, subscription.clock.now_ms()) && !source.is_stalled())
            .then_some(Want { count: count.min(left), ..want })
    }

    /// The next read, once there is room for it. None: nothing is to be read now.
    async fn next(&self, source: &StreamSource, subscription: &Arc<Subscription>) -> Result<Option<Want>> {
        let settings = &source.settings;
        let plan = source.plan();
        while source.is_stalled() {
            tokio::select! {
                biased;
                () = subscription.stop.cancelled() => return Ok(None),
                () = subscription.clock.doze(STALLED) => {}
            }
        }
        tokio::select! {
            biased;
            () = subscription.stop.cancelled() => return Ok(None),
            () = subscription.credits.wait(settings.count.div_ceil(2)) => {}
        }
        let (mut block, mut claims) = (Some(settings.block), plan.claim && !self.only_new);
        if plan.scan {
            let min_idle = settings.min_idle.unwrap_or_default();
            match scan::step(source, subscription, min_idle).await? {
                Step::Again if !plan.new => return Ok(None),
                Step::Again => {
                    // The scan takes over what is idle; CLAIM would pass over all that has no body once more.
                    (block, claims) = (None, false);
                }
                Step::Rest(rest) if !plan.new => {
                    tokio::select! {
                        biased;
                        () = subscription.stop.cancelled() => {}
                        () = subscription.clock.doze(rest) => {}
                    }
                    return Ok(None);
                }
                Step::Rest(rest) => block = Some(settings.block.min(rest.max(Duration::from_millis(1)))),
            }
        }
        let claim = settings.min_idle.filter(|_| claims);
        if self.only_new {
            block = None;
        }
        let count = settings.count.min(subscription.credits.room());
        Ok((count > 0).then_some(Want { count, block, claim }))
    }

    /// Take in what was asked for ahead: the server has given it to us.
    async fn finish(
        &mut self,
        source: &StreamSource,
        subscription: &Arc<Subscription>,
        reader: &mut dyn EntryReader,
    ) -> Result<()> {
        while let Some(Ask { want, open: _open }) = self.ahead.take() {
            let raw = answer(source, subscription, reader, want, None).await?;
            admit::admit(source, subscription, raw, subscription.clock.now_ms()).await?;
        }
        Ok(())
    }
}

/// The answer to one read; at stop the blocked one is ended by the server, so that its reply is taken in and not lost.
async fn answer(
    source: &StreamSource,
    subscription: &Subscription,
    reader: &mut dyn EntryReader,
    want: Want,
    ahead: Option<Want>,
) -> Result<RawBatch> {
    let id = reader.id();
    let reading = reader.read(want, ahead);
    tokio::pin!(reading);
    tokio::select! {
        biased;
        raw = &mut reading => return raw,
        () = subscription.stop.cancelled() => {}
    }
    let ending = async {
        loop {
            // Asked again, since the read may not have begun to block when the server was told to end it.
            tokio::select! {
                biased;
                raw = &mut reading => return raw,
                unblocked = source.store.unblock(id) => unblocked?,
            }
            tokio::select! {
                biased;
                raw = &mut reading => return raw,
                () = subscription.clock.sleep(UNBLOCK_AGAIN) => {}
            }
        }
    };
    tokio::select! {
        biased;
        raw = ending => raw,
        () = subscription.clock.sleep(UNBLOCK) => Err(Error::Lost("the last read was not answered".into())),
    }
}
