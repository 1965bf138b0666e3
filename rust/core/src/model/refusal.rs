//! What the server says when it refuses, word for word.

use crate::error::Error;

/// An error line.
pub(super) fn server(line: &str) -> Error {
    Error::from_reply(line)
}

pub(super) fn bad_id() -> Error {
    server("ERR Invalid stream ID specified as stream command argument")
}

pub(super) fn not_an_integer() -> Error {
    server("ERR value is not an integer or out of range")
}

pub(super) fn syntax() -> Error {
    server("ERR syntax error")
}

pub(super) fn wrong_type() -> Error {
    server("WRONGTYPE Operation against a key holding the wrong kind of value")
}

pub(super) fn no_key() -> Error {
    server("ERR no such key")
}

/// What commands on a group's pending entries say.
pub(super) fn no_group(key: &str, group: &str) -> Error {
    server(&format!("NOGROUP No such key '{key}' or consumer group '{group}'"))
}

pub(super) fn no_group_to_read(key: &str, group: &str) -> Error {
    server(&format!("NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"))
}

/// What `XGROUP` and `XINFO` say.
pub(super) fn no_such_group(key: &str, group: &str) -> Error {
    server(&format!("NOGROUP No such consumer group '{group}' for key name '{key}'"))
}

pub(super) fn no_key_for_a_group() -> Error {
    server(
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM \
         option to create an empty stream automatically.",
    )
}

pub(super) fn group_exists() -> Error {
    server("BUSYGROUP Consumer Group name already exists")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_group_is_told_from_other_refusals() {
        assert!(matches!(no_group("s", "g"), Error::NoGroup(text) if text.ends_with("consumer group 'g'")));
        assert!(matches!(no_such_group("s", "g"), Error::NoGroup(text) if text.ends_with("key name 's'")));
        for other in [wrong_type(), bad_id(), no_key(), group_exists(), no_key_for_a_group()] {
            assert!(matches!(other, Error::Server(_)), "{other}");
        }
    }
}
