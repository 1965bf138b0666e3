//! What the connected server can do, by asking it: forks report version numbers that mean something else.

use ::redis::{Value, cmd};

use super::link::Link;
use super::value::{text, words};
use crate::error::{Error, Result};
use crate::store::Abilities;

/// A stream name that nobody uses: the questions below are answered before the key is looked up.
const NOWHERE: &str = "ruststream:probe";

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
    Ok(found)
}

async fn knows(link: &Link, option: &[&str], complaint: &str) -> Result<bool> {
    let mut read = cmd("XREADGROUP");
    read.arg("GROUP").arg("g").arg("c").arg(option).arg("STREAMS").arg(NOWHERE).arg(">");
    match link.query(&read).await {
        Err(Error::Server(answer)) => Ok(answer.to_lowercase().contains(complaint)),
        Err(Error::NoGroup(_)) | Ok(_) => Ok(false),
        Err(error) => Err(error),
    }
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
