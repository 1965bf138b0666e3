//! Commands, as a server takes them.

use std::fmt;

use ruststream_core::entry::EntryId;
use ruststream_core::model::{
    AddId, Claim, Delivered, From, GroupRead, HandBack, Keep, Position, Range, References, TrimTo,
};

/// Names and values.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A command.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Add {
        key: String,
        id: AddId,
        fields: Fields,
        trim: Option<TrimTo>,
    },
    Len {
        key: String,
    },
    Range {
        key: String,
        range: Range,
        count: usize,
        reverse: bool,
    },
    Delete {
        key: String,
        ids: Vec<EntryId>,
    },
    Trim {
        key: String,
        to: TrimTo,
    },
    Create {
        key: String,
        group: String,
        at: Position,
        make: bool,
        read: Option<u64>,
    },
    SetId {
        key: String,
        group: String,
        at: Position,
        read: Option<u64>,
    },
    Destroy {
        key: String,
        group: String,
    },
    CreateConsumer {
        key: String,
        group: String,
        consumer: String,
    },
    DeleteConsumer {
        key: String,
        group: String,
        consumer: String,
    },
    Read(GroupRead),
    Ack {
        key: String,
        group: String,
        ids: Vec<EntryId>,
    },
    AckDelete {
        key: String,
        group: String,
        references: References,
        ids: Vec<EntryId>,
    },
    Nack {
        key: String,
        group: String,
        how: HandBack,
        ids: Vec<EntryId>,
        force: bool,
    },
    Claim {
        key: String,
        group: String,
        consumer: String,
        claim: Claim,
        ids: Vec<EntryId>,
    },
    Autoclaim {
        key: String,
        group: String,
        consumer: String,
        min_idle: u64,
        start: EntryId,
        count: usize,
        just_id: bool,
    },
    Pending {
        key: String,
        group: String,
    },
    PendingRange {
        key: String,
        group: String,
        idle: u64,
        range: Range,
        count: usize,
        consumer: Option<String>,
    },
    InfoStream {
        key: String,
    },
    InfoGroups {
        key: String,
    },
    Remove {
        key: String,
    },
    Set {
        key: String,
    },
    Zadd {
        key: String,
        score: i32,
        member: String,
    },
    Zrem {
        key: String,
        member: String,
    },
    ZrangeByScore {
        key: String,
        maximum: i32,
        limit: usize,
    },
    Zrange {
        key: String,
        first: i64,
        last: i64,
    },
    Zcard {
        key: String,
    },
}

/// The words of a command.
#[derive(Default)]
pub(crate) struct Words(pub(crate) Vec<Vec<u8>>);

impl Words {
    fn of(words: &[&str]) -> Self {
        let mut all = Self::default();
        for word in words {
            all.add(word);
        }
        all
    }

    fn add(&mut self, word: impl fmt::Display) {
        self.0.push(word.to_string().into_bytes());
    }

    fn with(mut self, word: impl fmt::Display) -> Self {
        self.add(word);
        self
    }

    fn when(self, given: bool, word: &str) -> Self {
        if given { self.with(word) } else { self }
    }

    fn option(self, name: &str, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.with(name).with(value),
            None => self,
        }
    }

    fn all<T: fmt::Display>(mut self, words: &[T]) -> Self {
        for word in words {
            self.add(word);
        }
        self
    }

    fn trim(self, to: TrimTo) -> Self {
        let mark = if to.approximate { "~" } else { "=" };
        match to.keep {
            Keep::Newest(length) => self.with("MAXLEN").with(mark).with(length),
            Keep::From(id) => self.with("MINID").with(mark).with(id),
        }
    }
}

fn position(at: Position) -> String {
    match at {
        Position::End => "$".into(),
        Position::After(id) => id.to_string(),
    }
}

/// The words of a read; `block` in milliseconds.
pub(crate) fn read_words(read: &GroupRead, block: Option<u64>) -> Words {
    let from = match read.from {
        From::New => ">".to_owned(),
        From::Own(id) => id.to_string(),
    };
    Words::of(&["XREADGROUP", "GROUP", &read.group, &read.consumer])
        .with("COUNT")
        .with(read.count)
        .option("BLOCK", block)
        .option("CLAIM", read.claim)
        .when(read.no_ack, "NOACK")
        .all(&["STREAMS", &read.key, &from])
}

/// A command as one would type it, cut where it gets long.
pub(crate) fn line(words: &[Vec<u8>]) -> String {
    let words: Vec<_> = words.iter().map(|word| word[..word.len().min(40)].escape_ascii().to_string()).collect();
    words.join(" ")
}

impl Step {
    /// As a server takes it.
    pub(crate) fn words(&self) -> Vec<Vec<u8>> {
        let words = match self {
            Self::Add { key, id, fields, trim } => {
                let words = Words::of(&["XADD", key]);
                let words = match trim {
                    Some(to) => words.trim(*to),
                    None => words,
                };
                let mut words = match id {
                    AddId::Auto => words.with("*"),
                    AddId::Ms(ms) => words.with(format!("{ms}-*")),
                    AddId::Exact(id) => words.with(id),
                };
                words.0.extend(fields.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
                words
            }
            Self::Len { key } => Words::of(&["XLEN", key]),
            Self::Range { key, range, count, reverse: false } => {
                Words::of(&["XRANGE", key]).with(range.start).with(range.end).with("COUNT").with(count)
            }
            Self::Range { key, range, count, reverse: true } => {
                Words::of(&["XREVRANGE", key]).with(range.end).with(range.start).with("COUNT").with(count)
            }
            Self::Delete { key, ids } => Words::of(&["XDEL", key]).all(ids),
            Self::Trim { key, to } => Words::of(&["XTRIM", key]).trim(*to),
            Self::Create { key, group, at, make, read } => Words::of(&["XGROUP", "CREATE", key, group, &position(*at)])
                .when(*make, "MKSTREAM")
                .option("ENTRIESREAD", *read),
            Self::SetId { key, group, at, read } => {
                Words::of(&["XGROUP", "SETID", key, group, &position(*at)]).option("ENTRIESREAD", *read)
            }
            Self::Destroy { key, group } => Words::of(&["XGROUP", "DESTROY", key, group]),
            Self::CreateConsumer { key, group, consumer } => {
                Words::of(&["XGROUP", "CREATECONSUMER", key, group, consumer])
            }
            Self::DeleteConsumer { key, group, consumer } => {
                Words::of(&["XGROUP", "DELCONSUMER", key, group, consumer])
            }
            Self::Read(read) => read_words(read, None),
            Self::Ack { key, group, ids } => Words::of(&["XACK", key, group]).all(ids),
            Self::AckDelete { key, group, references, ids } => {
                let policy = match references {
                    References::Keep => "KEEPREF",
                    References::Delete => "DELREF",
                    References::Acked => "ACKED",
                };
                Words::of(&["XACKDEL", key, group, policy, "IDS"]).with(ids.len()).all(ids)
            }
            Self::Nack { key, group, how, ids, force } => {
                let (mode, count) = match how {
                    HandBack::Silent => ("SILENT", None),
                    HandBack::Fail => ("FAIL", None),
                    HandBack::Fatal => ("FATAL", None),
                    HandBack::Count(count) => ("FAIL", Some(count)),
                };
                Words::of(&["XNACK", key, group, mode, "IDS"])
                    .with(ids.len())
                    .all(ids)
                    .option("RETRYCOUNT", count)
                    .when(*force, "FORCE")
            }
            Self::Claim { key, group, consumer, claim, ids } => {
                let words = Words::of(&["XCLAIM", key, group, consumer]).with(claim.min_idle).all(ids);
                let words = match claim.delivered {
                    Delivered::Now => words,
                    Delivered::Ago(idle) => words.with("IDLE").with(idle),
                    Delivered::At(time) => words.with("TIME").with(time),
                };
                words.option("RETRYCOUNT", claim.count).when(claim.force, "FORCE").when(claim.just_id, "JUSTID")
            }
            Self::Autoclaim { key, group, consumer, min_idle, start, count, just_id } => {
                Words::of(&["XAUTOCLAIM", key, group, consumer])
                    .with(min_idle)
                    .with(start)
                    .with("COUNT")
                    .with(count)
                    .when(*just_id, "JUSTID")
            }
            Self::Pending { key, group } => Words::of(&["XPENDING", key, group]),
            Self::PendingRange { key, group, idle, range, count, consumer } => Words::of(&["XPENDING", key, group])
                .option("IDLE", (*idle > 0).then_some(idle))
                .with(range.start)
                .with(range.end)
                .with(count)
                .all(consumer.as_slice()),
            Self::InfoStream { key } => Words::of(&["XINFO", "STREAM", key]),
            Self::InfoGroups { key } => Words::of(&["XINFO", "GROUPS", key]),
            Self::Remove { key } => Words::of(&["DEL", key]),
            Self::Set { key } => Words::of(&["SET", key, "text"]),
            Self::Zadd { key, score, member } => Words::of(&["ZADD", key]).with(score).with(member),
            Self::Zrem { key, member } => Words::of(&["ZREM", key, member]),
            Self::ZrangeByScore { key, maximum, limit } => {
                Words::of(&["ZRANGEBYSCORE", key, "-inf"]).with(format!("({maximum}")).all(&["LIMIT", "0"]).with(limit)
            }
            Self::Zrange { key, first, last } => Words::of(&["ZRANGE", key]).with(first).with(last).with("WITHSCORES"),
            Self::Zcard { key } => Words::of(&["ZCARD", key]),
        };
        words.0
    }
}
