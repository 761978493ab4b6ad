//! From an ELF file to the flat image that a ROM can copy to its place.

/// Where the programs of `walkers/x86` are linked to.
const BASE: u64 = 0x400_0000;
/// `p_type` of what a loader loads.
const LOAD: u32 = 1;

/// The loadable segments of a 64-bit little-endian ELF file as they lie in memory from [`BASE`] on, up to the last byte
/// that is in the file: what comes after it, the program clears itself.
pub fn flatten(elf: &[u8]) -> Result<Vec<u8>, &'static str> {
    const BROKEN: &str = "no ELF file of ours";
    let word = |at: u64, bytes: usize| -> Result<u64, &'static str> {
        let at = usize::try_from(at).map_err(|_| BROKEN)?;
        let field = elf.get(at..at + bytes).ok_or(BROKEN)?;
        Ok(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err(BROKEN);
    }
    let (table, size, entries) = (word(0x20, 8)?, word(0x36, 2)?, word(0x38, 2)?);
    let mut image = Vec::new();
    for header in (0..entries).map(|index| table + index * size) {
        if word(header, 4)? != u64::from(LOAD) {
            continue;
        }
        let (offset, address, bytes) =
            (word(header + 0x08, 8)?, word(header + 0x18, 8)?, word(header + 0x20, 8)?);
        let place = address.checked_sub(BASE).ok_or("a segment below the program's base")? as usize;
        let segment = elf.get(offset as usize..(offset + bytes) as usize).ok_or(BROKEN)?;
        image.resize(image.len().max(place + segment.len()), 0);
        image[place..place + segment.len()].copy_from_slice(segment);
    }
    if image.is_empty() { Err(BROKEN) } else { Ok(image) }
}
