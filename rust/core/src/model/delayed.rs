//! Members of the sorted set of delayed entries: what the scripts write with `cmsgpack`, byte for byte, so that equal
//! due times keep the same order.

/// A list of strings, packed.
pub(super) fn pack<'a>(parts: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut packed = Vec::new();
    let length = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    match length(parts.len()) {
        few @ 0..=15 => packed.push(0x90 | few.to_be_bytes()[3]),
        some @ 16..=0xffff => packed.extend([0xdc, some.to_be_bytes()[2], some.to_be_bytes()[3]]),
        many => {
            packed.push(0xdd);
            packed.extend(many.to_be_bytes());
        }
    }
    for part in parts {
        let bytes = length(part.len()).to_be_bytes();
        match part.len() {
            0..=31 => packed.push(0xa0 | bytes[3]),
            32..=0xff => packed.extend([0xd9, bytes[3]]),
            0x100..=0xffff => packed.extend([0xda, bytes[2], bytes[3]]),
            _ => {
                packed.push(0xdb);
                packed.extend(bytes);
            }
        }
        packed.extend_from_slice(part);
    }
    packed
}

/// A big-endian number of so many bytes, taken off the front.
fn number(bytes: &mut &[u8], width: usize) -> Option<usize> {
    let (number, rest) = bytes.split_at_checked(width)?;
    *bytes = rest;
    Some(number.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)))
}

/// The strings of a packed list. None: it is not one.
pub(super) fn unpack(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let count = match number(&mut bytes, 1)? {
        few @ 0x90..=0x9f => few & 0x0f,
        0xdc => number(&mut bytes, 2)?,
        0xdd => number(&mut bytes, 4)?,
        _ => return None,
    };
    let mut parts = Vec::new();
    for _ in 0..count {
        let length = match number(&mut bytes, 1)? {
            short @ 0xa0..=0xbf => short & 0x1f,
            0xd9 => number(&mut bytes, 1)?,
            0xda => number(&mut bytes, 2)?,
            0xdb => number(&mut bytes, 4)?,
            _ => return None,
        };
        let (part, rest) = bytes.split_at_checked(length)?;
        parts.push(part);
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_lengths_of_every_width() {
        let sizes = [0, 31, 32, 255, 256, 65_535, 65_536];
        let parts: Vec<Vec<u8>> = sizes.iter().map(|size| vec![b'x'; *size]).collect();
        let packed = pack(parts.iter().map(Vec::as_slice));
        assert_eq!((packed[0], packed[1], packed[2], &packed[34..37]), (0x97, 0xa0, 0xbf, &[0xd9, 32, b'x'][..]));
        assert_eq!(unpack(&packed), Some(parts.iter().map(Vec::as_slice).collect()));
        for count in [15, 16, 65_535, 65_536] {
            let parts = vec![&b"ab"[..]; count];
            assert_eq!(unpack(&pack(parts.iter().copied())).map(|parts| parts.len()), Some(count));
        }
    }

    #[test]
    fn refuses_what_is_no_list_of_strings() {
        for bad in [&b""[..], b"\x91", b"\x91\xa2a", b"\x91\x05", b"\xc0", b"\x90rest", b"\xdd\xff\xff\xff\xff"] {
            assert_eq!(unpack(bad), None, "{bad:?}");
        }
    }
}
