//! The marks of starts on their way to the server and back.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::attempts::Attempts;
use super::gate::Gate;
use super::{StreamSource, settlement};
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::Result;
use crate::event::Level;
use crate::order::Verdict;
use crate::store::StartMark;
use crate::subscription::Subscription;
use crate::token::Token;

/// Marks looked at in one step of pruning, the pauses before the first step, after a step, and after the last one.
const STEP: usize = 200;
const FIRST: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(60);

/// The marks of these entries.
pub(super) async fn read(source: &StreamSource, gate: &Gate, tokens: &[Token]) -> Result<Vec<Option<String>>> {
    let ids: Vec<_> = tokens.iter().map(Token::id).collect();
    source.store.start_marks(&gate.cap.key, &ids).await
}

/// Write marks of entries that are held here. Returns those that someone else has by now.
pub(super) async fn write(
    source: &StreamSource,
    subscription: &Subscription,
    gate: &Gate,
    marks: &[(Token, Attempts)],
) -> Result<Vec<Token>> {
    // Nearly always there is one owner: others come of entries that another subscription of this process claimed.
    let mut owners: Vec<(Arc<Origin>, Vec<StartMark>)> = Vec::new();
    for (token, attempts) in marks {
        let (owner, count) = settlement::standing(source, subscription, token);
        let count = source.settings.fixed_consumer.then_some(count);
        let mark = StartMark { id: token.id(), count, text: attempts.text() };
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, marks)) => marks.push(mark),
            None => owners.push((owner, vec![mark])),
        }
    }
    let mut taken = HashSet::new();
    for (owner, marks) in owners {
        for chunk in marks.chunks(settlement::CHUNK) {
            let verdicts = source.store.mark_starts(&owner, &gate.cap.key, chunk).await?;
            let lost = chunk.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Taken);
            taken.extend(lost.map(|(mark, _)| mark.id));
        }
    }
    Ok(marks.iter().map(|(token, _)| token).filter(|token| taken.contains(&token.id())).cloned().collect())
}

/// Note that the handlers of these deliveries ended, and that their entries stay pending.
pub(super) async fn note_ends(
    source: &StreamSource,
    subscription: &Subscription,
    gate: &Gate,
    ended: &[(Token, Attempts)],
) -> Result<()> {
    match write(source, subscription, gate, ended).await {
        // Whoever has an entry by now counts its attempts.
        Ok(_) => {}
        Err(error) if error.is_lost() => return Err(error),
        Err(error) => {
            let text = format!("the server refused to count {} attempts: {error}", ended.len());
            subscription.log(Level::Error, &text);
        }
    }
    gate.noted(ended.iter().map(|(token, _)| token));
    Ok(())
}

/// Give entries that were never started the marks back that they had before.
pub(super) async fn restore(source: &StreamSource, subscription: &Subscription, gate: &Gate, tokens: &[Token]) {
    let marks = gate.before(tokens);
    if marks.is_empty() {
        return;
    }
    let _writing = gate.writing.lock().await;
    if let Err(error) = write(source, subscription, gate, &marks).await {
        let text = format!("{} entries that are handed back count as started: {error}", marks.len());
        subscription.log(Level::Warning, &text);
    }
}

/// Take away the marks of entries that were settled. Where that fails they are found later.
pub(super) async fn remove(source: &StreamSource, subscription: &Subscription, gate: &Gate, ids: &[EntryId]) {
    for chunk in ids.chunks(settlement::CHUNK) {
        let removed = source.store.unmark_starts(&subscription.origin, &gate.cap.key, chunk).await;
        if let Err(error) = removed {
            subscription.log(Level::Debug, &format!("marks of settled entries stay for now: {error}"));
        }
    }
}

/// Find marks of entries that are not pending any more, in small steps: what a crash between an ack and the removal
/// of its mark leaves, or another consumer that settled an entry it knew no mark of.
pub(super) async fn prune(source: &StreamSource, subscription: &Arc<Subscription>, gate: &Gate) {
    let (mut cursor, mut pause) = (0, FIRST);
    loop {
        tokio::select! {
            biased;
            () = subscription.closed.cancelled() => return,
            () = subscription.clock.doze(pause) => {}
        }
        match source.store.marked_starts(&gate.cap.key, cursor, STEP).await {
            Ok((ids, next)) => {
                remove(source, subscription, gate, &ids).await;
                (cursor, pause) = (next, if next == 0 { REST } else { PAUSE });
            }
            Err(error) => {
                subscription.log(Level::Debug, &format!("marks of starts could not be looked through: {error}"));
                (cursor, pause) = (0, REST);
            }
        }
    }
}
