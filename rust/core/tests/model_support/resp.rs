//! A plain RESP2 connection: commands as they are written, replies as they come.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a reply may take that must come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A reply.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Nil, of either kind.
    Nil,
    /// A number.
    Int(i64),
    /// A string, simple or bulk.
    Text(Vec<u8>),
    /// An error line.
    Error(String),
    /// A list.
    List(Vec<Reply>),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) if text.len() > 80 => write!(f, "{}...({} bytes)", text[..40].escape_ascii(), text.len()),
            Self::Text(text) => write!(f, "{}", text.escape_ascii()),
            Self::Error(line) => write!(f, "-{line}"),
            Self::List(items) => f.debug_list().entries(items).finish(),
        }
    }
}

impl Reply {
    /// A string.
    pub(crate) fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(text.as_ref().to_vec())
    }

    /// A number.
    pub(crate) fn int(number: impl TryInto<i64>) -> Self {
        Self::Int(number.try_into().unwrap_or(i64::MAX))
    }

    /// The parts of a list; none of anything else.
    pub(crate) fn items(&self) -> &[Reply] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The value behind a name in a list of names and values.
    pub(crate) fn named(&self, name: &str) -> &Reply {
        let pair = self.items().chunks_exact(2).find(|pair| pair[0] == Self::text(name));
        pair.map_or(&Self::Nil, |pair| &pair[1])
    }

    /// The string, lossily; empty for anything else.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Text(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connect to a server on 127.0.0.1.
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port));
        let Ok(stream) = stream else { panic!("cannot connect to 127.0.0.1:{port}: {stream:?}") };
        assert!(stream.set_nodelay(true).is_ok() && stream.set_read_timeout(Some(PATIENCE)).is_ok());
        Self { stream, buffer: Vec::new() }
    }

    /// Send commands without waiting.
    pub(crate) fn send<W: AsRef<[u8]>>(&mut self, commands: &[&[W]]) {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in *words {
                bytes.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
                bytes.extend_from_slice(word.as_ref());
                bytes.extend_from_slice(b"\r\n");
            }
        }
        let sent = self.stream.write_all(&bytes);
        assert!(sent.is_ok(), "sending failed: {sent:?}");
    }

    /// Send a command and wait for its reply.
    pub(crate) fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        self.send(&[words]);
        self.reply()
    }

    /// Wait for a reply that must come.
    pub(crate) fn reply(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.whole() {
                return reply;
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the server closed the connection"),
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(error) => panic!("no reply within {PATIENCE:?}: {error}"),
            }
        }
    }

    /// A reply, if one has come.
    pub(crate) fn poll(&mut self) -> Option<Reply> {
        assert!(self.stream.set_nonblocking(true).is_ok());
        let mut chunk = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the server closed the connection"),
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("reading failed: {error}"),
            }
        }
        assert!(self.stream.set_nonblocking(false).is_ok());
        self.whole()
    }

    /// The first reply in the buffer, if all of it is there.
    fn whole(&mut self) -> Option<Reply> {
        let (reply, length) = parse(&self.buffer)?;
        self.buffer.drain(..length);
        Some(reply)
    }
}

/// The reply at the front of these bytes, and where it ends.
fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = String::from_utf8_lossy(&bytes[1..end]).into_owned();
    let number = || line.parse::<i64>().unwrap_or_else(|_| panic!("no number: {line}"));
    let mut at = end + 2;
    let reply = match bytes[0] {
        b'+' => Reply::text(&line),
        b'-' => Reply::Error(line),
        b':' => Reply::Int(number()),
        b'$' => match usize::try_from(number()) {
            Err(_) => Reply::Nil,
            Ok(length) => {
                let text = bytes.get(at..at + length)?;
                bytes.get(at + length..at + length + 2)?;
                at += length + 2;
                Reply::text(text)
            }
        },
        b'*' => match usize::try_from(number()) {
            Err(_) => Reply::Nil,
            Ok(count) => {
                let mut items = Vec::new();
                for _ in 0..count {
                    let (item, length) = parse(&bytes[at..])?;
                    items.push(item);
                    at += length;
                }
                Reply::List(items)
            }
        },
        other => panic!("a reply of an unknown kind: {other}"),
    };
    Some((reply, at))
}
