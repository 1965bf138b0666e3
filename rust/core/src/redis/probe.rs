//! What the connected server can do, by asking it: forks report version numbers that mean something else.

use ::redis::{Value, cmd};

use super::link::Link;
use super::value::{bytes, named, text, words};
use crate::error::{Error, Result};
use crate::store::Abilities;

pub(super) async fn abilities(link: &Link) -> Result<Abilities> {
    let (server, version) = identity(link).await?;
    let mut found = Abilities { server, version, ..Abilities::default() };
    let mut info = cmd("COMMAND");
    info.arg("INFO").arg("xnack").arg("xackdel");
    if let Value::Array(commands) = link.query(&info).await? {
        let known = |at: usize| matches!(commands.get(at), Some(Value::Array(parts)) if !parts.is_empty());
        found.xnack = known(0);
        found.xackdel = known(1);
    }
    // A bad value for an option the server knows is a different error from an option it does not know.
    found.claim = knows(link, &["CLAIM", "-1"], "min-idle").await?;
    found.max_size = knows(link, &["MAXSIZE", "0"], "maxsize").await?;
    found.idempotent = adds_once(link).await?;
    found.max_value = max_value(link).await?;
    Ok(found)
}

async fn knows(link: &Link, option: &[&str], complaint: &str) -> Result<bool> {
    // Without a key: a user may be kept from all but a few.
    let mut read = cmd("XREADGROUP");
    read.arg("GROUP").arg("g").arg("c").arg(option).arg("COUNT").arg(1);
    match link.query(&read).await {
        Err(Error::Server(answer)) => Ok(answer.to_lowercase().contains(complaint)),
        Err(Error::NoGroup(_)) | Ok(_) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The server's own description of `XADD` has the option. One that keeps it to itself is taken for an old one.
async fn adds_once(link: &Link) -> Result<bool> {
    match link.query(cmd("COMMAND").arg("DOCS").arg("xadd")).await {
        Ok(docs) => Ok(mentions(&docs, b"IDMP")),
        Err(Error::Server(_) | Error::Connect(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn mentions(value: &Value, word: &[u8]) -> bool {
    match value {
        Value::Map(pairs) => pairs.iter().any(|(name, value)| mentions(name, word) || mentions(value, word)),
        Value::Array(values) | Value::Set(values) => values.iter().any(|value| mentions(value, word)),
        text => bytes(text) == word,
    }
}

/// The longest value it takes: one past it makes it close the connection on everything that is under way there.
async fn max_value(link: &Link) -> Result<Option<u64>> {
    match link.query(cmd("CONFIG").arg("GET").arg("proto-max-bulk-len")).await {
        Ok(reply) => {
            Ok(std::str::from_utf8(named(&reply, "proto-max-bulk-len")).ok().and_then(|text| text.parse().ok()))
        }
        // Not everyone may ask.
        Err(Error::Server(_) | Error::Connect(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which run of which server answers.
pub(super) async fn run_id(link: &Link) -> Result<String> {
    let reply = link.query(cmd("INFO").arg("server")).await?;
    let text = text(&reply);
    Ok(text.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().trim().to_owned())
}

/// Valkey says `redis_version:7.2.4` for old clients' sake and tells its own name beside it.
async fn identity(link: &Link) -> Result<(String, String)> {
    let mut info = cmd("INFO");
    info.arg("server");
    let reply = link.query(&info).await?;
    let text = text(&reply);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
    let server = field("server_name:").unwrap_or_else(|| "redis".into());
    let version = field(&format!("{server}_version:")).or_else(|| field("redis_version:"));
    Ok((words(&server), version.unwrap_or_else(|| "of an unknown version".into())))
}
