//! Settling: plain acks, and owner-checked orders by scripts, in one pipeline.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Pipeline, Script, Value, cmd};

use super::producer::with_entry;
use super::store::{RedisStore, with_count, with_id};
use super::value::{integer, items};
use super::{bound, letters, scripts, starts};
use crate::append::Append;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::order::{Action, MAX_COPY, Order, SideKeys, Verdict, copyable};

/// Ids per plain `XACK`.
const ACKS: usize = 1000;

/// Plain acks, a command per thousand.
fn push_acks(pipeline: &mut Pipeline, origin: &Origin, acks: &[EntryId]) {
    for chunk in acks.chunks(ACKS) {
        let mut command = cmd("XACK");
        command.arg(&origin.stream).arg(&origin.group);
        for id in chunk {
            with_id(&mut command, *id);
        }
        pipeline.add_command(command);
    }
}

/// Orders of one owner that go out in one command, and where their verdicts go.
struct Together {
    owner: Arc<Origin>,
    kind: Kind,
    orders: Vec<usize>,
}

/// Orders that a command carries many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ack,
    Again { resent: bool, exact: bool },
    Park { resent: bool, exact: bool },
    Keep,
}

const fn kind(order: &Order) -> Option<Kind> {
    let exact = order.exact;
    match &order.action {
        Action::Ack => Some(Kind::Ack),
        Action::Again { resent } => Some(Kind::Again { resent: *resent, exact }),
        Action::Park { resent, .. } => Some(Kind::Park { resent: *resent, exact }),
        Action::Keep(_) => Some(Kind::Keep),
        Action::Copy | Action::Delay(_) | Action::Reply(_) | Action::Bury(_) => None,
    }
}

fn together(orders: &[Order]) -> Vec<Together> {
    let mut groups: Vec<Together> = Vec::new();
    for (at, order) in orders.iter().enumerate() {
        let Some(kind) = kind(order) else {
            continue;
        };
        // The one that was begun last is the one that may have room.
        let known = groups.iter_mut().rev().find(|group| group.kind == kind && *group.owner == *order.owner);
        match known {
            Some(group) if group.orders.len() < ACKS / 2 => group.orders.push(at),
            _ => groups.push(Together { owner: Arc::clone(&order.owner), kind, orders: vec![at] }),
        }
    }
    groups.sort_by_key(|group| group.kind);
    groups
}

fn together_command(group: &Together, orders: &[Order], delay_key: &str) -> Cmd {
    let Together { owner, kind, orders: held } = group;
    let mut command = match kind {
        Kind::Ack => scripts::call(&scripts::ACK, &[&owner.stream]),
        Kind::Again { .. } => scripts::call(&scripts::AGAIN, &[&owner.stream, delay_key]),
        Kind::Park { .. } => scripts::call(&scripts::PARK, &[&owner.stream, delay_key]),
        Kind::Keep => scripts::call(&scripts::KEEP, &[&owner.stream, delay_key]),
    };
    command.arg(&owner.group).arg(&owner.consumer);
    if let Kind::Park { resent, exact } | Kind::Again { resent, exact } = kind {
        command.arg(u8::from(*resent)).arg(u8::from(*exact));
    }
    for order in held.iter().filter_map(|at| orders.get(*at)) {
        with_id(&mut command, order.token.id());
        if *kind != Kind::Ack {
            command.arg(order.count);
        }
        if let Action::Park { delay, .. } | Action::Keep(delay) = order.action {
            command.arg(milliseconds(delay));
        }
    }
    command
}

fn milliseconds(delay: Duration) -> i64 {
    i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)
}

/// The call of a script that carries one order out, as far as all of these begin: who must own it, and at which count.
/// `key` is the one beside the stream.
pub(super) fn order_command(script: &Script, order: &Order, key: &str) -> Cmd {
    let owner = &order.owner;
    let mut command = scripts::call(script, &[&owner.stream, key]);
    command.arg(&owner.group).arg(&owner.consumer);
    with_id(&mut command, order.token.id());
    with_count(&mut command, order.exact.then_some(order.count));
    command
}

fn retry_command(order: &Order, delay_key: &str) -> Result<Cmd> {
    let fields = copyable(order.token.copied_fields(&order.owner.group, order.attempts))?;
    let mut command = order_command(&scripts::RETRY, order, delay_key);
    let delay = match order.action {
        Action::Delay(delay) => milliseconds(delay),
        Action::Copy
        | Action::Ack
        | Action::Again { .. }
        | Action::Park { .. }
        | Action::Keep(_)
        | Action::Reply(_)
        | Action::Bury(_) => -1,
    };
    command.arg(delay).arg(u8::from(order.token.copy_of().is_some()));
    for (name, value) in &fields {
        command.arg(name).arg(value);
    }
    Ok(command)
}

fn reply_command(order: &Order, reply: &Append) -> Result<Cmd> {
    if reply.fields.len() > MAX_COPY {
        let fields = reply.fields.len();
        return Err(Error::Server(format!("a reply of {fields} fields is too large to be sent with the ack")));
    }
    let mut command = order_command(&scripts::REPLY, order, &reply.stream);
    with_entry(&mut command, reply);
    Ok(command)
}

pub(super) fn verdict(reply: &Value) -> Verdict {
    match integer(reply) {
        Some(1) => Verdict::Done,
        Some(0) => Verdict::Gone,
        _ => Verdict::Taken,
    }
}

/// Without the group nothing is pending any more: there is nothing left to acknowledge.
fn unacked(kind: Kind, error: &Error) -> Verdict {
    match error {
        Error::NoGroup(_) if kind == Kind::Ack => Verdict::Gone,
        error => Verdict::Refused(error.clone()),
    }
}

impl RedisStore {
    pub(super) async fn carry_out(
        &self,
        origin: &Origin,
        acks: &[EntryId],
        orders: &[Order],
        side: SideKeys<'_>,
    ) -> Result<Vec<Verdict>> {
        let SideKeys { delay_key, marks } = side;
        let mut pipeline = Pipeline::new();
        let deletes = self.deleting.read().contains(&origin.stream);
        if deletes {
            bound::push_acks(&mut pipeline, &origin.stream, &origin.group, acks);
        } else {
            push_acks(&mut pipeline, origin, acks);
        }
        let plain = pipeline.len();
        let together = together(orders);
        for group in &together {
            pipeline.add_command(together_command(group, orders, delay_key));
        }
        let mut verdicts = vec![Verdict::Gone; orders.len()];
        let mut moved = Vec::new();
        for (at, order) in orders.iter().enumerate() {
            let command = match &order.action {
                Action::Ack | Action::Again { .. } | Action::Park { .. } | Action::Keep(_) => continue,
                Action::Reply(reply) => reply_command(order, reply),
                Action::Copy | Action::Delay(_) => retry_command(order, delay_key),
                Action::Bury(letter) => letters::bury(order, letter),
            };
            match command {
                Ok(command) => {
                    pipeline.add_command(command);
                    moved.push(at);
                }
                Err(error) => verdicts[at] = Verdict::Refused(error),
            }
        }
        if pipeline.is_empty() {
            return Ok(verdicts);
        }
        if let Some((key, ids)) = marks {
            // After what settles them. A mark that stays is found later, and its reply says nothing of interest.
            starts::push_unmarks(&mut pipeline, origin, key, (ids, acks));
        }
        if deletes {
            // What is lost between a script and this is swept up by the trimmer; the replies say nothing of interest.
            bound::push_deletes(&mut pipeline, &origin.stream, orders);
        }
        let mut replies = self.work.pipeline(&pipeline).await?.into_iter();
        for reply in replies.by_ref().take(plain) {
            match reply {
                // A key of another type by now holds none of our entries either.
                Ok(_) | Err(Error::NoGroup(_)) => {}
                Err(Error::Server(text)) if text.starts_with("WRONGTYPE") => {}
                Err(error) => return Err(error),
            }
        }
        for (group, reply) in together.iter().zip(replies.by_ref()) {
            let answers = reply.map(|reply| items(&reply).iter().map(verdict).collect::<Vec<_>>());
            for (nth, at) in group.orders.iter().enumerate() {
                verdicts[*at] = match &answers {
                    Ok(answers) => answers.get(nth).cloned().unwrap_or(Verdict::Taken),
                    Err(error) => unacked(group.kind, error),
                };
            }
        }
        for (at, reply) in moved.into_iter().zip(replies) {
            verdicts[at] = reply.map_or_else(Verdict::Refused, |reply| verdict(&reply));
        }
        Ok(verdicts)
    }
}
