//! Adding entries under numbers that the server keeps for a while (`XADD ... IDMP producer number`), so that those whose
//! reply was lost can be sent again: what is there already is answered with the id it has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::redis::{Cmd, Pipeline, Value, cmd};
use fastrand::Rng;
use parking_lot::Mutex;

use super::link::{Leased, Link};
use super::probe;
use super::value::{self, field, integer};
use crate::append::{Append, Stamp};
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::refused;

/// Entries that share a producer's name. A stream keeps the last numbers of each producer, a hundred unless it is told
/// otherwise (`IDMP-MAXSIZE`), and a pipeline that is sent again must find all of its own.
const BLOCK: usize = 100;
/// Entries that are worth being sent in parts.
const MANY: usize = 400;
/// What is left of the time that the server keeps numbers, where entries are sent again.
const MARGIN: Duration = Duration::from_secs(2);

/// The name under which a store adds entries, and the server that knows it.
#[derive(Debug)]
pub(super) struct Producer {
    name: String,
    /// Which run of which server knows what was added.
    run_id: Mutex<String>,
}

impl Producer {
    /// A name of its own: chance is what keeps those of two processes apart.
    pub(super) fn new() -> Self {
        Self { name: format!("{:012x}", Rng::new().u64(..) >> 16), run_id: Mutex::default() }
    }

    /// Note which server entries go to from now on. True: it is the one of before.
    pub(super) fn serves(&self, run_id: String) -> bool {
        let mut known = self.run_id.lock();
        let same = !run_id.is_empty() && *known == run_id;
        *known = run_id;
        same
    }

    /// One `XADD` for each of these entries, the first of which stands at `from`.
    fn push(&self, pipeline: &mut Pipeline, entries: &[Append], from: usize, stamp: Option<Stamp>) {
        let mut producer = String::new();
        let mut number = stamp.map_or(0, |stamp| stamp.first + from as u64);
        for (at, entry) in (from..).zip(entries) {
            let bytes: usize = entry.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
            let mut command = Cmd::with_capacity(entry.fields.len() * 2 + 9, bytes + entry.stream.len() + 80);
            command.arg("XADD").arg(&*entry.stream);
            if let Some(stamp) = stamp {
                if producer.is_empty() || at % BLOCK == 0 {
                    producer = format!("{}-{}-{}", self.name, stamp.generation, at / BLOCK);
                }
                command.arg("IDMP").arg(&producer).arg(number);
                number += 1;
            }
            with_entry(&mut command, entry);
            pipeline.add_command(command);
        }
    }

    /// Add entries in one pipeline.
    pub(super) async fn append(
        &self,
        link: &Link,
        entries: &[Append],
        stamp: Option<Stamp>,
    ) -> Result<Vec<Result<EntryId>>> {
        let leased = link.lease().await?;
        if stamp.is_none() || entries.len() < MANY {
            return self.append_part(link, leased, entries, 0, stamp).await;
        }
        // The server works on one part while the next is written. All go to one connection: nothing overtakes what was
        // lost, and then all of it is sent again.
        let size = entries.len().div_ceil(4);
        let leased = &leased;
        let part = |nth: usize| async move {
            let from = (size * nth).min(entries.len());
            for _ in 0..nth {
                tokio::task::yield_now().await;
            }
            let until = (from + size).min(entries.len());
            self.append_part(link, leased.clone(), &entries[from..until], from, stamp).await
        };
        let (first, second, third, fourth) = tokio::join!(biased; part(0), part(1), part(2), part(3));
        let mut results = first?;
        for more in [second, third, fourth] {
            results.extend(more?);
        }
        Ok(results)
    }

    async fn append_part(
        &self,
        link: &Link,
        leased: Leased,
        entries: &[Append],
        from: usize,
        stamp: Option<Stamp>,
    ) -> Result<Vec<Result<EntryId>>> {
        let mut pipeline = Pipeline::with_capacity(entries.len());
        self.push(&mut pipeline, entries, from, stamp);
        let replies = link.pipeline_on(leased, &pipeline).await?;
        Ok(replies.into_iter().map(|reply| reply.and_then(|reply| added(&reply))).collect())
    }

    /// Add entries in one transaction.
    pub(super) async fn append_together(
        &self,
        link: &Link,
        entries: &[Append],
        stamp: Option<Stamp>,
    ) -> Result<Vec<Result<EntryId>>> {
        check_types(link, entries).await?;
        let mut pipeline = Pipeline::with_capacity(entries.len() + 2);
        pipeline.add_command(cmd("MULTI"));
        self.push(&mut pipeline, entries, 0, stamp);
        pipeline.add_command(cmd("EXEC"));
        let mut replies = link.pipeline(&pipeline).await?;
        match replies.pop() {
            Some(Ok(Value::Array(ids))) if ids.len() == entries.len() => Ok(ids.iter().map(added).collect()),
            Some(Err(Error::Server(text))) if text.starts_with("EXECABORT") => {
                let first = replies.into_iter().skip(1).zip(entries).find_map(|(reply, entry)| {
                    let error = reply.err()?;
                    Some(refused::refused(error, &entry.stream))
                });
                Err(first.unwrap_or_else(|| refused::refused(Error::Server(text), "of a transaction")))
            }
            Some(Err(Error::Server(text))) => Err(Error::PublishUncertain(format!(
                "one of {} messages was refused while the transaction was carried out, and the server undoes no others: \
                 {text}",
                entries.len()
            ))),
            _ => Err(Error::Protocol("EXEC was not answered with an id for each entry".into())),
        }
    }

    /// Whether the server that is there now is the one that these entries were sent to, and still knows their numbers.
    pub(super) async fn remembers(&self, link: &Link, entries: &[Append], age: Duration) -> Result<bool> {
        if !self.serves(probe::run_id(link).await?) {
            return Ok(false);
        }
        let mut most: BTreeMap<&str, usize> = BTreeMap::new();
        for block in entries.chunks(BLOCK) {
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for entry in block {
                *counts.entry(&entry.stream).or_default() += 1;
            }
            for (stream, count) in counts {
                let known = most.entry(stream).or_default();
                *known = count.max(*known);
            }
        }
        let mut pipeline = Pipeline::with_capacity(most.len());
        for stream in most.keys() {
            pipeline.cmd("XINFO").arg("STREAM").arg(*stream);
        }
        let replies = link.pipeline(&pipeline).await?;
        Ok(most.values().zip(replies).all(|(count, reply)| match reply {
            Ok(info) => {
                let number = |name: &str| field(&info, name).and_then(integer).and_then(|n| u64::try_from(n).ok());
                let kept = Duration::from_secs(number("idmp-duration").unwrap_or(0));
                let numbers = number("idmp-maxsize").unwrap_or(0);
                age + MARGIN < kept && u64::try_from(*count).is_ok_and(|count| count <= numbers)
            }
            // Nothing was added to a stream that is not there.
            Err(Error::Server(text)) => text.contains("no such key"),
            Err(_) => false,
        }))
    }
}

/// Refuse entries for keys that hold something else, while nothing is added yet: what fails in `EXEC` undoes none of
/// the others.
async fn check_types(link: &Link, entries: &[Append]) -> Result<()> {
    let streams: BTreeSet<&str> = entries.iter().map(|entry| &*entry.stream).collect();
    let mut pipeline = Pipeline::with_capacity(streams.len());
    for stream in &streams {
        pipeline.cmd("TYPE").arg(*stream);
    }
    let unsent = |error| match error {
        Error::Lost(text) => Error::Connect(format!("nothing was sent: {text}")),
        other => other,
    };
    for (reply, stream) in link.pipeline(&pipeline).await.map_err(unsent)?.into_iter().zip(streams) {
        // One who may not ask finds out from EXEC.
        let kind = reply.map(|reply| value::text(&reply)).unwrap_or_default();
        if !matches!(kind.as_str(), "stream" | "none" | "") {
            let text = "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned();
            return Err(refused::refused(Error::Server(text), stream));
        }
    }
    Ok(())
}

/// The id that an `XADD` answered.
fn added(reply: &Value) -> Result<EntryId> {
    value::id(reply).ok_or_else(|| Error::Protocol("XADD answered no id".into()))
}

/// What follows the key, and the stamp, in an `XADD`.
pub(super) fn with_entry(command: &mut Cmd, entry: &Append) {
    if let Some(trim) = &entry.trim {
        command.arg(trim.strategy).arg(if trim.approximate { "~" } else { "=" }).arg(&trim.threshold);
    }
    command.arg("*");
    for (name, value) in &entry.fields {
        command.arg(&**name).arg(&**value);
    }
}
