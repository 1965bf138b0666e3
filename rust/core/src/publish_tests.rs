//! Publishing to a server that numbers what is added, refuses it, hangs up, or is silent.

use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;
use crate::event::Events;
use crate::redis::{Address, RedisStore};

type Answer = (u64, Vec<Result<EntryId>>, bool);

#[derive(Debug)]
struct Answers(UnboundedSender<Answer>);

impl Events for Answers {
    fn post(&self, event: Event) {
        if let Event::Published { ticket, results, many } = event {
            let _ = self.0.send((ticket, results, many));
        }
    }
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }
}

/// The command that the bytes begin with, and its length; none while it is not whole.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let value = ::redis::parse_redis_value(bytes).ok()?;
    let words: Vec<String> = ::redis::from_redis_value(value).ok()?;
    let length = ::redis::Cmd::new().arg(&words).get_packed_command().len();
    Some((words, length))
}

/// Number what is added; refuse what goes to stream `full`; hang up on what goes to stream `cut`; be silent on `slow`.
async fn serve(mut socket: TcpStream, added: Arc<AtomicUsize>) {
    let mut bytes = Vec::new();
    while socket.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        while let Some((command, length)) = command(&bytes) {
            bytes.drain(..length);
            let reply = match (command[0].as_str(), command.get(1).map(String::as_str)) {
                ("XADD", Some("cut")) => return,
                ("XADD", Some("slow")) => String::new(),
                ("XADD", Some("full")) => "-OOM command not allowed\r\n".into(),
                ("XADD", _) => {
                    let id = format!("{}-0", added.fetch_add(1, Ordering::AcqRel) + 1);
                    format!("${}\r\n{id}\r\n", id.len())
                }
                _ => "+OK\r\n".into(),
            };
            if socket.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

fn publisher(address: &std::net::SocketAddr) -> (Arc<Publisher>, UnboundedReceiver<Answer>) {
    let Ok(address) = Address::parse(&format!("redis://{address}"), None, None) else { panic!("an address") };
    let (answers, answered) = unbounded_channel();
    (Arc::new(Publisher::new(Arc::new(RedisStore::new(address)), Arc::new(Answers(answers)), Arc::default())), answered)
}

/// A publisher that runs, over a server of its own.
async fn running() -> (Arc<Publisher>, UnboundedReceiver<Answer>, CancellationToken) {
    let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else { panic!("no port") };
    let Ok(address) = listener.local_addr() else { panic!("no address") };
    tokio::spawn(async move {
        let added = Arc::new(AtomicUsize::new(0));
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket, Arc::clone(&added)));
        }
    });
    let ((publisher, answered), closed) = (publisher(&address), CancellationToken::new());
    tokio::spawn(Arc::clone(&publisher).run(closed.clone()));
    (publisher, answered, closed)
}

fn entries(streams: &[&str]) -> Vec<Append> {
    let fields = vec![(Bytes::from_static(b"_payload"), Bytes::from_static(b"body"))];
    streams.iter().map(|stream| Append { stream: (*stream).into(), fields: fields.clone(), trim: None }).collect()
}

async fn publish(
    publisher: &Publisher,
    answered: &mut UnboundedReceiver<Answer>,
    streams: &[&str],
) -> Vec<Result<EntryId>> {
    assert!(publisher.submit(entries(streams), Kind::Many).is_ok());
    answered.recv().await.map(|(_, results, _)| results).unwrap_or_default()
}

#[tokio::test]
async fn every_ticket_gets_its_own_answers_in_order() {
    let (publisher, mut answered, _closed) = running().await;
    let mut next = 1;
    for (count, many) in [(1, false), (3, true), (0, true), (2500, true), (1, false)] {
        let ticket = publisher.submit(entries(&vec!["s"; count]), if many { Kind::Many } else { Kind::One });
        let ids: Vec<_> = (next..).take(count).map(|ms| Ok(EntryId::new(ms, 0))).collect();
        next += count as u64;
        assert_eq!(answered.recv().await.map(|(ticket, ids, many)| (Ok(ticket), ids, many)), Some((ticket, ids, many)));
    }
}

#[tokio::test]
async fn a_refused_entry_does_no_harm_to_its_neighbours() {
    let (publisher, mut answered, _closed) = running().await;
    let results = publish(&publisher, &mut answered, &["s", "full", "s"]).await;
    let [Ok(first), Err(Error::Publish { text, code }), Ok(second)] = &results[..] else { panic!("{results:?}") };
    assert!(text.contains("OOM command not allowed") && code == "OOM", "{text}");
    assert_eq!((first.ms, second.ms), (1, 2));
}

#[tokio::test]
async fn a_publish_whose_reply_was_lost_is_uncertain_and_the_next_one_goes_on() {
    let (publisher, mut answered, _closed) = running().await;
    let results = publish(&publisher, &mut answered, &["s", "cut"]).await;
    assert!(matches!(results[..], [_, Err(Error::PublishUncertain(_))]), "{results:?}");
    assert!(publish(&publisher, &mut answered, &["s"]).await[0].is_ok());
}

#[tokio::test]
async fn without_a_connection_nothing_is_uncertain() {
    let (publisher, mut answered) = publisher(&([127, 0, 0, 1], 1).into());
    tokio::spawn(Arc::clone(&publisher).run(CancellationToken::new()));
    let results = publish(&publisher, &mut answered, &["s"]).await;
    assert!(matches!(results[..], [Err(Error::Connect(_))]), "{results:?}");
}

#[tokio::test]
async fn jobs_share_a_pipeline_up_to_its_size_and_a_larger_one_goes_alone() {
    let (publisher, _answered) = publisher(&([127, 0, 0, 1], 1).into());
    for count in [400, 600, 1, 2000, 1] {
        assert!(publisher.submit(entries(&vec!["s"; count]), Kind::Many).is_ok());
    }
    let sizes: Vec<Vec<usize>> = std::iter::repeat_with(|| publisher.take())
        .take_while(|sending| !sending.tickets.is_empty())
        .map(|sending| sending.tickets.iter().map(|(_, entries, _)| *entries).collect())
        .collect();
    assert_eq!(sizes, [vec![400, 600], vec![1], vec![2000], vec![1]]);
}

#[tokio::test]
async fn a_finish_answers_all_that_is_queued_and_takes_nothing_on() {
    let (publisher, mut answered, _closed) = running().await;
    for _ in 0..5 {
        assert!(publisher.submit(entries(&["s"]), Kind::One).is_ok());
    }
    publisher.finish().await;
    assert_eq!(answered.len(), 5, "answered before the finish returned");
    assert_eq!(publisher.submit(entries(&["s"]), Kind::One), Err(Error::ShutDown("the broker")));
    assert!(answered.recv().await.is_some_and(|(_, results, _)| results == [Ok(EntryId::new(1, 0))]));
}

#[tokio::test]
async fn what_is_queued_at_the_close_is_answered_too() {
    let (publisher, mut answered, closed) = running().await;
    assert!(publisher.submit(entries(&["slow"; PIPELINE]), Kind::Many).is_ok());
    assert!(publisher.submit(entries(&["s", "s"]), Kind::Many).is_ok());
    tokio::task::yield_now().await;
    closed.cancel();
    assert!(
        answered.recv().await.is_some_and(|(_, sent, _)| sent.len() == PIPELINE && sent.iter().all(Result::is_err))
    );
    let queued = answered.recv().await.map(|(_, results, _)| results);
    assert_eq!(queued, Some(vec![Err(Error::ShutDown("the broker")); 2]));
}
