//! What another subscription of this process has claimed while it was held here: that one hands it to nobody, and whoever
//! holds it settles and renews it by that one's name.

use std::time::Duration;

use super::{StreamSource, settlement};
use crate::entry::EntryId;
use crate::error::Result;
use crate::order::{Order, SideKeys, Verdict};
use crate::subscription::Subscription;

/// How long reads that may block are waited for, to see what they have claimed.
const LONGEST: Duration = Duration::from_secs(1);

/// Have orders carried out. Those whose entries another subscription of this process has claimed meanwhile are sent once
/// more, by that one's name.
pub(super) async fn send(
    source: &StreamSource,
    subscription: &Subscription,
    plain: &[EntryId],
    orders: &mut [Order],
    side: SideKeys<'_>,
) -> Result<Vec<Verdict>> {
    let mut verdicts = source.store.settle(&subscription.origin, plain, orders, side).await?;
    let taken: Vec<_> = (0..orders.len()).filter(|at| verdicts[*at] == Verdict::Taken).collect();
    if taken.is_empty() {
        return Ok(verdicts);
    }
    let ids: Vec<_> = taken.iter().map(|at| orders[*at].token.id()).collect();
    await_claims(source, subscription, &ids).await;
    let (mut again, mut places) = (Vec::new(), Vec::new());
    for at in taken {
        let order = &mut orders[at];
        let (owner, count) = settlement::standing(source, subscription, &order.token);
        if *owner != *order.owner {
            (order.owner, order.count) = (owner, count);
            again.push(order.clone());
            places.push(at);
        }
    }
    let answers = source.store.settle(&subscription.origin, &[], &again, side).await?;
    for (at, answer) in places.into_iter().zip(answers) {
        verdicts[at] = answer;
    }
    Ok(verdicts)
}

/// Wait until it is known which of these entries, that are another consumer's by now, a subscription of this process has
/// claimed: what it read may still be on its way.
pub(super) async fn await_claims(source: &StreamSource, subscription: &Subscription, ids: &[EntryId]) {
    let group = &source.group;
    // A stopped clock does not pass while a read is taken in.
    if !group.is_shared() || subscription.clock.is_stopped() {
        return;
    }
    let known = async {
        loop {
            let taken_in = group.taken_in.notified();
            tokio::pin!(taken_in);
            taken_in.as_mut().enable();
            if !group.overtaken.is_open() || ids.iter().all(|id| group.adopted(*id).is_some()) {
                return;
            }
            taken_in.await;
        }
    };
    let longest = Duration::from_millis(settlement::safe_ms(source)).min(LONGEST);
    tokio::select! {
        biased;
        () = known => {}
        () = subscription.clock.sleep(longest) => {}
    }
}
