//! Dead letters: what is written in the place of an entry that is given up.

use std::sync::Arc;

use crate::batch::Origin;
use crate::entry::EntryId;
use crate::header;
use crate::token::Token;

/// Bytes of an error's text that a letter keeps.
const MAX_ERROR: usize = 512;

/// Why an entry is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It was tried as often as it may be.
    MaxAttempts,
    /// Its handler, or what is done about its handler's error, said so.
    Rejected,
    /// Its payload or a header asked for by type does not decode.
    DecodeError,
    /// Its body was deleted or trimmed while it was pending.
    Deleted,
}

impl Reason {
    /// As a letter's header says it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max-attempts",
            Self::Rejected => "rejected",
            Self::DecodeError => "decode-error",
            Self::Deleted => "deleted",
        }
    }
}

/// Where an entry goes that is given up, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    to: Arc<str>,
    reason: Reason,
    error: Option<Box<[u8]>>,
}

impl Letter {
    /// A letter to this stream. Of the error's text the first 512 bytes are kept.
    pub fn new(to: &Arc<str>, reason: Reason, error: Option<&[u8]>) -> Arc<Self> {
        Arc::new(Self { to: Arc::clone(to), reason, error: error.map(|error| cut(error).into()) })
    }

    /// The stream it is added to.
    pub fn to(&self) -> &str {
        &self.to
    }

    /// Its fields, but for the time, which is the server's to say: those of the entry as they are, and the headers of
    /// a dead letter. `owner` gives the entry up at its delivery `count`, as the server counts.
    pub fn fields(&self, token: &Token, owner: &Origin, count: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut fields: Vec<_> = token
            .fields()
            .filter(|(name, _)| !header::is_rewritten(name) && !header::is_of_letter(name))
            .map(|(name, value)| (name.to_vec(), value.to_vec()))
            .collect();
        let deliveries = count.saturating_add(token.slot().retries);
        fields.extend(headers(self.reason, owner, token.id(), deliveries, self.error.as_deref()));
        fields
    }
}

/// The headers of a dead letter, but for the time, as fields.
pub(crate) fn headers(
    reason: Reason,
    owner: &Origin,
    id: EntryId,
    deliveries: u32,
    error: Option<&[u8]>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (id, deliveries) = (id.to_string(), deliveries.to_string());
    let marks = [
        ("reason", reason.as_str().as_bytes()),
        ("stream", owner.stream.as_bytes()),
        ("group", owner.group.as_bytes()),
        ("consumer", owner.consumer.as_bytes()),
        ("entry-id", id.as_bytes()),
        ("deliveries", deliveries.as_bytes()),
    ];
    let error = error.map(|error| ("error", error));
    marks.into_iter().chain(error).map(|(name, value)| (named(name), value.to_vec())).collect()
}

/// The fields with which a letter goes back: without its own headers, with the id that the entry had at first, and for
/// `group` alone where one is named. `id` is that of the letter.
pub fn replayed(id: EntryId, fields: &[(Vec<u8>, Vec<u8>)], group: Option<&str>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut kept: Vec<_> =
        fields.iter().filter(|(name, _)| !header::is_of_letter(name) && !header::is_rewritten(name)).cloned().collect();
    if !kept.iter().any(|(name, _)| name.eq_ignore_ascii_case(header::ORIGINAL_ID)) {
        let entry_id = named("entry-id");
        let said = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(&entry_id)).map(|(_, said)| said.clone());
        kept.push((header::ORIGINAL_ID.to_vec(), said.unwrap_or_else(|| id.to_string().into_bytes())));
    }
    kept.extend(group.map(|group| (header::RETRY_GROUP.to_vec(), group.as_bytes().to_vec())));
    kept
}

/// The field name of one of a letter's headers.
pub(crate) fn named(name: &str) -> Vec<u8> {
    [header::LETTER, name.as_bytes()].concat()
}

/// The first bytes of a text, no character of which is cut in two.
fn cut(text: &[u8]) -> &[u8] {
    if text.len() <= MAX_ERROR {
        return text;
    }
    let continues = |at: &usize| text[*at] & 0xc0 == 0x80;
    let whole = (MAX_ERROR - 3..=MAX_ERROR).rev().find(|at| !continues(at));
    &text[..whole.unwrap_or(MAX_ERROR)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, RawBatch};
    use crate::entry::{EntryId, Slot};

    fn origin() -> Arc<Origin> {
        let [subscription, stream, group, consumer] = ["s", "payments", "ledger", "c"].map(String::from);
        Arc::new(Origin { subscription, stream, group, consumer })
    }

    fn letter_of(fields: &[(&[u8], &[u8])], error: Option<&[u8]>) -> Vec<(String, String)> {
        let (mut raw, mut buffer) = (RawBatch::default(), Vec::new());
        raw.push(&mut buffer, Slot::new(EntryId::new(7, 1)), fields, false);
        raw.bytes = buffer.into();
        let token = Token::new(Batch::new(raw, origin(), 0), 0);
        let letter = Letter::new(&"payments.dlq".into(), Reason::Rejected, error);
        let text = |bytes: Vec<u8>| bytes.escape_ascii().to_string();
        let fields = letter.fields(&token, &origin(), 2);
        fields.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn a_letter_is_the_entry_and_says_where_it_was_given_up() {
        let fields: [(&[u8], &[u8]); 4] =
            [(b"_payload", b"\xff\x00"), (b"h:trace", b"t"), (b"\xfe", b""), (b"h:trace", b"again")];
        let found = letter_of(&fields, Some(b"ValueError: no"));
        let of = |name: &str| found.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect();
        let first: Vec<_> = found[..4].iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(first, [("_payload", r"\xff\x00"), ("h:trace", "t"), (r"\xfe", ""), ("h:trace", "again")]);
        let said: Vec<Vec<&str>> = ["reason", "stream", "group", "consumer", "entry-id", "deliveries", "error"]
            .map(|name| of(&format!("h:x-dead-letter-{name}")))
            .into();
        assert_eq!(said.concat(), ["rejected", "payments", "ledger", "c", "7-1", "2", "ValueError: no"]);
    }

    #[test]
    fn what_is_measured_or_of_an_earlier_retry_or_letter_is_not_copied() {
        let fields: [(&[u8], &[u8]); 6] = [
            (b"_payload", b"x"),
            (b"h:redis-idle-ms", b"5"),
            (header::RETRY_COUNT, b"3"),
            (header::RETRY_GROUP, b"ledger"),
            (b"h:X-Dead-Letter-Reason", b"old"),
            (b"h:x-dead-letter-error", b"old"),
        ];
        let found = letter_of(&fields, None);
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        let marks = ["reason", "stream", "group", "consumer", "entry-id", "deliveries"];
        let marks: Vec<_> = marks.iter().map(|name| format!("h:x-dead-letter-{name}")).collect();
        assert_eq!(names, [vec!["_payload"], marks.iter().map(String::as_str).collect()].concat());
        assert_eq!(found.last().map(|(_, deliveries)| deliveries.as_str()), Some("5"), "those of the original count");
    }

    #[test]
    fn a_replayed_letter_is_the_entry_with_the_id_it_had_at_first() {
        let back = |fields: &[(&[u8], &[u8])], group| {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            let fields = replayed(EntryId::new(9, 9), &fields, group);
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            fields.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect::<Vec<_>>().join(" ")
        };
        let entry_id: (&[u8], &[u8]) = (b"h:x-dead-letter-entry-id", b"7-1");
        let payload: (&[u8], &[u8]) = (b"_payload", b"x");
        assert_eq!(back(&[payload, entry_id], None), "_payload=x h:x-original-entry-id=7-1");
        let before = (header::ORIGINAL_ID, &b"5-0"[..]);
        assert_eq!(back(&[before, entry_id], Some("g")), "h:x-original-entry-id=5-0 h:x-ruststream-retry-group=g");
        assert_eq!(back(&[payload], None), "_payload=x h:x-original-entry-id=9-9", "no letter at all");
        assert_eq!(back(&[(b"h:redis-idle-ms", b"1"), entry_id], None), "h:x-original-entry-id=7-1");
    }

    #[test]
    fn an_error_is_cut_between_two_characters() {
        assert_eq!(cut(&[b'a'; 512]).len(), 512);
        assert_eq!(cut(&[b'a'; 513]).len(), 512);
        for (before, kept) in [(511, 511), (510, 510), (509, 512)] {
            let text = format!("{}\u{20ac}{}", "a".repeat(before), "b".repeat(9));
            assert_eq!(cut(text.as_bytes()).len(), kept, "{before} bytes before three of one character");
        }
        assert_eq!(cut(&[0x80; 600]).len(), 512, "no text at all");
    }
}
