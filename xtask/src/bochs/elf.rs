//! From an ELF file to the flat image that a ROM can copy to its place.

/// Where the programs of `walkers/x86` are linked to.
const BASE: u64 = 0x400_0000;
/// No program is so large.
const LIMIT: u64 = 16 << 20;
/// `p_type` of what a loader loads.
const LOAD: u32 = 1;

/// The loadable segments of a 64-bit little-endian ELF file as they lie in memory from [`BASE`] on, up to the last byte
/// that is in the file: what comes after it, the program clears itself.
pub fn flatten(elf: &[u8]) -> Result<Vec<u8>, &'static str> {
    const BROKEN: &str = "no ELF file of ours";
    let word = |at: u64, bytes: usize| -> Result<u64, &'static str> {
        let field = usize::try_from(at).ok().and_then(|at| elf.get(at..)?.get(..bytes)).ok_or(BROKEN)?;
        Ok(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err(BROKEN);
    }
    let (table, size, entries) = (word(0x20, 8)?, word(0x36, 2)?, word(0x38, 2)?);
    let mut image = Vec::new();
    for header in (0..entries).map(|index| table.saturating_add(index * size)) {
        if word(header, 4)? != u64::from(LOAD) {
            continue;
        }
        let (offset, address, bytes) =
            (word(header + 0x08, 8)?, word(header + 0x18, 8)?, word(header + 0x20, 8)?);
        let place = address.checked_sub(BASE).filter(|place| *place < LIMIT);
        let place = place.ok_or("a segment that is not where programs are")? as usize;
        let end = offset.checked_add(bytes).ok_or(BROKEN)?;
        let segment = elf.get(offset as usize..end as usize).ok_or(BROKEN)?;
        image.resize(image.len().max(place + segment.len()), 0);
        image[place..place + segment.len()].copy_from_slice(segment);
    }
    if image.is_empty() { Err(BROKEN) } else { Ok(image) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with a segment for each pair of an address and contents.
    fn elf(segments: &[(u64, &[u8])]) -> Vec<u8> {
        const HEADER: usize = 0x40;
        const ENTRY: usize = 0x38;
        let mut file = vec![0; HEADER];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x20] = HEADER as u8;
        file[0x36] = ENTRY as u8;
        file[0x38] = segments.len() as u8;
        let mut contents = HEADER + segments.len() * ENTRY;
        for (address, bytes) in segments {
            let mut entry = [0; ENTRY];
            entry[0] = LOAD as u8;
            for (field, value) in [(0x08, contents as u64), (0x18, *address), (0x20, bytes.len() as u64)] {
                entry[field..field + 8].copy_from_slice(&value.to_le_bytes());
            }
            file.extend(entry);
            contents += bytes.len();
        }
        file.extend(segments.iter().flat_map(|(_, bytes)| *bytes));
        file
    }

    #[test]
    fn segments_go_where_they_belong() {
        let image = flatten(&elf(&[(BASE + 6, b"data"), (BASE, b"code")]));
        assert_eq!(image.as_deref(), Ok(&b"code\0\0data"[..]));
    }

    #[test]
    fn what_is_no_program_of_ours_is_refused() {
        let good = elf(&[(BASE, b"code")]);
        let mut beyond = good.clone();
        beyond.truncate(good.len() - 1);
        for bad in [
            &b"#!/bin/sh"[..],
            &good[..0x30],
            &beyond,
            &elf(&[(BASE - 1, b"code")]),
            &elf(&[(BASE + LIMIT, b"code")]),
            &elf(&[]),
        ] {
            assert!(flatten(bad).is_err(), "{bad:x?}");
        }
    }
}
