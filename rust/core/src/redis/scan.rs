//! Taking pending entries over: idle ones of anyone, and those under the reader's own name.

use std::collections::HashSet;
use std::time::Duration;

use ::redis::cmd;

use super::scripts;
use super::store::{RedisStore, with_id};
use super::value::{self, items};
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::store::Scanned;

/// Entries a scan step looks at for each one it may take, as `XAUTOCLAIM` does.
const LOOK: usize = 10;

impl RedisStore {
    pub(super) async fn scan_idle(
        &self,
        origin: &Origin,
        min_idle: Duration,
        cursor: EntryId,
        count: usize,
        hash_keys: bool,
    ) -> Result<Scanned> {
        let mut command = scripts::call(&scripts::SCAN, &[&origin.stream]);
        command.arg(&origin.group).arg(&origin.consumer).arg(min_idle.as_millis().to_string());
        with_id(&mut command, cursor);
        command.arg(count.saturating_mul(LOOK)).arg(count);
        let reply = self.work.query(&command).await?;
        let [next, entries, deleted] = items(&reply) else {
            return Err(Error::Protocol("a scan was not answered with three elements".into()));
        };
        Ok(Scanned {
            raw: value::entries(entries, hash_keys),
            cursor: value::id(next),
            deleted: items(deleted).iter().filter_map(value::id).collect(),
        })
    }

    /// What is held is left out here, not on the server: it may be far more than what is to be taken.
    pub(super) async fn take_own(
        &self,
        origin: &Origin,
        held: &HashSet<EntryId>,
        uncounted: bool,
        cursor: EntryId,
        count: usize,
        hash_keys: bool,
    ) -> Result<Scanned> {
        let mut pending = cmd("XPENDING");
        pending.arg(&origin.stream).arg(&origin.group).arg(format!("({cursor}")).arg("+").arg(count);
        pending.arg(&origin.consumer);
        let page = self.work.query(&pending).await?;
        let ids: Vec<_> = items(&page).iter().filter_map(|row| value::id(items(row).first()?)).collect();
        let next = if ids.len() < count { None } else { ids.last().copied() };
        let wanted: Vec<_> = ids.into_iter().filter(|id| !held.contains(id)).collect();
        if wanted.is_empty() {
            return Ok(Scanned { cursor: next, ..Scanned::default() });
        }
        let mut command = scripts::call(&scripts::TAKE, &[&origin.stream]);
        command.arg(&origin.group).arg(&origin.consumer).arg(u8::from(uncounted));
        for id in wanted {
            with_id(&mut command, id);
        }
        let reply = self.work.query(&command).await?;
        let [entries, deleted] = items(&reply) else {
            return Err(Error::Protocol("taking entries was not answered with two elements".into()));
        };
        Ok(Scanned {
            raw: value::entries(entries, hash_keys),
            cursor: next,
            deleted: items(deleted).iter().filter_map(value::id).collect(),
        })
    }
}
