//! The model's answers in the shape a server gives them.

use ruststream_core::error::{Error, Result};
use ruststream_core::model::{
    Acked, Body, Delivery, From, GroupInfo, GroupRead, Keyspace, LAST, PendingEntry, Range, StreamInfo,
};

use crate::choice::BLOCKER;
use crate::resp::Reply;
use crate::steps::Step;

fn list(items: impl IntoIterator<Item = Reply>) -> Reply {
    Reply::List(items.into_iter().collect())
}

fn id(id: impl std::fmt::Display) -> Reply {
    Reply::text(id.to_string())
}

fn flag(set: bool) -> Reply {
    Reply::int(i64::from(set))
}

fn fields(body: &Body) -> Reply {
    list(body.fields().flat_map(|(name, value)| [Reply::text(name), Reply::text(value)]))
}

fn entry(body: &Body) -> Reply {
    list([id(body.id()), fields(body)])
}

fn bodies(bodies: &[std::sync::Arc<Body>], just_id: bool) -> Reply {
    list(bodies.iter().map(|body| if just_id { id(body.id()) } else { entry(body) }))
}

fn delivery(delivery: &Delivery, claims: bool) -> Reply {
    let body = delivery.body.as_ref().map_or(Reply::Nil, |body| fields(body));
    let mut parts = vec![id(delivery.id), body];
    if claims {
        parts.extend([Reply::int(delivery.idle), Reply::int(delivery.earlier)]);
    }
    list(parts)
}

/// Whether new entries are read. The server cannot tell the greatest id from `>`.
pub(crate) fn is_new(from: From) -> bool {
    matches!(from, From::New | From::Own(LAST))
}

/// What a read answers.
pub(crate) fn read(read: &GroupRead, answer: Result<Option<Vec<Delivery>>>) -> Reply {
    let claims = read.claim.is_some() && is_new(read.from);
    answer.map_or_else(
        |refused| error(&refused),
        |found| match found {
            None => Reply::Nil,
            Some(found) => list([list([Reply::text(&read.key), list(found.iter().map(|one| delivery(one, claims)))])]),
        },
    )
}

fn error(error: &Error) -> Reply {
    Reply::Error(error.to_string())
}

/// What `XPENDING` tells of one entry.
pub(crate) fn pending(entry: &PendingEntry) -> Reply {
    list([id(entry.id), Reply::text(&entry.consumer), Reply::int(entry.idle), Reply::int(entry.count)])
}

/// A group's figures, in the order of `GROUP`.
pub(crate) fn group(info: &GroupInfo) -> Reply {
    list([
        Reply::text(&info.name),
        Reply::int(info.consumers as u64),
        Reply::int(info.pending as u64),
        id(info.last_delivered_id),
        info.entries_read.map_or(Reply::Nil, Reply::int),
        info.lag.map_or(Reply::Nil, Reply::int),
    ])
}

/// The figures of `XINFO GROUPS`.
pub(crate) const GROUP: [&str; 6] = ["name", "consumers", "pending", "last-delivered-id", "entries-read", "lag"];

/// A stream's figures, in the order of `STREAM`.
pub(crate) fn stream(info: &StreamInfo) -> Reply {
    let edge = |body: &Option<std::sync::Arc<Body>>| body.as_ref().map_or(Reply::Nil, |body| entry(body));
    list([
        Reply::int(info.length as u64),
        Reply::int(info.radix_tree_keys as u64),
        id(info.last_generated_id),
        id(info.max_deleted_entry_id),
        Reply::int(info.entries_added),
        id(info.recorded_first_entry_id),
        Reply::int(info.groups as u64),
        edge(&info.first_entry),
        edge(&info.last_entry),
    ])
}

/// The figures of `XINFO STREAM`.
pub(crate) const STREAM: [&str; 9] = [
    "length",
    "radix-tree-keys",
    "last-generated-id",
    "max-deleted-entry-id",
    "entries-added",
    "recorded-first-entry-id",
    "groups",
    "first-entry",
    "last-entry",
];

fn score(score: f64) -> Reply {
    Reply::text(score.to_string())
}

impl Step {
    /// As the model takes it.
    pub(crate) fn apply(&self, keys: &mut Keyspace) -> Reply {
        self.answer(keys).unwrap_or_else(|refused| error(&refused))
    }

    fn answer(&self, keys: &mut Keyspace) -> Result<Reply> {
        Ok(match self {
            Self::Add { key, id: wanted, fields, trim } => id(keys.xadd(key, *wanted, fields, *trim)?),
            Self::Len { key } => Reply::int(keys.xlen(key)? as u64),
            Self::Range { key, range, count, reverse: false } => {
                bodies(&keys.xrange(key, *range, Some(*count))?, false)
            }
            Self::Range { key, range, count, reverse: true } => {
                bodies(&keys.xrevrange(key, *range, Some(*count))?, false)
            }
            Self::Delete { key, ids } => Reply::int(keys.xdel(key, ids)? as u64),
            Self::Trim { key, to } => Reply::int(keys.xtrim(key, *to)? as u64),
            Self::Create { key, group, at, make, read } => {
                keys.xgroup_create(key, group, *at, *make, *read)?;
                Reply::text("OK")
            }
            Self::SetId { key, group, at, read } => {
                keys.xgroup_setid(key, group, *at, *read)?;
                Reply::text("OK")
            }
            Self::Destroy { key, group } => flag(keys.xgroup_destroy(key, group)?),
            Self::CreateConsumer { key, group, consumer } => flag(keys.xgroup_create_consumer(key, group, consumer)?),
            Self::DeleteConsumer { key, group, consumer } => {
                Reply::int(keys.xgroup_delete_consumer(key, group, consumer)? as u64)
            }
            Self::Read(wanted) => read(wanted, keys.xreadgroup(wanted)),
            Self::Ack { key, group, ids } => Reply::int(keys.xack(key, group, ids)? as u64),
            Self::AckDelete { key, group, references, ids } => {
                let code = |acked: &Acked| match acked {
                    Acked::Absent => Reply::int(-1i64),
                    Acked::Deleted => Reply::int(1i64),
                    Acked::Kept => Reply::int(2i64),
                };
                list(keys.xackdel(key, group, *references, ids)?.iter().map(code))
            }
            Self::Nack { key, group, how, ids, force } => Reply::int(keys.xnack(key, group, *how, ids, *force)? as u64),
            Self::Claim { key, group, consumer, claim, ids } => {
                bodies(&keys.xclaim(key, group, consumer, claim, ids)?, claim.just_id)
            }
            Self::Autoclaim { key, group, consumer, min_idle, start, count, just_id } => {
                let step = keys.xautoclaim(key, group, consumer, *min_idle, *start, *count, *just_id)?;
                list([id(step.cursor), bodies(&step.bodies, *just_id), list(step.deleted.iter().map(id))])
            }
            Self::Pending { key, group } => {
                let summary = keys.xpending(key, group)?;
                let count = |(name, count): &(String, usize)| list([Reply::text(name), Reply::text(count.to_string())]);
                let (first, last) = summary.edges.map_or((Reply::Nil, Reply::Nil), |(a, b)| (id(a), id(b)));
                let consumers = list(summary.consumers.iter().map(count));
                let consumers = if summary.count == 0 { Reply::Nil } else { consumers };
                list([Reply::int(summary.count as u64), first, last, consumers])
            }
            Self::PendingRange { key, group, idle, range, count, consumer } => {
                let found = keys.xpending_range(key, group, *idle, *range, *count, consumer.as_deref())?;
                list(found.iter().map(pending))
            }
            Self::InfoStream { key } => stream(&keys.xinfo_stream(key)?),
            Self::InfoGroups { key } => list(keys.xinfo_groups(key)?.iter().map(group)),
            Self::Remove { key } => Reply::int(keys.del(&[key]) as u64),
            Self::Set { key } => {
                keys.set(key, b"text");
                Reply::text("OK")
            }
            Self::Zadd { key, score, member } => flag(keys.zadd(key, (*score).into(), member.as_bytes())?),
            Self::Zrem { key, member } => flag(keys.zrem(key, member.as_bytes())?),
            Self::ZrangeByScore { key, maximum, limit } => {
                let members = keys.zrange_within(key, f64::NEG_INFINITY..(*maximum).into(), 0, *limit)?;
                list(members.into_iter().map(|(member, _)| Reply::text(member)))
            }
            Self::Zrange { key, first, last } => {
                let members = keys.zrange(key, *first, *last)?;
                list(members.into_iter().flat_map(|(member, number)| [Reply::text(member), score(number)]))
            }
            Self::Zcard { key } => Reply::int(keys.zcard(key)? as u64),
        })
    }

    /// Of the server's reply, what the model knows of.
    pub(crate) fn known(&self, reply: Reply) -> Reply {
        let pick = |reply: &Reply, names: &[&str]| list(names.iter().map(|name| reply.named(name).clone()));
        match (self, &reply) {
            (Self::InfoStream { .. }, Reply::List(_)) => pick(&reply, &STREAM),
            (Self::InfoGroups { .. }, Reply::List(groups)) => list(groups.iter().map(|one| pick(one, &GROUP))),
            // No entries are an empty list or nil, by how the range is empty.
            (Self::Range { .. }, Reply::Nil) => list([]),
            _ => reply,
        }
    }
}

/// When a consumer was seen and active. Of the one that blocks only whether it was: it is served at the server's time.
fn times(name: &Reply, seen: &Reply, active: &Reply) -> Reply {
    let never = *active == Reply::int(-1i64);
    if name.words() == BLOCKER { flag(!never) } else { list([seen.clone(), active.clone()]) }
}

/// All that is in a stream: figures, entries, groups with their cursors, their consumers and how much is pending.
pub(crate) fn everything(keys: &Keyspace, key: &str) -> Reply {
    let Ok(info) = keys.xinfo_stream(key) else {
        return Reply::Nil;
    };
    let figures = stream(&info).items()[..6].to_vec();
    let groups = keys.xinfo_groups(key).unwrap_or_default();
    let groups = groups.iter().map(|info| {
        let consumers = keys.xinfo_consumers(key, &info.name).unwrap_or_default();
        let consumers = consumers.iter().map(|one| {
            let (name, seen) = (Reply::text(&one.name), Reply::int(keys.now() - one.idle));
            let active = one.inactive.map_or(Reply::int(-1i64), |inactive| Reply::int(keys.now() - inactive));
            list([times(&name, &seen, &active), name, Reply::int(one.pending as u64)])
        });
        let figures = group(info);
        list([
            list([0, 3, 4, 5, 2].map(|at: usize| figures.items()[at].clone())),
            Reply::int(info.handed_back as u64),
            list(consumers),
        ])
    });
    let entries = keys.xrange(key, Range::ALL, None).unwrap_or_default();
    list([list(figures), bodies(&entries, false), list(groups)])
}

/// The same out of `XINFO STREAM FULL COUNT 0`.
pub(crate) fn everything_known(full: &Reply) -> Reply {
    if !matches!(full, Reply::List(_)) {
        return Reply::Nil;
    }
    let groups = full.named("groups").items().iter().map(|group| {
        let consumers = group.named("consumers").items().iter().map(|one| {
            let name = one.named("name");
            let times = times(name, one.named("seen-time"), one.named("active-time"));
            list([times, name.clone(), one.named("pel-count").clone()])
        });
        let figures = ["name", "last-delivered-id", "entries-read", "lag", "pel-count"];
        list([
            list(figures.map(|name| group.named(name).clone())),
            group.named("nacked-count").clone(),
            list(consumers),
        ])
    });
    let figures = STREAM[..6].iter().map(|name| full.named(name).clone());
    list([list(figures), full.named("entries").clone(), list(groups)])
}

/// Entries of a read without the time they lay idle.
pub(crate) fn without_idle(reply: &Reply) -> Reply {
    match reply.items() {
        [] => reply.clone(),
        [id @ Reply::Text(_), fields, Reply::Int(_), earlier] => list([id.clone(), fields.clone(), earlier.clone()]),
        items => list(items.iter().map(without_idle)),
    }
}
