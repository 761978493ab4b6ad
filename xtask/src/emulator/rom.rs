//! The firmware of an emulated machine that has none: 128 bytes that copy a program to its place and jump there.
//!
//! ```text
//! 0xffe0_0000   the program's flat image, as much of it as there is
//! 0xffff_ff80   CODE; the processor wakes at 0xffff_fff0
//! ```
//! Bochs takes a ROM of up to 2 MiB, which it puts at the end of the 32-bit addresses. So the program travels in the ROM;
//! no disk has to be read.

/// Bytes of the whole ROM.
const ROM: usize = 2 << 20;
/// Bytes of the code at its end.
const CODE_BYTES: usize = 0x80;

/// Real mode, as after reset; then 32-bit mode, where everything is within reach.
const CODE: [u8; CODE_BYTES] = {
    let mut rom = [0x90; CODE_BYTES];
    let real: &[u8] = &[
        0xfa, // cli
        0x2e, 0x66, 0x0f, 0x01, 0x16, 0xe8, 0xff, // lgdt cs:[0xffe8], 32 bits of base
        0x0f, 0x20, 0xc0, // mov eax, cr0
        0x0c, 0x01, // or al, 1
        0x0f, 0x22, 0xc0, // mov cr0, eax
        0x66, 0xea, 0x98, 0xff, 0xff, 0xff, 0x08, 0x00, // jmp 0x08:0xffffff98
    ];
    let protected: &[u8] = &[
        0x66, 0xb8, 0x10, 0x00, // mov ax, 0x10
        0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // mov ds, ax; mov es, ax; mov ss, ax
        0xb0, 0x02, 0xe6, 0x92, // mov al, 2; out 0x92, al: address line 20 is open
        0xfc, // cld
        0xbe, 0x00, 0x00, 0xe0, 0xff, // mov esi, 0xffe00000
        0xbf, 0x00, 0x00, 0x00, 0x04, // mov edi, 0x4000000
        0xb9, 0xe0, 0xff, 0x07, 0x00, // mov ecx, (ROM - CODE_BYTES) / 4
        0xf3, 0xa5, // rep movsd
        0x31, 0xdb, // xor ebx, ebx: there is no loader to speak of
        0xb8, 0x00, 0x00, 0x00, 0x04, // mov eax, 0x4000000
        0xff, 0xe0, // jmp eax
    ];
    // Null, code and data, flat.
    let gdt: &[u8] = &[
        0, 0, 0, 0, 0, 0, 0, 0, // 0x00
        0xff, 0xff, 0, 0, 0, 0x9b, 0xcf, 0, // 0x08
        0xff, 0xff, 0, 0, 0, 0x93, 0xcf, 0, // 0x10
    ];
    let gdt_pointer: &[u8] = &[0x17, 0x00, 0xd0, 0xff, 0xff, 0xff]; // 24 bytes at 0xffffffd0
    let reset: &[u8] = &[0xe9, 0x8d, 0xff]; // jmp 0xff80
    place(&mut rom, 0x00, real);
    place(&mut rom, 0x18, protected);
    place(&mut rom, 0x50, gdt);
    place(&mut rom, 0x68, gdt_pointer);
    place(&mut rom, 0x70, reset);
    rom
};

const fn place(rom: &mut [u8; CODE_BYTES], at: usize, bytes: &[u8]) {
    let mut index = 0;
    while index < bytes.len() {
        assert!(rom[at + index] == 0x90, "nothing is placed twice");
        rom[at + index] = bytes[index];
        index += 1;
    }
}

/// The ROM that starts `image`, a flat image that is loaded at `0x400_0000` and begins with its first byte, in 32-bit mode
/// with ebx = 0. None where it is too large.
pub fn with(image: &[u8]) -> Option<Vec<u8>> {
    let room = ROM - CODE_BYTES;
    (image.len() <= room).then(|| {
        let mut rom = image.to_vec();
        rom.resize(room, 0);
        rom.extend(CODE);
        rom
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_first_and_the_reset_vector_last() {
        let rom = with(b"program").unwrap();
        assert_eq!((rom.len(), &rom[..7]), (ROM, &b"program"[..]));
        assert_eq!(rom[ROM - 16], 0xe9, "a jump at 16 bytes before the end, where the processor wakes");
        assert!(with(&vec![0; ROM - CODE_BYTES]).is_some());
        assert!(with(&vec![0; ROM - CODE_BYTES + 1]).is_none());
    }

    /// Addresses that the code has in it, beside what they are addresses of.
    #[test]
    fn jumps_and_pointers_lead_where_they_should() {
        let at = |address: u32| (address - (u32::MAX - CODE_BYTES as u32 + 1)) as usize;
        let word = |place: usize| u32::from_le_bytes(CODE[place..place + 4].try_into().unwrap());
        let half = |place: usize| u16::from_le_bytes(CODE[place..place + 2].try_into().unwrap());
        // From reset to the first byte: relative to the instruction that follows.
        let next = 0xfff0_u16 + 3;
        assert_eq!(next.wrapping_add(half(0x71)), 0xff80);
        // From there to the table's limit and base, and to the code after the switch.
        let pointer = at(0xffff_0000 | u32::from(half(0x06)));
        assert_eq!((half(pointer), CODE[at(word(pointer + 2)) + 8..][..2].to_vec()), (23, vec![0xff, 0xff]));
        assert_eq!(&CODE[at(word(0x12))..][..2], &[0x66, 0xb8]);
        // All of the ROM but this code is copied, from where it begins.
        let from = CODE.iter().position(|&byte| byte == 0xbe).unwrap();
        assert_eq!(word(from + 1), u32::MAX - ROM as u32 + 1);
        assert_eq!(word(from + 11) as usize * 4, ROM - CODE_BYTES);
    }
}
