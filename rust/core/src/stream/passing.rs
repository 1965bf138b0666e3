//! Letting entries through the gate: what is known of them is read, their starts are written, and those whose attempts
//! are used up are settled.

use std::sync::Arc;
use std::time::Duration;

use super::gate::{Gate, pass_over};
use super::line::Passed;
use super::{StreamSource, settlement, starts};
use crate::backoff::{Backoff, Quiet};
use crate::batch::Mark;
use crate::error::{Error, Result};
use crate::event::Level;
use crate::inbox::Arrival;
use crate::subscription::Subscription;
use crate::token::Token;

/// Let entries through until the subscription is closed.
pub(super) async fn run(source: &StreamSource, subscription: &Arc<Subscription>) {
    let Some(gate) = &source.gate else {
        return;
    };
    tokio::join!(pass(source, subscription, gate), starts::prune(source, subscription, gate));
}

async fn pass(source: &StreamSource, subscription: &Arc<Subscription>, gate: &Gate) {
    let mut backoff = source.settings.reconnect.clone();
    let quiet = Quiet::default();
    loop {
        gate.sweep();
        let wait = match turn(source, subscription, gate, &mut backoff, &quiet).await {
            Ok(wait) => {
                backoff.reset();
                wait
            }
            Err(error) => {
                subscription
                    .log_paced(&quiet, Level::Warning, || format!("reading attempts failed, trying again: {error}"));
                Some(backoff.wait())
            }
        };
        let rest = async {
            match wait {
                Some(wait) => subscription.clock.sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = gate.wake.notified() => {}
            () = rest => {}
        }
    }
}

/// Look at what has come, and let through what may pass now. Returns after how long to look again; none: when woken.
async fn turn(
    source: &StreamSource,
    subscription: &Arc<Subscription>,
    gate: &Gate,
    backoff: &mut Backoff,
    quiet: &Quiet,
) -> Result<Option<Duration>> {
    loop {
        let arrived = gate.arrived();
        if arrived.is_empty() {
            break;
        }
        let marks = match starts::read(source, gate, &arrived).await {
            Err(error) if error.is_lost() || matches!(error, Error::ShutDown(_)) => return Err(error),
            Err(error) => {
                say_refused(subscription, quiet, &error);
                Vec::new()
            }
            Ok(marks) => marks,
        };
        let exhausted = gate.sort(&arrived, &marks);
        give_up(subscription, gate, &exhausted);
    }
    loop {
        let (chosen, again) = gate.choose(subscription);
        if chosen.is_empty() {
            return Ok(again);
        }
        let tokens = begin(source, subscription, gate, chosen, backoff, quiet).await;
        if !tokens.is_empty() {
            gate.line.lock().pace(gate.cap.workers, tokens.len());
            subscription.hand_over(Arrival::Tokens { tokens, watched: true });
        }
    }
}

/// Mark them started, however often that has to be tried. Returns those that may start.
async fn begin(
    source: &StreamSource,
    subscription: &Arc<Subscription>,
    gate: &Gate,
    mut chosen: Vec<Passed>,
    backoff: &mut Backoff,
    quiet: &Quiet,
) -> Vec<Token> {
    loop {
        let marked = {
            let _writing = gate.writing.lock().await;
            // Given back meanwhile: it must not be marked after its old mark is there again.
            chosen.retain(|passed| passed.token.mark() == Mark::Queued);
            let marks = chosen.iter().map(|passed| (passed.token.clone(), passed.now));
            starts::write(source, subscription, gate, &marks.collect::<Vec<_>>()).await
        };
        let error = match marked {
            Ok(taken) => {
                gate.turn_away(subscription, &taken);
                let ours = chosen.into_iter().map(|passed| passed.token);
                return ours.filter(|token| !taken.iter().any(|other| other.id() == token.id())).collect();
            }
            Err(error) => error,
        };
        if !error.is_lost() {
            // A server that takes no marks (out of memory, a key of another type) still settles: work goes on uncounted.
            say_refused(subscription, quiet, &error);
            return chosen.into_iter().map(|passed| passed.token).collect();
        }
        subscription.log_paced(quiet, Level::Warning, || format!("marking starts failed, trying again: {error}"));
        if !subscription.pause(backoff.wait()).await {
            return Vec::new();
        }
    }
}

fn say_refused(subscription: &Subscription, quiet: &Quiet, error: &Error) {
    subscription.log_paced(quiet, Level::Error, || {
        format!("the server refused to count attempts, entries are handled uncounted: {error}")
    });
}

/// Settle what has used up its attempts; its handler is not called.
fn give_up(subscription: &Subscription, gate: &Gate, tokens: &[Token]) {
    let given_up: Vec<_> = tokens.iter().filter(|token| token.begin()).cloned().collect();
    if given_up.is_empty() {
        return;
    }
    subscription.stats.exhausted.add(given_up.len());
    let unsaid = gate.unsaid(&given_up);
    if !unsaid.is_empty() {
        let text = format!(
            "{} entries have used up their {} attempts and are given up, their handler is not called: {}",
            unsaid.len(),
            gate.cap.attempts,
            settlement::some_ids(&unsaid)
        );
        subscription.log(Level::Error, &text);
    }
    for token in &given_up {
        subscription.settle(token, gate.cap.exhausted.clone());
        pass_over(subscription, token);
    }
}
