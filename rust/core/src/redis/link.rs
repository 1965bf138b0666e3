//! One multiplexed connection for everything but reads, made again when it is lost.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, Value};

use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ANSWER, Address, CONNECT, scripts};
use crate::backoff::Backoff;
use crate::error::{Error, Result};

/// Commands that may wait for their reply at once; enough that a publisher's pipelines never queue behind it.
const PIPELINED: usize = 256;

/// The pause after a first attempt that failed, and the longest: a server that comes back is noticed within it.
const DIAL_AGAIN: Duration = Duration::from_millis(50);
const DIAL_AT_LEAST: Duration = Duration::from_millis(400);

#[derive(Debug, Default)]
struct Slot {
    connection: Option<Connection>,
    made: u64,
    /// No attempt before then, after one that failed: many ask for this connection, one of them dials.
    not_before: Option<Instant>,
    backoff: Option<Backoff>,
}

#[derive(Clone)]
struct Connection(MultiplexedConnection);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

/// A connection, and its number.
#[derive(Clone)]
pub(super) struct Leased {
    connection: MultiplexedConnection,
    made: u64,
}

/// A connection that is there when it is needed.
#[derive(Debug)]
pub(super) struct Link {
    address: Address,
    /// Whether scripts are run on it.
    scripted: bool,
    slot: Mutex<Slot>,
    closed: CancellationToken,
}

impl Link {
    pub(super) fn new(address: Address, scripted: bool) -> Self {
        Self { address, scripted, slot: Mutex::default(), closed: CancellationToken::new() }
    }

    /// The connection, its number, and whether it was made just now.
    async fn get(&self) -> Result<(MultiplexedConnection, u64, bool)> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(Error::ShutDown("the connection")),
            connection = self.get_open() => connection,
        }
    }

    async fn get_open(&self) -> Result<(MultiplexedConnection, u64, bool)> {
        let mut slot = self.slot.lock().await;
        if let Some(Connection(connection)) = &slot.connection {
            return Ok((connection.clone(), slot.made, false));
        }
        if let Some(moment) = slot.not_before {
            tokio::time::sleep_until(moment).await;
        }
        let dialled = self.dial().await;
        if dialled.is_err() {
            let backoff = slot.backoff.get_or_insert_with(|| Backoff::new(DIAL_AGAIN, DIAL_AT_LEAST));
            slot.not_before = Some(Instant::now() + backoff.wait());
        }
        let connection = dialled?;
        slot.made += 1;
        slot.not_before = None;
        slot.backoff = None;
        slot.connection = Some(Connection(connection.clone()));
        Ok((connection, slot.made, true))
    }

    async fn dial(&self) -> Result<MultiplexedConnection> {
        let client = Client::open(self.address.info.clone())?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER))
            .set_pipeline_buffer_size(PIPELINED);
        let failed = |error: Error| match error {
            Error::Connect(text) | Error::Lost(text) | Error::Server(text) => Error::Connect(format!(
                "cannot connect to Redis at {}: {text}; check the address, the user name and password, and that the \
                 server runs",
                self.address.display()
            )),
            other => other,
        };
        let connecting = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connecting.map_err(|error| failed(error.into()))?;
        if self.scripted {
            scripts::load(&mut connection).await.map_err(failed)?;
        }
        Ok(connection)
    }

    /// Forget a connection that failed, unless another took its place already.
    async fn drop_connection(&self, made: u64) {
        let mut slot = self.slot.lock().await;
        if slot.made == made {
            slot.connection = None;
        }
    }

    /// One command, one reply; a server's error is an error. Only for what may be done twice: where a connection that
    /// was there turns out to be dead, the command is sent again on a new one.
    pub(super) async fn query(&self, command: &Cmd) -> Result<Value> {
        loop {
            let (mut connection, made, fresh) = self.get().await?;
            let reply = connection.send_packed_command(command).await.and_then(Value::extract_error);
            let reply = self.check(reply, made).await;
            let forgotten = matches!(&reply, Err(Error::Server(text)) if text.starts_with("NOSCRIPT"));
            if forgotten {
                self.drop_connection(made).await;
            }
            if fresh || !(forgotten || reply.as_ref().is_err_and(Error::is_lost)) {
                return reply;
            }
        }
    }

    /// Many commands, one reply each; a server's error stays with its command. They are sent once: what to do about
    /// lost replies is the caller's to say.
    pub(super) async fn pipeline(&self, commands: &Pipeline) -> Result<Vec<Result<Value>>> {
        let leased = self.lease().await?;
        self.pipeline_on(leased, commands).await
    }

    /// The connection as it is now, for pipelines that must not go to different ones: what is sent on one that was lost
    /// is lost with it.
    pub(super) async fn lease(&self) -> Result<Leased> {
        let (connection, made, _) = self.get().await?;
        Ok(Leased { connection, made })
    }

    /// The same as `pipeline`, on this connection.
    pub(super) async fn pipeline_on(&self, leased: Leased, commands: &Pipeline) -> Result<Vec<Result<Value>>> {
        let Leased { mut connection, made } = leased;
        let replies = connection.send_packed_commands(commands, 0, commands.len()).await;
        let replies = self.check(replies, made).await?;
        if replies.len() != commands.len() {
            self.drop_connection(made).await;
            return Err(Error::Protocol("fewer replies than commands".into()));
        }
        let replies: Vec<_> = replies.into_iter().map(|reply| reply.extract_error().map_err(Error::from)).collect();
        if replies.iter().any(|reply| matches!(reply, Err(Error::Server(text)) if text.starts_with("NOSCRIPT"))) {
            // SCRIPT FLUSH, or a failover to a server that never saw them: a new connection loads them again.
            self.drop_connection(made).await;
            return Err(Error::Lost("the server forgot our scripts".into()));
        }
        Ok(replies)
    }

    async fn check<T>(&self, reply: ::redis::RedisResult<T>, made: u64) -> Result<T> {
        let reply = reply.map_err(Error::from);
        if reply.as_ref().is_err_and(Error::is_lost) {
            self.drop_connection(made).await;
        }
        reply
    }

    pub(super) async fn close(&self) {
        self.closed.cancel();
        self.slot.lock().await.connection = None;
    }
}
