//! A guest that loads, stores or jumps once, at any address: three instructions, and page tables with one variable
//! entry (the window).
//!
//! ```text
//! linear 0x0000   the code (and the GDT, in the same page)
//! linear 0x1000   the window: whatever guest-physical page the next access is for
//! linear 0x2000   a page to leave word in, for a program that runs by itself
//! linear 0x10_0000 on: pages for such a program
//! ```
//! [`aim`](Guest::aim) rewrites the window's entry for each access, so the guest reaches any address that an entry can
//! hold. The guest drops the window's old translation itself, by INVLPG, as the architecture demands; every translation
//! that the processor still caches then comes from the nested tables, which the judge checks.

use crate::cpu::{self, Vendor};
use crate::processor::LongMode;
use alloc::boxed::Box;
use slat::{Access, Gfn, Gpa, PAGE_SHIFT, PAGE_SIZE, Pfn};
use slat_judge::{CODE_OFFSET, Fixed};

/// INVLPG \[rbx\].
const FORGET: [u8; 3] = [0x0f, 0x01, 0x3b];
/// MOV rax, \[rbx\].
const LOAD: [u8; 3] = [0x48, 0x8b, 0x03];
/// MOV \[rbx\], rax.
const STORE: [u8; 3] = [0x48, 0x89, 0x03];
/// JMP rbx.
const JUMP: [u8; 2] = [0xff, 0xe3];
/// MOV rax, imm64: the eight bytes that follow.
const TELL: [u8; 2] = [0x48, 0xb8];

/// The offset of the code for each kind of access in the code page.
const fn entry(access: Access) -> usize {
    match access {
        Access::Read => 0x00,
        Access::Write => 0x20,
        Access::Fetch => 0x40,
    }
}

/// The offset of a subroutine that calls the host: for programs that do not know the vendor's instruction.
const CALL: usize = 0x60;
/// RET.
const RETURN: [u8; 1] = [0xc3];
/// The offset of the GDT in the code page.
const GDT: usize = 0x800;
/// Null, 32-bit code, 64-bit code, data.
const DESCRIPTORS: [u64; 4] = [0, 0x00cf_9b00_0000_ffff, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Present, writable, and already accessed and dirty, so the walker writes nothing here.
const ENTRY: u64 = 0b110_0011;

#[repr(C, align(4096))]
struct Table([u64; 512]);

/// The guest's memory, at guest-physical addresses equal to the physical ones.
#[repr(C, align(4096))]
pub struct Guest {
    code: [u8; 4096],
    root: Table,
    level_3: Table,
    level_2: Table,
    level_1: Table,
    mail: Table,
}

impl Guest {
    /// The address at which a [program](Self::load) begins.
    pub const PROGRAM: u64 = 0x100;
    /// The linear address of a subroutine that calls the host.
    pub const CALL: u64 = CALL as u64;
    /// The linear address of the page in which a program leaves its results.
    pub const MAIL: u64 = 2 * PAGE_SIZE;
    /// The linear address of the first page that is [mapped](Self::map).
    pub const PAGES: u64 = 256 * PAGE_SIZE;
    /// The linear address of the window.
    const WINDOW: u64 = PAGE_SIZE;

    /// A window with code and tables, and with no page behind it.
    pub fn new() -> Box<Self> {
        let empty = || Table([0; 512]);
        let (root, level_3, level_2, level_1, mail) = (empty(), empty(), empty(), empty(), empty());
        let mut guest = Box::new(Self { code: [0; 4096], root, level_3, level_2, level_1, mail });
        guest.root.0[0] = address(&guest.level_3) | ENTRY;
        guest.level_3.0[0] = address(&guest.level_2) | ENTRY;
        guest.level_2.0[0] = address(&guest.level_1) | ENTRY;
        guest.level_1.0[0] = address(&guest.code) | ENTRY;
        guest.level_1.0[2] = address(&guest.mail) | ENTRY;
        for (access, instruction) in
            [(Access::Read, &LOAD[..]), (Access::Write, &STORE), (Access::Fetch, &JUMP)]
        {
            write(&mut guest.code[entry(access)..], &[&FORGET, instruction, &call()]);
        }
        write(&mut guest.code[CALL..], &[&call(), &RETURN]);
        for (place, descriptor) in guest.code[GDT..].chunks_exact_mut(8).zip(DESCRIPTORS) {
            place.copy_from_slice(&descriptor.to_le_bytes());
        }
        guest
    }

    /// The state in which the guest begins; [`aim`](Self::aim) returns the address.
    pub fn start(&self) -> LongMode {
        let gdt = Gpa(address(&self.code) + GDT as u64);
        LongMode { cr3: Gpa(address(&self.root)), gdt, rip: 0, rsp: PAGE_SIZE }
    }

    /// The frames of its code and tables.
    pub fn fixed(&self) -> Fixed {
        let frame = address(self) >> PAGE_SHIFT;
        Fixed { gfn: Gfn(frame), pages: size_of::<Self>() as u64 >> PAGE_SHIFT, pfn: Pfn(frame) }
    }

    /// The addresses of its page tables, the root's first.
    pub fn tables(&self) -> [u64; 4] {
        [&self.root, &self.level_3, &self.level_2, &self.level_1].map(address)
    }

    /// Copies a program to the place where it runs.
    ///
    /// # Panics
    /// If it is longer than the room for it.
    pub fn load(&mut self, program: &[u8]) {
        self.code[Self::PROGRAM as usize..][..program.len()].copy_from_slice(program);
        assert!(Self::PROGRAM as usize + program.len() <= GDT, "the GDT comes next");
    }

    /// Maps page `index` from [`PAGES`](Self::PAGES) on.
    pub fn map(&mut self, index: u64, gpa: Gpa) {
        self.level_1.0[(Self::PAGES / PAGE_SIZE + index) as usize] = gpa.gfn().gpa().0 | ENTRY;
    }

    /// The physical address of the page in which a program leaves its results.
    pub fn mail(&self) -> u64 {
        address(&self.mail)
    }

    /// Points the window to the page of `gpa`. Returns the address at which the guest must go on (rip), and the address
    /// of the access (rbx).
    pub fn aim(&mut self, gpa: Gpa, access: Access) -> (u64, u64) {
        let window = &raw mut self.level_1.0[1];
        // SAFETY: our own entry; volatile, because the reader is a page walker.
        unsafe { window.write_volatile(gpa.gfn().gpa().0 | ENTRY) };
        (entry(access) as u64, Self::WINDOW + gpa.offset())
    }
}

/// The code for fetches: it loads the physical address of its page into rax, and calls the host.
pub fn write_code(pfn: Pfn) {
    let mut code = [0; 16];
    write(&mut code, &[&TELL, &pfn.address().to_le_bytes(), &call()]);
    let place = (pfn.address() + CODE_OFFSET) as *mut [u8; 16];
    // SAFETY: the judge asks for it: a page of the memory that it has been lent, mapped one to one.
    unsafe { place.write(code) };
}

/// VMMCALL or VMCALL, by the processor's vendor.
fn call() -> [u8; 3] {
    match cpu::vendor() {
        Vendor::Amd => [0x0f, 0x01, 0xd9],
        Vendor::Intel | Vendor::Other => [0x0f, 0x01, 0xc1],
    }
}

fn write(place: &mut [u8], code: &[&[u8]]) {
    for (byte, written) in place.iter_mut().zip(code.iter().copied().flatten()) {
        *byte = *written;
    }
}

fn address<T>(of: &T) -> u64 {
    (&raw const *of) as u64
}
