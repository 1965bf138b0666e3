//! Redis and Valkey as a `StreamStore`.

mod bound;
mod consumers;
mod inspect;
mod letters;
mod link;
mod mark;
mod probe;
mod producer;
mod rows;
mod scan;
mod scripts;
mod settle;
mod socket;
mod starts;
mod store;
mod value;

pub use store::RedisStore;

use std::time::Duration;

use crate::error::{Error, Result};

/// How long a connection may take to come up, address to answered handshake.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a command that does not block may stay unanswered before the connection is taken for lost.
const ANSWER: Duration = Duration::from_secs(10);

/// A server's address and credentials. Its text never shows the password.
#[derive(Clone)]
pub struct Address {
    info: ::redis::ConnectionInfo,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Address({})", self.info.addr())
    }
}

impl Address {
    /// Read `redis://[user:password@]host[:port][/db]` or `unix:///path`; explicit credentials win.
    pub fn parse(url: &str, username: Option<&str>, password: Option<&str>) -> Result<Self> {
        use ::redis::IntoConnectionInfo;
        // The text of the error is the parser's own and does not repeat the URL, which may hold a password.
        let info = url
            .into_connection_info()
            .map_err(|error| Error::Config(format!("the Redis URL is not valid: {error}")))?;
        if matches!(info.addr(), ::redis::ConnectionAddr::TcpTls { .. }) {
            return Err(Error::Config("rediss:// (TLS) is not supported yet; use redis:// or unix://".into()));
        }
        let mut settings = info.redis_settings().clone().set_lib_name("ruststream", env!("CARGO_PKG_VERSION"));
        if let Some(username) = username {
            settings = settings.set_username(username);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        Ok(Self { info })
    }

    /// `host:port` or the socket's path.
    pub fn display(&self) -> String {
        self.info.addr().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn a_secret_shows_nowhere() {
        let address = Address::parse("redis://bob:hunter2@localhost:7000/1", None, Some("swordfish"));
        let text = format!("{address:?}");
        assert!(text.contains("localhost:7000") && !text.contains("hunter2") && !text.contains("swordfish"), "{text}");
        let bad = Address::parse("redis://:hunter2@", None, None);
        assert!(!format!("{bad:?}").contains("hunter2"));
    }
}
