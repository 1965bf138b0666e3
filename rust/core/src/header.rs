//! Field names of the wire form: `_payload` is the body, `h:<name>` is one header each.

/// The field that holds the body.
pub const PAYLOAD: &[u8] = b"_payload";
/// The prefix of a header's field name.
pub const PREFIX: &[u8] = b"h:";
/// The partition key header, as a field.
pub const KEY: &[u8] = b"h:redis-partition-key";
/// How often a copy made by `retry()` was retried before, as a field.
pub const RETRY_COUNT: &[u8] = b"h:x-ruststream-retry-count";
/// The group whose retry made the copy, as a field: our other groups ack it unseen.
pub const RETRY_GROUP: &[u8] = b"h:x-ruststream-retry-group";
/// What the publisher calls its message, as a field.
pub const MESSAGE_ID: &[u8] = b"h:message-id";
/// What a message answers or belongs to, as a field.
pub const CORRELATION_ID: &[u8] = b"h:correlation-id";
/// How often handlers of the entries that led to this copy were started, as a field; only where attempts are capped.
pub const ATTEMPTS: &[u8] = b"h:x-ruststream-attempts";
/// Headers measured on read. They are never trusted from the wire and never copied.
pub const MEASURED: [&[u8]; 2] = [b"h:redis-delivery-count", b"h:redis-idle-ms"];

/// The prefix of a dead letter's own headers, as fields.
pub const LETTER: &[u8] = b"h:x-dead-letter-";
/// The id that an entry had before it was copied or replayed, as a field.
pub const ORIGINAL_ID: &[u8] = b"h:x-original-entry-id";

/// What the reader needs to know of an entry beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The body.
    Payload,
    /// The partition key.
    Key,
    /// The retry count of a copy.
    RetryCount,
    /// The group a copy is for.
    RetryGroup,
    /// The attempts before a copy.
    Attempts,
}

/// Recognise a field name. Header names are compared without regard to case, as all headers are.
#[inline]
pub fn known(name: &[u8]) -> Option<Known> {
    match (name.len(), name.first()) {
        (8, Some(b'_')) if name == PAYLOAD => Some(Known::Payload),
        (21, Some(b'h')) if name == KEY || name.eq_ignore_ascii_case(KEY) => Some(Known::Key),
        (23, Some(b'h')) if name.eq_ignore_ascii_case(ATTEMPTS) => Some(Known::Attempts),
        (26, Some(b'h')) if name.eq_ignore_ascii_case(RETRY_COUNT) => Some(Known::RetryCount),
        (26, Some(b'h')) if name.eq_ignore_ascii_case(RETRY_GROUP) => Some(Known::RetryGroup),
        _ => None,
    }
}

/// Whether a copy must leave this field out: it is measured on each read, or written anew by the retry.
pub fn is_rewritten(name: &[u8]) -> bool {
    MEASURED.iter().any(|measured| name.eq_ignore_ascii_case(measured))
        || matches!(known(name), Some(Known::RetryCount | Known::RetryGroup | Known::Attempts))
}

/// Whether a field is one of a dead letter's own headers.
pub fn is_of_letter(name: &[u8]) -> bool {
    name.get(..LETTER.len()).is_some_and(|start| start.eq_ignore_ascii_case(LETTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_own_names_in_any_case() {
        assert_eq!(known(b"_payload"), Some(Known::Payload));
        assert_eq!(known(b"h:Redis-Partition-Key"), Some(Known::Key));
        assert_eq!(known(RETRY_COUNT), Some(Known::RetryCount));
        assert_eq!(known(RETRY_GROUP), Some(Known::RetryGroup));
        assert_eq!(known(b"h:X-RustStream-Attempts"), Some(Known::Attempts));
        for other in [&b""[..], b"_Payload", b"h:", b"redis-partition-key", b"\xff\xfe"] {
            assert_eq!(known(other), None);
        }
    }

    #[test]
    fn a_copy_leaves_out_what_is_measured_or_rewritten() {
        let rewritten = [b"h:redis-idle-ms", RETRY_COUNT, RETRY_GROUP, ATTEMPTS];
        assert!(rewritten.into_iter().all(is_rewritten));
        assert!(!is_rewritten(PAYLOAD) && !is_rewritten(KEY));
    }

    #[test]
    fn the_headers_of_a_dead_letter_are_known_by_their_beginning() {
        assert!(is_of_letter(b"h:x-dead-letter-reason") && is_of_letter(b"h:X-Dead-Letter-Time-Ms"));
        for other in [&b""[..], b"h:x-dead-lette", b"x-dead-letter-reason", ORIGINAL_ID] {
            assert!(!is_of_letter(other));
        }
    }
}
