//! A guest of 128 bytes, in 64-bit mode, ring 3, which writes memory and checks it. Assembled by hand.
//!
//! ```text
//! 0x1000 page tables: 1 GiB identity, in pages of 2 MiB       0xa000 interrupts      0xc000 + n × 0x1000 TSS of vCPU n
//! 0x8000 code                      0x9000 segments            0x2_0000 + n × 0x1000  stack of vCPU n
//! ```
//! A job ends with `ud2`, which ring 0 turns into an exit.

pub mod stage;

use slat_kvm::kvm_bindings::{kvm_regs, kvm_segment};
use slat_kvm::kvm_ioctls::{Error, VcpuFd};

/// Bytes of memory that the guest needs for itself, from address 0.
pub const OWN: u64 = 1 << 20;
/// The port to which the end of a job is written.
pub const DONE: u16 = 0x42;

const CODE: u64 = 0x8000;

/// The jobs of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "no example does all")]
pub enum Job {
    /// Fills half of each page: the word at address `a` becomes `a & mask ^ salt`.
    Fill,
    /// Counts words that differ from `Fill`'s.
    Check,
    /// Stores a word every `mask` bytes.
    Touch,
}

/// A job on half of each of `pages` pages from `start` on.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub job: Job,
    pub start: u64,
    pub pages: u64,
    pub mask: u64,
    pub salt: u64,
}

#[rustfmt::skip]
const FILL: [u8; 39] = [
    0xb9, 0x00, 0x01, 0x00, 0x00,             // page: mov  ecx, 256        words in half a page
    0x48, 0x89, 0xf8,                         // word: mov  rax, rdi
    0x4c, 0x21, 0xc0,                         //       and  rax, r8         the mask
    0x48, 0x31, 0xd0,                         //       xor  rax, rdx        the salt
    0x48, 0x89, 0x07,                         //       mov  [rdi], rax
    0x48, 0x83, 0xc7, 0x08,                   //       add  rdi, 8
    0xff, 0xc9,                               //       dec  ecx
    0x75, 0xec,                               //       jnz  word
    0x48, 0x81, 0xc7, 0x00, 0x08, 0x00, 0x00, //       add  rdi, 2048       over the other half
    0x48, 0xff, 0xce,                         //       dec  rsi
    0x75, 0xdb,                               //       jnz  page
    0x0f, 0x0b,                               //       ud2
];

#[rustfmt::skip]
const CHECK: [u8; 46] = [
    0x31, 0xdb,                               //       xor  ebx, ebx        wrong words
    0xb9, 0x00, 0x01, 0x00, 0x00,             // page: mov  ecx, 256
    0x48, 0x89, 0xf8,                         // word: mov  rax, rdi
    0x4c, 0x21, 0xc0,                         //       and  rax, r8
    0x48, 0x31, 0xd0,                         //       xor  rax, rdx
    0x48, 0x39, 0x07,                         //       cmp  [rdi], rax
    0x74, 0x03,                               //       je   right
    0x48, 0xff, 0xc3,                         //       inc  rbx
    0x48, 0x83, 0xc7, 0x08,                   // right: add rdi, 8
    0xff, 0xc9,                               //       dec  ecx
    0x75, 0xe7,                               //       jnz  word
    0x48, 0x81, 0xc7, 0x00, 0x08, 0x00, 0x00, //       add  rdi, 2048
    0x48, 0xff, 0xce,                         //       dec  rsi
    0x75, 0xd6,                               //       jnz  page
    0x0f, 0x0b,                               //       ud2
];

#[rustfmt::skip]
const TOUCH: [u8; 13] = [
    0x48, 0x89, 0x17,                         // page: mov  [rdi], rdx
    0x4c, 0x01, 0xc7,                         //       add  rdi, r8
    0x48, 0xff, 0xce,                         //       dec  rsi
    0x75, 0xf5,                               //       jnz  page
    0x0f, 0x0b,                               //       ud2
];

/// Ring 0: the end of a job, or an unexpected fault.
#[rustfmt::skip]
const ENDS: [u8; 32] = [
    0xe6, DONE as u8, 0xf4,                   // out 0x42, al; hlt
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0xe6, DONE as u8 + 1, 0xf4,               // out 0x43, al; hlt
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

impl Job {
    const fn address(self) -> u64 {
        match self {
            Self::Fill => CODE,
            Self::Check => CODE + 0x40,
            Self::Touch => CODE + 0x80,
        }
    }
}

/// Writes the guest through `put`, which gets addresses and bytes.
pub fn load<E>(mut put: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
    const ENDS_AT: u64 = CODE + 0xc0;
    put(Job::Fill.address(), &FILL)?;
    put(Job::Check.address(), &CHECK)?;
    put(Job::Touch.address(), &TOUCH)?;
    put(ENDS_AT, &ENDS)?;
    // Page tables of all vCPUs: present, writable, user.
    put(0x1000, &0x2007u64.to_le_bytes())?;
    put(0x2000, &0x3007u64.to_le_bytes())?;
    let pages: Vec<u8> = (0..512u64).flat_map(|page| (page << 21 | 0xe7).to_le_bytes()).collect();
    put(0x3000, &pages)?;
    // Segments: 0x10 code and 0x18 data of ring 0; 0x28 data and 0x30 code of ring 3.
    let segments = [
        0,
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0,
        0x00cf_f300_0000_ffff,
        0x00af_fb00_0000_ffff,
        0,
    ];
    put(0x9000, &segments.map(u64::to_le_bytes).concat())?;
    for vcpu in 0..4u64 {
        let (tss, stack) = (tss(vcpu), 0x2_0000 + vcpu * 0x1000 + 0xf00);
        put(0x9040 + vcpu * 16, &[0x67 | tss << 16 | 0x8b << 40, 0].map(u64::to_le_bytes).concat())?;
        put(tss + 4, &stack.to_le_bytes())?;
        put(tss + 0x66, &0x68u16.to_le_bytes())?;
    }
    // Interrupt 6 ends a job.
    for vector in 0..32 {
        let to = ENDS_AT + if vector == 6 { 0 } else { 16 };
        let gate = [to & 0xffff | 0x10 << 16 | 0xee << 40 | to >> 16 << 48, 0];
        put(0xa000 + vector * 16, &gate.map(u64::to_le_bytes).concat())?;
    }
    Ok(())
}

const fn tss(vcpu: u64) -> u64 {
    0xc000 + vcpu * 0x1000
}

/// Starts a job on vCPU `number`.
pub fn begin(vcpu: &VcpuFd, number: u64, work: Work) -> Result<(), Error> {
    let mut special = vcpu.get_sregs()?;
    (special.cr0, special.cr3, special.cr4, special.efer) = (0x8005_0033, 0x1000, 0x20, 0x501);
    (special.gdt.base, special.gdt.limit) = (0x9000, 0x7f);
    (special.idt.base, special.idt.limit) = (0xa000, 0x1ff);
    let code = kvm_segment {
        limit: !0,
        selector: 0x33,
        type_: 11,
        present: 1,
        dpl: 3,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 0x2b, type_: 3, db: 1, l: 0, ..code };
    special.cs = code;
    (special.ds, special.es, special.ss, special.fs, special.gs) = (data, data, data, data, data);
    let task = kvm_segment { dpl: 0, s: 0, l: 0, g: 0, ..code };
    special.tr = kvm_segment { base: tss(number), limit: 0x67, selector: 0x40 + number as u16 * 16, ..task };
    vcpu.set_sregs(&special)?;
    let Work { job, start, pages, mask, salt } = work;
    let half = if job == Job::Touch { 0 } else { number % 2 * 2048 };
    vcpu.set_regs(&kvm_regs {
        rip: job.address(),
        rflags: 2,
        rsp: 0x2_0000 + number * 0x1000 + 0x800,
        rdi: start + half,
        rsi: pages,
        rdx: salt,
        r8: mask,
        ..Default::default()
    })
}
