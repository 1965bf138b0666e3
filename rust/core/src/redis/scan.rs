//! Taking pending entries over: idle ones of anyone, and those under the reader's own name.

use std::collections::HashSet;
use std::time::Duration;

use ::redis::{Value, cmd};

use super::scripts;
use super::store::{RedisStore, with_id};
use super::value::{self, integer, items};
use crate::batch::Origin;
use crate::entry::EntryId;
use crate::error::{Error, Result};
use crate::store::{Page, Scanned};

/// Entries a scan step looks at for each one it may take, as `XAUTOCLAIM` does.
const LOOK: usize = 10;

impl RedisStore {
    pub(super) async fn scan_idle(&self, origin: &Origin, min_idle: Duration, page: Page<'_>) -> Result<Scanned> {
        let mut command = scripts::call(&scripts::SCAN, &[&origin.stream]);
        command.arg(&origin.group).arg(&origin.consumer).arg(min_idle.as_millis().to_string());
        with_id(&mut command, page.cursor);
        command.arg(page.count.saturating_mul(LOOK)).arg(page.count).arg(page.dead_letter.unwrap_or_default());
        let reply = self.work.query(&command).await?;
        let [next, found @ ..] = items(&reply) else {
            return Err(Error::Protocol("a scan was not answered with where it ended".into()));
        };
        scanned(found, value::id(next), page.hash_keys)
    }

    /// What is held is left out here, not on the server: it may be far more than what is to be taken.
    pub(super) async fn take_own(
        &self,
        origin: &Origin,
        held: &HashSet<EntryId>,
        uncounted: bool,
        page: Page<'_>,
    ) -> Result<Scanned> {
        let Page { cursor, count, .. } = page;
        let mut pending = cmd("XPENDING");
        pending.arg(&origin.stream).arg(&origin.group).arg(format!("({cursor}")).arg("+").arg(count);
        pending.arg(&origin.consumer);
        let rows = self.work.query(&pending).await?;
        let ids: Vec<_> = items(&rows).iter().filter_map(|row| value::id(items(row).first()?)).collect();
        let next = if ids.len() < count { None } else { ids.last().copied() };
        let wanted: Vec<_> = ids.into_iter().filter(|id| !held.contains(id)).collect();
        if wanted.is_empty() {
            return Ok(Scanned { cursor: next, ..Scanned::default() });
        }
        let mut command = scripts::call(&scripts::TAKE, &[&origin.stream]);
        command.arg(&origin.group).arg(&origin.consumer).arg(u8::from(uncounted));
        command.arg(page.dead_letter.unwrap_or_default());
        for id in wanted {
            with_id(&mut command, id);
        }
        let reply = self.work.query(&command).await?;
        scanned(items(&reply), next, page.hash_keys)
    }
}

/// What a script found: entries, ids of deleted ones, how many letters were refused, and why.
fn scanned(found: &[Value], cursor: Option<EntryId>, hash_keys: bool) -> Result<Scanned> {
    let [entries, deleted, refused, cause] = found else {
        return Err(Error::Protocol("taking entries was not answered with four elements".into()));
    };
    let refused = integer(refused).and_then(|refused| usize::try_from(refused).ok()).filter(|refused| *refused > 0);
    Ok(Scanned {
        raw: value::entries(entries, hash_keys),
        cursor,
        deleted: items(deleted).iter().filter_map(value::id).collect(),
        refused: refused.map(|refused| (refused, Error::from_reply(&value::text(cause)))),
    })
}
