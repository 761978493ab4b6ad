//! A guest that knows what each of its pages must contain.
//!
//! It writes every page, and says `filled`. Then the host sends bytes to its serial port:
//!
//! | byte | meaning |
//! |---|---|
//! | `1` to `8` | A round: check so many eighths of the pages, in a scattered order, and write each anew. |
//! | `q` | Check all pages, report the verdict, and reset the machine. |
//!
//! Each word of a page depends on the page, on the number of times the page was written, and on the word's index. The
//! guest therefore finds a page of another guest, of an earlier round, of zeroes, and one that is right in part.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};
use core::fmt::{self, Write as _};

global_asm!(include_str!("boot.s"), options(att_syntax));

/// The first page.
const BASE: u64 = 32 << 20;
/// Words of a page.
const WORDS: u64 = 512;
/// The steps between pages that are visited one after the other: coprime to any number of pages that it does not divide.
const STRIDE: u64 = 7919;
/// Wrong pages that are named in a round.
const NAMED: u64 = 4;

/// Reads a port.
fn input(port: u16) -> u8 {
    let value;
    // SAFETY: the ports here are those of devices that Firecracker emulates; they change no memory.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) };
    value
}

/// Writes to a port.
fn output(port: u16, value: u8) {
    // SAFETY: as in `input`.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) };
}

/// The first serial port.
struct Serial;

impl Serial {
    const DATA: u16 = 0x3f8;
    const STATUS: u16 = 0x3fd;

    /// Waits for a byte of the host.
    fn read() -> u8 {
        while input(Self::STATUS) & 1 == 0 {}
        input(Self::DATA)
    }
}

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| output(Self::DATA, byte));
        Ok(())
    }
}

macro_rules! say {
    ($($text:tt)*) => {{ let _ = writeln!(Serial, $($text)*); }};
}

/// Returns the word of a page that was written `times` times.
fn word(page: u64, times: u64, index: u64) -> u64 {
    let mixed = (page << 32 | times).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(index.wrapping_mul(0x94d0_49bb_1331_11eb))
}

/// The pages, and how often each was written.
struct Pages {
    count: u64,
    /// For each eighth of the order in which pages are visited.
    times: [u64; 8],
}

impl Pages {
    /// Returns the address of a page's word.
    fn at(&self, page: u64, index: u64) -> *mut u64 {
        assert!(page < self.count && index < WORDS);
        (BASE + (page * WORDS + index) * 8) as *mut u64
    }

    fn write(&self, page: u64, times: u64) {
        for index in 0..WORDS {
            // SAFETY: `at` has checked that it is in the memory that belongs to `Pages`; no reference to it exists.
            unsafe { self.at(page, index).write_volatile(word(page, times, index)) };
        }
    }

    /// Returns the first word that is wrong, its index first.
    fn wrong(&self, page: u64, times: u64) -> Option<(u64, u64)> {
        // SAFETY: as in `write`.
        let read = |index| (index, unsafe { self.at(page, index).read_volatile() });
        (0..WORDS).map(read).find(|&(index, found)| found != word(page, times, index))
    }

    /// Visits so many eighths of the pages: checks each, and writes it anew if `again`. Returns the pages visited, and
    /// those that were wrong.
    fn visit(&mut self, eighths: u64, again: bool) -> (u64, u64) {
        let (mut visited, mut bad) = (0, 0);
        for eighth in 0..eighths {
            let times = self.times[eighth as usize];
            for nth in eighth * self.count / 8..(eighth + 1) * self.count / 8 {
                let page = nth * STRIDE % self.count;
                if let Some((index, found)) = self.wrong(page, times) {
                    if bad < NAMED {
                        let earlier = (0..times).find(|&earlier| found == word(page, earlier, index));
                        say!("wrong: page {page}, word {index}: {found:#x}; written {times} times, has {earlier:?}");
                    }
                    bad += 1;
                }
                if again {
                    self.write(page, times + 1);
                }
                visited += 1;
            }
            self.times[eighth as usize] += u64::from(again);
        }
        (visited, bad)
    }
}

/// Returns the number after `pages=` in the kernel's command line.
///
/// # Safety
/// `boot` points to Linux's `boot_params`.
unsafe fn pages(boot: *const u8) -> Option<u64> {
    // SAFETY: required of the caller; the field `cmd_line_ptr` points to a text that ends in a zero.
    let line = unsafe {
        let line = boot.byte_add(0x228).cast::<u32>().read_unaligned();
        core::ffi::CStr::from_ptr(line as usize as *const _)
    };
    line.to_str().ok()?.split_whitespace().find_map(|word| word.strip_prefix("pages=")?.parse().ok())
}

#[unsafe(no_mangle)]
extern "C" fn enter(boot: *const u8) -> ! {
    // SAFETY: boot.s passes what Firecracker passed.
    let count = unsafe { pages(boot) }.filter(|count| count % STRIDE != 0).expect("no pages=N in the command line");
    let mut pages = Pages { count, times: [0; 8] };
    (0..count).for_each(|page| pages.write(page, 0));
    say!("filled: {count} pages");
    let (mut rounds, mut all) = (0, 0);
    loop {
        match Serial::read() {
            digit @ b'1'..=b'8' => {
                let (visited, bad) = pages.visit(u64::from(digit - b'0'), true);
                (rounds, all) = (rounds + 1, all + bad);
                say!("round {rounds}: {visited} pages, {bad} wrong");
            }
            b'q' => {
                let (visited, bad) = pages.visit(8, false);
                say!("verdict: {rounds} rounds, {visited} pages, {} wrong", all + bad);
                reset();
            }
            _ => {}
        }
    }
}

/// Resets the machine through its keyboard controller; Firecracker then ends with status 0.
fn reset() -> ! {
    output(0x64, 0xfe);
    loop {
        core::hint::spin_loop();
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    say!("panic: {info}");
    reset()
}
