//! Marks of messages that are being handled or were: *working*, leased to one owner, then *done* for a time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::header;
use crate::store::StreamStore;
use crate::token::Token;

/// Names one message's mark.
pub type MarkKey = Arc<str>;

/// Keys per script: so many take the server about a millisecond.
const CHUNK: usize = 500;

/// What is done with a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkStep {
    /// Take it for so long, if it is free or the owner's already.
    Begin(Duration),
    /// Begin the lease of the owner's mark anew; one that has ended is taken again.
    Renew(Duration),
    /// From working to done, for so long. A free one too: the lease ended, but the work was done.
    Finish(Duration),
    /// Take the owner's working mark away: the work was not done.
    Release,
}

/// How a mark stands after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkState {
    /// The step was carried out.
    Ours,
    /// Another owner works on the message; its mark was not touched.
    Working,
    /// The message was handled.
    Done,
}

/// Where marks are kept.
#[async_trait]
pub trait MarkStore: Send + Sync + std::fmt::Debug + 'static {
    /// Do the same with several marks; each by itself is one atomic step. One result per key, in order. An outer error:
    /// nothing is known of any.
    async fn step(&self, step: MarkStep, owner: &str, keys: &[MarkKey]) -> Result<Vec<Result<MarkState>>>;
}

/// Keys that only the user's code can compute.
#[async_trait]
pub trait MarkKeys: Send + Sync + std::fmt::Debug + 'static {
    /// The key of each entry. None: it has none, because that failed; whoever starts it says so.
    async fn keys(&self, tokens: &[Token]) -> Result<Vec<Option<String>>>;
}

/// Marks in the stream's own server.
#[derive(Debug)]
pub struct ServerMarks(pub Arc<dyn StreamStore>);

#[async_trait]
impl MarkStore for ServerMarks {
    async fn step(&self, step: MarkStep, owner: &str, keys: &[MarkKey]) -> Result<Vec<Result<MarkState>>> {
        let mut states = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(CHUNK) {
            match self.0.mark(step, owner, chunk).await {
                Ok(some) => states.extend(some),
                Err(error) if error.is_lost() || matches!(error, Error::ShutDown(_)) => return Err(error),
                Err(error) => states.extend(vec![Err(error); chunk.len()]),
            }
        }
        Ok(states)
    }
}

/// What a message is known by: its `message-id`, else the id of the entry that it is a copy of, else its own.
pub fn natural_key(token: &Token) -> String {
    let mut original = None;
    let mut message_id = None;
    for (name, value) in token.fields().filter(|(_, value)| !value.is_empty()) {
        // Where a header is repeated, the last one counts.
        if name.eq_ignore_ascii_case(header::MESSAGE_ID) {
            message_id = Some(value);
        } else if name.eq_ignore_ascii_case(header::ORIGINAL_ID) {
            original = Some(value);
        }
    }
    match (message_id, original) {
        (Some(id), _) => format!("message:{}", readable(id)),
        (None, Some(id)) => format!("entry:{}", readable(id)),
        (None, None) => format!("entry:{}", token.id()),
    }
}

/// Bytes as text; what is no UTF-8 is written as Python would escape it.
fn readable(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Origin, RawBatch};
    use crate::entry::{EntryId, Slot};

    fn key(fields: &[(&[u8], &[u8])]) -> String {
        let (mut raw, mut buffer) = (RawBatch::default(), Vec::new());
        raw.push(&mut buffer, Slot::new(EntryId::new(7, 1)), fields, false);
        raw.bytes = buffer.into();
        let [subscription, stream, group, consumer] = ["s", "payments", "ledger", "c"].map(String::from);
        let origin = Arc::new(Origin { subscription, stream, group, consumer });
        natural_key(&Token::new(Batch::new(raw, origin, 0), 0))
    }

    #[test]
    fn a_message_is_known_by_its_id_then_by_that_of_the_first_entry() {
        assert_eq!(key(&[(b"_payload", b"x")]), "entry:7-1");
        assert_eq!(key(&[(header::ORIGINAL_ID, b"5-0")]), "entry:5-0");
        assert_eq!(key(&[(b"h:Message-ID", b"a"), (header::ORIGINAL_ID, b"5-0")]), "message:a");
        assert_eq!(key(&[(header::MESSAGE_ID, b"a"), (header::MESSAGE_ID, b"b")]), "message:b");
    }

    #[test]
    fn an_empty_id_is_none_and_a_strange_one_is_readable() {
        assert_eq!(key(&[(header::MESSAGE_ID, b""), (header::ORIGINAL_ID, b"")]), "entry:7-1");
        assert_eq!(key(&[(header::MESSAGE_ID, b"a\xff\xc3\xa9")]), "message:a\\xff\u{e9}");
        assert_eq!(key(&[(header::MESSAGE_ID, b"7-1")]), "message:7-1", "not to be taken for an entry");
    }
}
