//! The walker against what no server sends: refused where it stands, and never read past.

use super::*;
use crate::resp::MAX_LINE;

#[test]
fn a_length_that_lies_allocates_by_what_has_come_and_one_that_does_not_says_what_is_missing() {
    for reply in [
        "*1\r\n*2\r\n$1\r\ns\r\n*9223372036854775807\r\n",
        "%1\r\n$1\r\ns\r\n*2000000000\r\n*2\r\n$3\r\n1-0\r\n*4294967294\r\n",
        "%1\r\n$4294967000\r\ns",
        ">9223372036854775807\r\n:1\r\n",
        ">1\r\n%9223372036854775807\r\n",
    ] {
        let mut slots = Vec::new();
        let progress = Walker::new(true).walk(reply.as_bytes(), &mut slots);
        assert!(
            matches!(progress, Ok(Progress::More(_))) && slots.capacity() <= MAX_RESERVE,
            "{reply:?}: {progress:?}"
        );
    }
    let cut = b"%1\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$8\r\n_payload\r\n$1000000\r\nbody";
    assert_eq!(Walker::new(true).walk(cut, &mut Vec::new()), Ok(Progress::More(1_000_002 - 4)));
}

#[test]
fn what_no_server_sends_is_refused_where_it_stands() {
    let stream = "%1\r\n$1\r\ns\r\n";
    let entry = format!("{stream}*1\r\n*4\r\n$3\r\n1-0\r\n");
    let no_entry = "an entry of neither two nor four elements";
    let no_pairs = "fields that are no array of pairs";
    let other = "something else than the entries of one stream";
    let no_number = "a length or number that is none";
    for (before, bad, what) in [
        ("", &["+OK\r\n", "HTTP/1.1 400 Bad Request\r\n", "\0\0", "*\r\n", "*--1\r\n"][..], no_number),
        ("", &[":1\r\n", "*2\r\n", "%2\r\n", "*-2\r\n", "$1\r\n"], other),
        ("", &["*1\r*"], "a line without its end"),
        ("", &["_1\r\n", "_\r\r"], "a nil with a value"),
        ("", &["!-1\r\n", "%1\r\n$-1\r\n"], "a string of negative length"),
        ("", &["*9999999999999999999\r\n", ":99999999999999999999"], "a number past 64 bits"),
        ("", &[">1\r\n^1\r\n", ">1\r\n!-1\r\n"], "an unknown type"),
        ("", &["*1\r\n*3\r\n", "*1\r\n%2\r\n"], "a stream that is no pair"),
        ("", &["*1\r\n*2\r\n:1\r\n", "%1\r\n_\r\n"], "something else than a string"),
        (stream, &["$1\r\n", "*-2\r\n", "%0\r\n"], "entries that are no array"),
        (stream, &["*1\r\n*3\r\n", "*1\r\n*-1\r\n", "*1\r\n$2\r\nab\r\n", "*1\r\n%2\r\n"], no_entry),
        (stream, &["*1\r\n*2\r\n:1\r\n", "*1\r\n*2\r\n_\r\n"], "something else than a string"),
        (stream, &["*1\r\n*2\r\n$1\r\nx\r\n"], "an entry id that is none"),
        (&entry, &["*1\r\n", "*-2\r\n", "%1\r\n", "*4294967296\r\n", ":0\r\n"], no_pairs),
        (&entry, &["*2\r\n*0\r\n", "*2\r\n$1\r\nk\r\n_\r\n"], "something else than a string"),
        (&entry, &["*2\r\n$1\r\nkk\r\n", "*2\r\n$1\r\nk\n\r", "*2\r\n$1\r\nk\r\r"], "a string without its end"),
        (&entry, &["*2\r\n$4294967295\r\n", "*2\r\n$9223372036854775807\r\n"], "a reply past 4 GiB"),
        (&entry, &["*0\r\n:0\r\n*0\r\n", "*0\r\n_\r\n"], "something else than a counter"),
        (
            &entry,
            &["*0\r\n:0\r\n$3\r\n1.5\r\n", "*0\r\n$0\r\n\r\n", "*0\r\n$2\r\n\u{fe}\r\n"],
            "a counter that is no number",
        ),
        (&entry, &["*0\r\n:0\r\n:9223372036854775808\r\n"], "a number past 64 bits"),
    ] {
        for bad in bad {
            let reply = format!("{before}{bad}");
            let refused = walked(reply.as_bytes());
            let there = |error: &Malformed| error.what == what && (before.len()..=reply.len()).contains(&error.at);
            assert!(refused.as_ref().is_err_and(there), "{reply:?}: {refused:?}");
        }
    }
}

#[test]
fn a_line_or_push_frame_without_end_is_refused_before_it_fills_the_memory() {
    let endless = [
        (format!("-{}", "x".repeat(MAX_LINE)), "an endless line"),
        (format!(">1\r\n+{}", "x".repeat(MAX_LINE)), "an endless line"),
        (format!(">9223372036854775807\r\n{}", ":1\r\n".repeat(MAX_LINE / 4)), "an endless push frame"),
        (format!("*{}", "0".repeat(100)), "a number past 64 bits"),
        (format!(":-{}", "0".repeat(100)), "a number past 64 bits"),
    ];
    for (reply, what) in endless {
        let (mut walker, mut slots) = (Walker::new(true), Vec::new());
        let mut pieces = reply.as_bytes().chunks(1000).scan(0, |end, piece| {
            *end += piece.len();
            Some(walker.walk(&reply.as_bytes()[..*end], &mut slots))
        });
        let refused = pieces.find_map(Result::err);
        assert!(refused.as_ref().is_some_and(|error| error.what == what), "{what}: {refused:?}");
    }
}

#[test]
fn bytes_that_are_not_there_are_missed_and_not_read_past() {
    let (slot, reply) = entry(&[(b"a", b"b"), (b"c", b"d")]);
    for end in 0..reply.len() {
        let whole = pairs(&reply[..end], &slot).len();
        assert_eq!(whole, usize::from(end >= reply.len() - 14), "of {end} bytes");
    }
    let (mut walker, mut slots) = (Walker::new(true), Vec::new());
    assert!(matches!(walker.walk(&reply[..20], &mut slots), Ok(Progress::More(_))));
    assert!(matches!(walker.walk(&reply[..3], &mut slots), Ok(Progress::More(_))));
    assert_eq!(walker.walk(&reply, &mut slots), Ok(Progress::Done(reply.len())));
}
