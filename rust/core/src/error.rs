//! One error type, one kind per thing a caller can do about it.

/// What went wrong, with the text a user is shown. Cloned freely: one cause may end many waits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting that cannot work.
    #[error("{0}")]
    Config(String),
    /// No usable connection could be made: address, password, TLS.
    #[error("{0}")]
    Connect(String),
    /// A subscription needs what this server cannot do.
    #[error("{subscription} needs {required}; the connected server is {actual}")]
    TooOld {
        /// The subscription, as the user knows it.
        subscription: String,
        /// What it needs.
        required: String,
        /// What is there.
        actual: String,
    },
    /// A subscription could not be opened.
    #[error("{0}")]
    Subscribe(String),
    /// An entry was refused; nothing was written.
    #[error("{text}")]
    Publish {
        /// What is shown.
        text: String,
        /// The server's code, such as `OOM`; empty where it was not asked.
        code: String,
    },
    /// The reply to a publish was lost: the entry may or may not be there.
    #[error("{0}")]
    PublishUncertain(String),
    /// The consumer group is gone.
    #[error("{0}")]
    NoGroup(String),
    /// The server answered with an error.
    #[error("{0}")]
    Server(String),
    /// The connection was lost; what was under way may or may not have happened.
    #[error("{0}")]
    Lost(String),
    /// The peer sent something that is not RESP, or not the reply to our command.
    #[error("malformed reply: {0}")]
    Protocol(String),
    /// Used after it was closed.
    #[error("{0} is shut down")]
    ShutDown(&'static str),
}

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Sort a server's error line (`CODE text`) by what can be done about it.
    pub fn from_reply(line: &str) -> Self {
        match line.split(' ').next().unwrap_or_default() {
            "NOGROUP" => Self::NoGroup(line.to_owned()),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::Connect(line.to_owned()),
            _ => Self::Server(line.to_owned()),
        }
    }

    /// Whether the connection is gone, so that a new one must be made before trying again.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Protocol(_) | Self::Connect(_))
    }
}

impl From<redis::RedisError> for Error {
    fn from(error: redis::RedisError) -> Self {
        use redis::ErrorKind;
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Connect(error.to_string());
        }
        if let Some(code) = error.code() {
            let text = error.detail().unwrap_or_default();
            return Self::from_reply(format!("{code} {text}").trim_end());
        }
        if error.is_io_error() || error.is_connection_dropped() || error.is_timeout() {
            return Self::Lost(error.to_string());
        }
        match error.kind() {
            ErrorKind::InvalidClientConfig => Self::Config(error.to_string()),
            ErrorKind::Io | ErrorKind::Parse => Self::Lost(error.to_string()),
            _ => Self::Server(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}
