//! Carrying orders out, all that came together in one step.

use std::sync::Arc;

use super::faults::Operation;
use super::store::ModelStore;
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::Result;
use crate::order::{Action, Order, SideKeys, Verdict};

/// Orders that are checked before the first of them is carried out.
const CHECKED: usize = 500;

/// The orders of a kind, by owner.
fn by_owner(orders: &[Order], which: impl Fn(&Order) -> bool) -> Vec<(Arc<Origin>, Vec<usize>)> {
    let mut owners: Vec<(Arc<Origin>, Vec<usize>)> = Vec::new();
    for (at, order) in orders.iter().enumerate().filter(|(_, order)| which(order)) {
        let known = owners.iter_mut().find(|(owner, held)| **owner == *order.owner && held.len() < CHECKED);
        match known {
            Some((_, held)) => held.push(at),
            None => owners.push((Arc::clone(&order.owner), vec![at])),
        }
    }
    owners
}

impl ModelStore {
    pub(super) fn carry_out(
        &self,
        origin: &Origin,
        acks: &[EntryId],
        orders: &[Order],
        side: SideKeys<'_>,
    ) -> Result<Vec<Verdict>> {
        let SideKeys { delay_key, marks } = side;
        self.faults.check(Operation::Settle)?;
        let deletes = self.deleting.read().contains(&origin.stream);
        self.run(|keyspace| {
            // A key of another type by now holds none of our entries either.
            let _ = keyspace.acknowledge(&origin.stream, &origin.group, acks, deletes);
            let mut verdicts = vec![Verdict::Gone; orders.len()];
            for (owner, held) in by_owner(orders, |order| order.action == Action::Ack) {
                let checked: Vec<_> = held.iter().map(|at| &orders[*at]).collect();
                for (at, verdict) in held.iter().zip(keyspace.checked_acks(&owner, &checked)) {
                    verdicts[*at] = verdict;
                }
            }
            let kinds = [(false, false), (false, true), (true, false), (true, true)];
            for (again, exact) in kinds {
                let counts = |order: &Order| order.action == Action::Again { resent: again } && order.exact == exact;
                for (owner, held) in by_owner(orders, counts) {
                    for at in held {
                        verdicts[at] = keyspace.count_again(&owner, &orders[at], again, delay_key);
                    }
                }
            }
            for (again, exact) in kinds {
                let resent = |action: &Action| matches!(action, Action::Park { resent, .. } if *resent == again);
                let parks = |order: &Order| resent(&order.action) && order.exact == exact;
                for (owner, held) in by_owner(orders, parks) {
                    let parked: Vec<_> = held.iter().map(|at| &orders[*at]).collect();
                    for (at, verdict) in held.iter().zip(keyspace.park(&owner, &parked, delay_key)) {
                        verdicts[*at] = verdict;
                    }
                }
            }
            for (owner, held) in by_owner(orders, |order| matches!(order.action, Action::Keep(_))) {
                let kept: Vec<_> = held.iter().map(|at| &orders[*at]).collect();
                for (at, verdict) in held.iter().zip(keyspace.keep(&owner, &kept, delay_key)) {
                    verdicts[*at] = verdict;
                }
            }
            for (at, order) in orders.iter().enumerate() {
                verdicts[at] = match &order.action {
                    Action::Ack | Action::Again { .. } | Action::Park { .. } | Action::Keep(_) => continue,
                    Action::Reply(reply) => keyspace.reply(order, reply),
                    Action::Copy | Action::Delay(_) => keyspace.retry(order, delay_key),
                    Action::Bury(letter) => keyspace.bury(order, letter).unwrap_or_else(Verdict::Refused),
                };
            }
            if let Some((key, ids)) = marks {
                // One that stays is found later, as on a server.
                let _ = keyspace.unmark_settled(origin, key, ids, acks);
            }
            if deletes {
                let ids: Vec<_> = orders.iter().map(|order| order.token.id()).collect();
                let _ = keyspace.delete_unneeded(&origin.stream, &ids);
            }
            Ok(verdicts)
        })
    }
}
