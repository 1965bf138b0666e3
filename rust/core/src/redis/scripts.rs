//! The steps that must not be torn apart, as Lua. Each checks who owns an entry before it touches it: `XACK`,
//! `XCLAIM` and `XNACK` do not.

use std::sync::LazyLock;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Script};

use crate::error::{Error, Result};

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+ $(,)?) => {
        $(#[$doc])*
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!($file)),+)));
    };
}

script!(
    /// KEYS stream; ARGV group, consumer, ids. One number per entry: 1 done, 0 gone, -1 taken. Whatever the count: a read of
    /// this process may have raised it while the ack was on its way.
    ACK, "lua/pending.lua", "lua/ack.lua"
);
script!(
    /// KEYS stream, delay key; ARGV group, consumer, id, delivery count (empty: any), delay in ms (-1: at once), delete the
    /// original (0 or 1), then the copy's fields. 1 done, 0 gone, -1 taken.
    RETRY, "lua/pending.lua", "lua/retry.lua"
);
script!(
    /// KEYS stream, the reply's stream; ARGV group, consumer, id, delivery count (empty: any), then what follows the key in
    /// the reply's `XADD`. 1 done, 0 gone, -1 taken.
    REPLY, "lua/pending.lua", "lua/reply.lua"
);
script!(
    /// KEYS stream, stream of letters; ARGV group, consumer, id, delivery count (empty: any), delete the original (0 or 1),
    /// then the letter's fields but for the time. 1 done, 0 gone, -1 taken.
    BURY, "lua/pending.lua", "lua/bury.lua"
);
script!(
    /// KEYS stream of letters, stream; ARGV id of a letter, then the fields it goes back with. Returns its new id; nil
    /// where it is gone.
    REPLAY, "lua/replay.lua"
);
script!(
    /// KEYS stream; ARGV group, consumer, ids. Returns the ids that are another consumer's.
    RENEW, "lua/renew.lua"
);
script!(
    /// KEYS stream; ARGV group, consumer, xnack (0 or 1), then id and earlier deliveries of each. Returns how many.
    RELEASE, "lua/release.lua"
);
script!(
    /// KEYS stream; ARGV group, consumer, min idle in ms, cursor, entries to look at, entries to take, the stream of
    /// letters where deleted entries get one. Returns next cursor, entries of four elements as `XREADGROUP CLAIM` gives
    /// them, ids of deleted entries, how many letters were refused, and why.
    SCAN,
    "lua/deleted.lua",
    "lua/scan.lua",
);
script!(
    /// KEYS stream; ARGV group, consumer, uncounted (0 or 1), letters as in `SCAN`, ids. Returns what `SCAN` does but
    /// for the cursor, of those that are pending under the consumer's name.
    TAKE,
    "lua/deleted.lua",
    "lua/take.lua",
);
script!(
    /// KEYS stream, delay key; ARGV group, consumer, resent and exact (0 or 1), then id, delivery count and delay in ms of
    /// each. One number per entry, as `ACK` gives them.
    PARK, "lua/pending.lua", "lua/parked.lua", "lua/park.lua"
);
script!(
    /// KEYS stream, delay key; ARGV group, consumer, then id, delivery count and delay in ms of each. One number per
    /// entry, as `ACK` gives them.
    KEEP, "lua/pending.lua", "lua/parked.lua", "lua/keep.lua"
);
script!(
    /// KEYS stream, delay key; ARGV group, consumer, resent and exact (0 or 1), then id and delivery count of each. One
    /// number per entry, as `ACK` gives them.
    AGAIN, "lua/pending.lua", "lua/parked.lua", "lua/again.lua"
);
script!(
    /// KEYS delay key, stream; ARGV group, consumer, members to look at, parked entries to take, members to pass over,
    /// leave those without a body pending (0 or 1).
    /// Returns how many copies were moved; the ms until the next member is due (-1: none); how many members are not
    /// ours and were put aside; how many were looked at; how many of those stay; how many of these are parked ones of
    /// this group; entries and ids as `SCAN` does.
    DUE, "lua/pending.lua", "lua/parked.lua", "lua/kept.lua", "lua/due.lua"
);
script!(
    /// KEYS stream, delay key; ARGV group, consumer, then id, earlier deliveries and idle ms of each claimed entry.
    /// Returns, of those that were parked, the id and for how many ms it lay (-1: not due yet, and parked again).
    EARLY, "lua/pending.lua", "lua/parked.lua", "lua/early.lua"
);
script!(
    /// KEYS delay key, stream; ARGV group, members to pass over, members to look at. Removes the parked entries of the
    /// group, unless it is there; returns how many of the members stay (-1: there are no more to look at).
    UNPARK, "lua/pending.lua", "lua/parked.lua", "lua/unpark.lua"
);
script!(
    /// KEYS stream; ARGV group, names of living consumers. Makes those heard of that are there; returns the rows of
    /// `XINFO CONSUMERS` as they were before.
    CONSUMERS, "lua/consumers.lua"
);
script!(
    /// KEYS stream; ARGV group, idle time in ms, names. Returns the names that were deleted: those with nothing pending
    /// that were not heard of for so long.
    FORGET, "lua/forget.lua"
);
script!(
    /// KEYS stream; ARGV `acked`, `length` or `age`, its figure, entries to remove at most, groups that must be there.
    /// Returns how many were removed, and where none were: how many are too many, and the groups that need them with
    /// their pending entries and their lag (-1: unknown).
    TRIM, "lua/trim.lua"
);
script!(
    /// KEYS stream, hash of marks; ARGV group, consumer, then id, delivery count (empty: any) and mark of each (empty: take it
    /// away).
    /// One number per entry: 1 done, 0 gone, -1 taken.
    MARK, "lua/pending.lua", "lua/mark.lua"
);
script!(
    /// KEYS stream, hash of marks; ARGV group, ids. Takes away the marks of those that are not pending; returns how many.
    UNMARK, "lua/unmark.lua"
);

script!(
    /// KEYS marks; ARGV step (begin, finish or release), owner, ms that the mark lives. One number per mark: 1 carried
    /// out, 0 another owner's, 2 done.
    MESSAGE, "lua/message.lua"
);

/// Make the server know them all.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<()> {
    for script in [
        &ACK, &RETRY, &REPLY, &BURY, &REPLAY, &RENEW, &RELEASE, &SCAN, &TAKE, &PARK, &KEEP, &AGAIN, &DUE, &EARLY,
        &UNPARK, &CONSUMERS, &FORGET, &TRIM, &MARK, &UNMARK, &MESSAGE,
    ] {
        let loaded: ::redis::RedisResult<String> = script.prepare_invoke().load_async(connection).await;
        loaded.map_err(|error| match Error::from(error) {
            Error::Connect(text) if text.starts_with("NOPERM") => {
                Error::Connect(format!("this user may not load scripts (SCRIPT LOAD, EVALSHA): {text}"))
            }
            other => other,
        })?;
    }
    Ok(())
}

/// An `EVALSHA` of it with these keys; the caller adds the arguments.
pub(super) fn call(script: &Script, keys: &[&str]) -> Cmd {
    let mut command = ::redis::cmd("EVALSHA");
    command.arg(script.get_hash()).arg(keys.len());
    for key in keys {
        command.arg(*key);
    }
    command
}
