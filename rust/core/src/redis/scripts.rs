//! The steps that must not be torn apart, as Lua. Each checks who owns an entry before it touches it: `XACK`,
//! `XCLAIM` and `XNACK` do not.

use std::sync::LazyLock;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Script};

use crate::error::{Error, Result};

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!($file)));
    };
}

script!(
    /// KEYS stream; ARGV group, consumer, then id and delivery count of each. One number per entry: 1 done, 0 gone, -1 taken.
    ACK, "lua/ack.lua"
);
script!(
    /// KEYS stream, delay key; ARGV group, consumer, id, delivery count, delay in ms (-1: a copy at once), delete the
    /// original (0 or 1), then the copy's fields. 1 done, 0 gone, -1 taken.
    RETRY, "lua/retry.lua"
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
    /// KEYS stream; ARGV group, consumer, min idle in ms, cursor, entries to look at, entries to take. Returns next
    /// cursor, entries of four elements as `XREADGROUP CLAIM` gives them, ids of deleted entries.
    SCAN,
    "lua/scan.lua"
);
script!(
    /// KEYS stream; ARGV group, consumer, uncounted (0 or 1), ids. Returns entries and ids as `SCAN` does, of those that
    /// are pending under the consumer's name.
    TAKE,
    "lua/take.lua"
);
script!(
    /// KEYS delay key, stream; ARGV limit. Returns how many were moved, the ms until the next (-1: none), and how many
    /// members are not ours and were put aside.
    PROMOTE, "lua/promote.lua"
);

/// Make the server know them all.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<()> {
    for script in [&ACK, &RETRY, &RENEW, &RELEASE, &SCAN, &TAKE, &PROMOTE] {
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
