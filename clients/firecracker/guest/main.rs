//! A guest that knows what each of its pages must contain.
//!
//! It writes every page, and says `filled`. Then the host sends bytes to its serial port:
//!
//! | byte | meaning |
//! |---|---|
//! | `1` to `8` | A round: check so many eighths of the pages, in a scattered order, and write each anew. |
//! | `a` to `h` | Give an eighth of the pages back to the host by the balloon. They are zero afterwards. |
//! | `q` | Check all pages, report the verdict, and reset the machine. |
//!
//! Each word of a page depends on the page, on the number of times the page was written, and on the word's index. The
//! guest therefore finds a page of another guest, of an earlier round, of zeroes, and one that is right in part.

#![no_std]
#![no_main]

mod balloon;

use balloon::Balloon;
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
    (mixed ^ mixed >> 31)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .wrapping_add(index.wrapping_mul(0x94d0_49bb_1331_11eb))
}

/// The pages. They are visited in an order of eight parts.
struct Pages {
    count: u64,
    /// How often the pages of each part were written.
    times: [u64; 8],
    /// Whether the pages of a part were given back since.
    gone: [bool; 8],
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

    /// Returns the first word that is wrong, its index first. Without `times`, all words must be zero.
    fn wrong(&self, page: u64, times: Option<u64>) -> Option<(u64, u64)> {
        // SAFETY: as in `write`.
        let read = |index| (index, unsafe { self.at(page, index).read_volatile() });
        (0..WORDS)
            .map(read)
            .find(|&(index, found)| found != times.map_or(0, |times| word(page, times, index)))
    }

    /// Returns the pages of a part.
    fn part(&self, part: usize) -> impl Iterator<Item = u64> + use<> {
        let (count, part) = (self.count, part as u64);
        (part * count / 8..(part + 1) * count / 8).map(move |nth| nth * STRIDE % count)
    }

    /// Gives the pages of a part back to the host. Returns their number.
    fn give_back(&mut self, part: usize, balloon: &mut Balloon) -> u64 {
        let mut left = self.part(part).map(|page| (BASE / 4096 + page) as u32).peekable();
        while left.peek().is_some() {
            balloon.give(left.by_ref().take(Balloon::MOST));
        }
        self.gone[part] = true;
        self.part(part).count() as u64
    }

    /// Visits the first parts: checks each page, and writes it anew if `again`. Returns the pages visited, and those
    /// that were wrong.
    fn visit(&mut self, parts: usize, again: bool) -> (u64, u64) {
        let (mut visited, mut bad) = (0, 0);
        for part in 0..parts {
            let times = self.times[part];
            let expected = (!self.gone[part]).then_some(times);
            for page in self.part(part) {
                if let Some((index, found)) = self.wrong(page, expected) {
                    if bad < NAMED {
                        let earlier = (0..=times).find(|&earlier| found == word(page, earlier, index));
                        say!(
                            "wrong: page {page}, word {index}: {found:#x}, of time {earlier:?}, not of {expected:?}"
                        );
                    }
                    bad += 1;
                }
                if again {
                    self.write(page, times + 1);
                }
                visited += 1;
            }
            if again {
                (self.times[part], self.gone[part]) = (times + 1, false);
            }
        }
        (visited, bad)
    }
}

/// Returns the kernel's command line.
///
/// # Safety
/// `boot` points to Linux's `boot_params`.
unsafe fn command_line(boot: *const u8) -> &'static str {
    // SAFETY: required of the caller; the field `cmd_line_ptr` points to a text that ends in a zero.
    let line = unsafe {
        let line = boot.byte_add(0x228).cast::<u32>().read_unaligned();
        core::ffi::CStr::from_ptr(line as usize as *const _)
    };
    line.to_str().unwrap_or("")
}

#[unsafe(no_mangle)]
extern "C" fn enter(boot: *const u8) -> ! {
    // SAFETY: boot.s passes what Firecracker passed.
    let line = unsafe { command_line(boot) };
    let value = |name| line.split_whitespace().find_map(|word| word.strip_prefix(name));
    let count =
        value("pages=").and_then(|count| count.parse().ok()).filter(|count: &u64| count % STRIDE != 0);
    let device = value("virtio_mmio.device=4K@0x").and_then(|value| value.split(':').next());
    let device = device.and_then(|device| u64::from_str_radix(device, 16).ok());
    // SAFETY: Firecracker names its only device, which is the balloon; boot.s has mapped it.
    let mut balloon = unsafe { Balloon::new(device.expect("no device in the command line")) };
    let mut pages =
        Pages { count: count.expect("no pages=N in the command line"), times: [0; 8], gone: [false; 8] };
    (0..pages.count).for_each(|page| pages.write(page, 0));
    say!("filled: {} pages", pages.count);
    let (mut rounds, mut all) = (0, 0);
    loop {
        match Serial::read() {
            digit @ b'1'..=b'8' => {
                let (visited, bad) = pages.visit(usize::from(digit - b'0'), true);
                (rounds, all) = (rounds + 1, all + bad);
                say!("round {rounds}: {visited} pages, {bad} wrong");
            }
            letter @ b'a'..=b'h' => {
                say!("gave back: {} pages", pages.give_back(usize::from(letter - b'a'), &mut balloon))
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
