//! From a key to its partition. Frozen: a change would reorder keys across a rolling deploy.

/// Partitions of one subscription. Enough that two of a few hundred hot keys seldom share one, few enough that
/// their queues stay in the cache.
pub const PARTITIONS: u16 = 1024;

/// `xxh3_64(key) % 1024`.
#[inline]
pub fn partition(key: &[u8]) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below 1,024")]
    let partition = (xxhash_rust::xxh3::xxh3_64(key) % u64::from(PARTITIONS)) as u16;
    partition
}

#[cfg(test)]
mod tests {
    use super::partition;

    /// Golden values; the Python tests check the same against the `xxhash` package.
    #[test]
    fn keys_keep_their_partitions() {
        let golden = [("", 194), ("a", 543), ("acct-1", 373), ("acct-2", 15), ("acct-42", 526), ("hot", 888)];
        let seen: Vec<_> = golden.iter().map(|(key, _)| (*key, partition(key.as_bytes()))).collect();
        assert_eq!(seen, golden);
    }
}
