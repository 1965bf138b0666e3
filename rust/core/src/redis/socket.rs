//! The hot read: a socket of its own, commands written as bytes, replies walked in place.

use std::sync::Arc;
use std::time::Duration;

use ::redis::ConnectionAddr;
use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{ANSWER, Address, CONNECT};
use crate::batch::{Origin, RawBatch};
use crate::entry::Slot;
use crate::error::{Error, Result};
use crate::reply::{Outcome, Progress, Walker};
use crate::store::{EntryReader, Want};

/// The first guess at a reply's size; later ones go by what came.
const FIRST_REPLY: usize = 64 * 1024;
/// Read into at least this much room.
const ROOM: usize = 16 * 1024;
/// The largest guess.
const LARGE: usize = 8 * 1024 * 1024;
/// Where the server can cap a reply, it stops adding entries here: `count` large bodies must not fill the memory.
const MAX_SIZE: &str = "67108864";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One subscription's reading connection.
pub(super) struct SocketReader {
    stream: Box<dyn Stream>,
    id: i64,
    origin: Arc<Origin>,
    hash_keys: bool,
    max_size: bool,
    expected: usize,
    buffer: BytesMut,
    /// Reads that were sent and not answered.
    asked: usize,
    /// The last command sent and what it was built from: nearly every read is the same as the one before.
    command: Option<(Want, Vec<u8>)>,
}

impl SocketReader {
    /// Connect, authenticate and choose the database.
    pub(super) async fn open(address: &Address, origin: &Arc<Origin>, hash_keys: bool, max_size: bool) -> Result<Self> {
        let opening = async {
            let stream: Box<dyn Stream> = match address.info.addr() {
                ConnectionAddr::Tcp(host, port) => {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
                ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path).await?),
                _ => return Err(Error::Config("this kind of address cannot be read from yet".into())),
            };
            let mut reader = Self {
                stream,
                id: 0,
                origin: Arc::clone(origin),
                hash_keys,
                max_size,
                expected: FIRST_REPLY,
                buffer: BytesMut::new(),
                asked: 0,
                command: None,
            };
            reader.greet(address).await?;
            Ok(reader)
        };
        let failed = |text: String| Error::Connect(format!("cannot read from Redis at {}: {text}", address.display()));
        match tokio::time::timeout(CONNECT, opening).await {
            Err(_) => Err(failed(format!("no answer within {} s", CONNECT.as_secs()))),
            Ok(Err(Error::Lost(text) | Error::Connect(text))) => Err(failed(text)),
            Ok(other) => other,
        }
    }

    async fn greet(&mut self, address: &Address) -> Result<()> {
        let settings = address.info.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = ::redis::cmd("AUTH");
            if let Some(username) = settings.username() {
                auth.arg(username);
            }
            auth.arg(password);
            self.ask(&auth).await?;
        }
        // RESP3 spares the outer array; a server or proxy without HELLO serves as well by RESP2.
        match self.ask(::redis::cmd("HELLO").arg(3)).await {
            Ok(_) | Err(Error::Server(_)) => {}
            Err(error) => return Err(error),
        }
        if settings.db() != 0 {
            self.ask(::redis::cmd("SELECT").arg(settings.db())).await?;
        }
        let mut name = ::redis::cmd("CLIENT");
        name.arg("SETNAME").arg(self.origin.consumer.replace(|c: char| !c.is_ascii_graphic(), "_"));
        for optional in [
            name,
            ::redis::cmd("CLIENT").arg("SETINFO").arg("LIB-NAME").arg("ruststream").clone(),
            ::redis::cmd("CLIENT").arg("SETINFO").arg("LIB-VER").arg(env!("CARGO_PKG_VERSION")).clone(),
        ] {
            match self.ask(&optional).await {
                Ok(_) | Err(Error::Server(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.id = self.ask(::redis::cmd("CLIENT").arg("ID")).await?;
        Ok(())
    }

    /// A command of the handshake. Its reply is small and of any shape; the number of an integer reply is returned.
    async fn ask(&mut self, command: &::redis::Cmd) -> Result<i64> {
        self.stream.write_all(&command.get_packed_command()).await?;
        loop {
            match ::redis::parse_redis_value(&self.buffer) {
                Ok(value) => {
                    self.buffer.clear();
                    let value = value.extract_error()?;
                    return Ok(super::value::integer(&value).unwrap_or(0));
                }
                Err(_) if self.buffer.len() > FIRST_REPLY => {
                    return Err(Error::Protocol("the handshake was not answered in RESP".into()));
                }
                Err(_) => self.fill(1).await?,
            }
        }
    }

    /// Read at least one byte more; `short` is how many are known to be missing.
    async fn fill(&mut self, short: usize) -> Result<()> {
        if self.buffer.capacity() - self.buffer.len() < ROOM {
            // Grow by what has come, so that a length that lies costs no more than was really sent.
            let step = short.min(self.buffer.len().max(self.expected)).max(ROOM);
            self.buffer.reserve(step);
        }
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(Error::Lost("the server closed the connection".into()));
        }
        Ok(())
    }

    fn command(&mut self, want: Want) -> &[u8] {
        if self.command.as_ref().is_none_or(|(last, _)| *last != want) {
            let mut command = ::redis::cmd("XREADGROUP");
            command.arg("GROUP").arg(&self.origin.group).arg(&self.origin.consumer).arg("COUNT").arg(want.count);
            if self.max_size {
                command.arg("MAXSIZE").arg(MAX_SIZE);
            }
            if let Some(block) = want.block {
                // Zero would mean for ever.
                command.arg("BLOCK").arg(block.as_millis().max(1).to_string());
            }
            if let Some(min_idle) = want.claim {
                command.arg("CLAIM").arg(min_idle.as_millis().to_string());
            }
            command.arg("STREAMS").arg(&self.origin.stream).arg(">");
            self.command = Some((want, command.get_packed_command()));
        }
        self.command.as_ref().map(|(_, packed)| packed.as_slice()).unwrap_or_default()
    }

    /// Send the read, unless it was sent ahead; and the one after it where that is wanted.
    async fn ask_for(&mut self, want: Want, ahead: Option<Want>) -> Result<()> {
        let first = (self.asked == 0).then_some(want);
        for want in [first, ahead].into_iter().flatten() {
            let packed = self.command(want).to_vec();
            self.stream.write_all(&packed).await?;
            self.asked += 1;
        }
        Ok(())
    }

    async fn reply(&mut self) -> Result<RawBatch> {
        let mut walker = Walker::new(self.hash_keys);
        let mut slots: Vec<Slot> = Vec::new();
        self.buffer.reserve(self.expected);
        let end = loop {
            match walker.walk(&self.buffer, &mut slots) {
                Ok(Progress::Done(end)) => break end,
                Ok(Progress::More(short)) => self.fill(short).await?,
                Err(malformed) => return Err(Error::Protocol(malformed.to_string())),
            }
        };
        self.asked -= 1;
        if end < self.buffer.len() && self.asked == 0 {
            return Err(Error::Protocol("more than one reply to one read".into()));
        }
        if let Outcome::Error(span) = walker.outcome() {
            let error = Error::from_reply(&String::from_utf8_lossy(span.of(&self.buffer)));
            self.buffer.advance(end);
            return Err(error);
        }
        // The guess follows the replies down as well as up, and a small reply must not pin a large buffer.
        self.expected = (end + ROOM).max(self.expected / 4 * 3).clamp(FIRST_REPLY, LARGE);
        let bytes = if end < self.buffer.capacity() / 2 {
            let bytes = Bytes::copy_from_slice(&self.buffer[..end]);
            self.buffer.advance(end);
            bytes
        } else {
            self.buffer.split_to(end).freeze()
        };
        Ok(RawBatch { bytes, slots })
    }
}

#[async_trait]
impl EntryReader for SocketReader {
    async fn read(&mut self, want: Want, ahead: Option<Want>) -> Result<RawBatch> {
        self.ask_for(want, ahead).await?;
        // A server may block longer than it was asked to; one that says nothing at all is gone.
        let patience = want.block.unwrap_or(Duration::ZERO) + ANSWER;
        match tokio::time::timeout(patience, self.reply()).await {
            Ok(raw) => raw,
            Err(_) => Err(Error::Lost(format!("no answer to a read within {patience:?}"))),
        }
    }

    fn id(&self) -> i64 {
        self.id
    }
}
