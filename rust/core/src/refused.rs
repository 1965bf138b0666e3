//! What a server's refusal of an entry means to its publisher: its code, and what to change.

use crate::error::Error;

/// The error of a publisher whose entry for `stream` was refused. What is no refusal stays as it is.
pub(crate) fn refused(error: Error, stream: &str) -> Error {
    let line = match error {
        Error::Server(line) | Error::NoGroup(line) => line,
        // To a subscription it means that there is no way to the server; here it is about one key.
        Error::Connect(line) if line.starts_with("NOPERM") => line,
        other => return other,
    };
    let code: String = line.chars().take_while(char::is_ascii_uppercase).collect();
    let hint = match code.as_str() {
        "OOM" => "; its memory is full: raise maxmemory, or keep streams short (maxlen=, minid=), and publish it again",
        "READONLY" => "; it is a replica, which takes no writes: connect to its master",
        "WRONGTYPE" => "; the key holds something else than a stream: take another name, or remove what it holds",
        "NOPERM" => "; this user needs the permissions +xadd and ~<stream>",
        "MISCONF" => "; it cannot save to disk and takes no writes until it can: see its log",
        "LOADING" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "NOREPLICAS" => {
            "; this passes: publish it again a little later"
        }
        _ if line.contains("exhausted the last possible ID") => "; the stream's ids are used up: take a new stream",
        _ => "",
    };
    Error::Publish { text: format!("the server refused an entry for the stream {stream:?}: {line}{hint}"), code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_stream_the_code_and_what_to_change() {
        for (line, code, change) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", "OOM", "raise maxmemory"),
            ("READONLY You can't write against a read only replica.", "READONLY", "its master"),
            ("WRONGTYPE Operation against a key", "WRONGTYPE", "another name"),
            ("NOPERM User x has no permissions to run the 'xadd' command", "NOPERM", "+xadd"),
            ("LOADING Redis is loading the dataset in memory", "LOADING", "later"),
            ("ERR The stream has exhausted the last possible ID, unable to add more items", "ERR", "new stream"),
        ] {
            let Error::Publish { text, code: found } = refused(Error::from_reply(line), "s") else { panic!("{line}") };
            assert!(text.contains("\"s\"") && text.contains(line) && text.contains(change), "{text}");
            assert_eq!(found, code);
        }
    }

    #[test]
    fn what_is_no_refusal_stays_as_it_is() {
        for error in [Error::Lost("x".into()), Error::Connect("no way".into()), Error::ShutDown("it")] {
            assert_eq!(refused(error.clone(), "s"), error);
        }
    }
}
