//! Multiboot, version 1, for a guest that is not Linux, such as a hypervisor. Its file has the load addresses, beside
//! its header or as an ELF file of 32 bits, and the entry point in protected mode. A table describes memory and the
//! command line.
//!
//! Below 1 MiB, [`TABLE`] has the table, and [`LINE`] the command line.

use crate::error::Error;
use crate::layout::Layout;
use crate::linux::{copy, fill, memory_map, read, write};
use crate::options::Options;
use alloc::format;
use slat::{Hva, Span};
use slat_walker_x86::boot::{Boot, MemoryRange};
use slat_walker_x86::processor::Registers;

const TABLE: u64 = 0x2_9000;
/// The memory map, behind the table's fields.
const MAP: u64 = TABLE + 0x80;
const LINE: u64 = 0x2_a000;
const LINE_BYTES: u64 = 0x1000;
const HEADER: u32 = 0x1bad_b002;
const TELLS: u64 = 0x2bad_b002;
/// Range of the file in which the header must be.
const HEADER_WITHIN: u64 = 8192;
/// The header has addresses.
const HAS_ADDRESSES: u32 = 1 << 16;
/// Flags: the table has memory sizes, the command line, and the memory map.
const TOLD: u32 = 1 << 0 | 1 << 2 | 1 << 6;
const ELF_MAGIC: u32 = 0x464c_457f;
const ELF_32: u8 = 1;
const LOADED: u32 = 1;
const MAP_ENTRY_BYTES: u64 = 24;
const MIB: u64 = 1 << 20;

/// Loads the image. Returns its entry point and its registers.
pub fn load(boot: Boot, options: &Options, layout: &Layout) -> Result<(u32, Registers), Error> {
    let (file, bytes) = options.image;
    let put = |from: u64, to: u64, stored: u64, whole: u64| {
        let whole = whole.max(stored);
        let place = Span::sized(Hva(to), whole);
        if from.saturating_add(stored) > file + bytes || !layout.is_ram(place) || to < MIB {
            return Err(format!(
                "the image has {whole} bytes for {to:#x}, where there is no memory for them"
            ));
        }
        copy(from, to, stored);
        fill(to + stored, whole - stored, 0);
        Ok(())
    };
    let word = |at: u64| read::<u32>(file + at);
    let within = HEADER_WITHIN.min(bytes.saturating_sub(32));
    let is_header = |at: &u64| {
        word(*at) == HEADER && word(*at).wrapping_add(word(*at + 4)).wrapping_add(word(*at + 8)) == 0
    };
    let at = (0..within).step_by(4).find(is_header).ok_or("no Multiboot header in the image")?;
    let entry = if word(at + 4) & HAS_ADDRESSES != 0 {
        let [header, first, end, cleared, entry] =
            [12, 16, 20, 24, 28].map(|field| u64::from(word(at + field)));
        let from = (file + at).saturating_sub(header.saturating_sub(first));
        let stored = if end == 0 { file + bytes - from } else { end.saturating_sub(first) };
        put(from, first, stored, cleared.saturating_sub(first))?;
        entry as u32
    } else if word(0) == ELF_MAGIC && read::<u8>(file + 4) == ELF_32 {
        let (table, size, count) = (word(28), read::<u16>(file + 42), read::<u16>(file + 44));
        for header in (0..count).map(|header| u64::from(table) + u64::from(header) * u64::from(size)) {
            if header + 32 > bytes {
                return Err("the image is cut short".into());
            }
            if word(header) == LOADED {
                let [offset, to, stored, whole] =
                    [4, 12, 16, 20].map(|field| u64::from(word(header + field)));
                put(file + offset, to, stored, whole)?;
            }
        }
        word(24)
    } else {
        return Err("an image without addresses in its header that is no ELF file of 32 bits".into());
    };

    let line = options.line.as_bytes();
    fill(TABLE, LINE + LINE_BYTES - TABLE, 0);
    copy(line.as_ptr() as u64, LINE, (line.len() as u64).min(LINE_BYTES - 1));
    let map = memory_map(boot, layout);
    for (range, entry) in map.iter().zip((MAP..).step_by(MAP_ENTRY_BYTES as usize)) {
        write(entry, MAP_ENTRY_BYTES as u32 - 4);
        write(entry + 4, MemoryRange::new(range.start, range.bytes, range.kind));
    }
    let above = layout.own().start - MIB;
    let told = [TOLD, 639, (above >> 10) as u32, 0, LINE as u32];
    for (word, field) in told.into_iter().zip((TABLE..).step_by(4)) {
        write(field, word);
    }
    write(TABLE + 44, (map.len() as u64 * MAP_ENTRY_BYTES) as u32);
    write(TABLE + 48, MAP as u32);
    Ok((entry, Registers { rax: TELLS, rbx: TABLE, ..Registers::default() }))
}
