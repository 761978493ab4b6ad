//! The command line: words separated by spaces.
//!
//! | word | meaning |
//! |---|---|
//! | `kernel=ADDRESS` | the address of the kernel's file (bzImage), in hexadecimal |
//! | `initrd=ADDRESS+BYTES` | the place of the initial file system, both in hexadecimal |
//! | `image=ADDRESS+BYTES` | the place of a Multiboot image, which is the guest instead of Linux, and may run guests of its own; it gets the words that are not listed here |
//! | `svm` | the guest, if it is Linux, may run guests of its own, too |
//! | `plain` | no guest: the kernel gets the bare machine, for comparison |
//! | `cpus=2` | the guest gets a second processor; AMD-V only. Where the machine has one, its two share that |
//! | `pages=4k`, `pages=2m` | the largest leaf; 2m unless said otherwise |
//! | `around=PAGES` | the number of pages of 4 KiB that a fault maps, all in one aligned block; a power of two, 16 unless said otherwise |
//! | `zap` | every timer interrupt unmaps everything |
//! | `log-dirty` | stores are logged, and harvested by timer interrupts |
//! | `age` | timer interrupts age the guest's pages |
//! | `move` | timer interrupts move pages to other frames, and take some until a fault brings them back; late, where vCPUs share a processor |
//! | `mistake=NAME` | a mistake on purpose, which must be found: see [`Mistake`] |
//! | `record` | every fault in RAM is told to the debug console |

use crate::error::Error;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use slat::Level;
use slat_walker_x86::cpu::processors;

/// The options.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Physical address of the kernel's file.
    pub kernel: u64,
    /// Physical address and length of the initial file system.
    pub initrd: (u64, u64),
    /// Physical address and length of a Multiboot image; a length of 0 stands for none.
    pub image: (u64, u64),
    /// The guest may run guests of its own.
    pub svm: bool,
    /// The whole command line; for a Multiboot image the words for it, behind a name.
    pub line: &'static str,
    /// Run the kernel without a hypervisor.
    pub plain: bool,
    /// Number of the guest's processors: 1 or 2.
    pub cpus: u32,
    /// Number of the machine's processors that run it: as many, or 1.
    pub processors: u32,
    /// The largest leaf.
    pub page: Level,
    /// Number of pages that a fault maps.
    pub around: u64,
    /// Chores on timer interrupts.
    pub chores: Wanted,
    /// Write every fault to the debug console.
    pub record: bool,
}

/// Operations on the guest's memory at timer interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a word")]
pub struct Wanted {
    /// Unmap everything.
    pub zap: bool,
    /// Log stores, and harvest the log.
    pub log_dirty: bool,
    /// Age the pages.
    pub age: bool,
    /// Move pages, and take them.
    pub moves: bool,
    /// The seeded mistake.
    pub mistake: Option<Mistake>,
}

/// A seeded mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// `untold-move`: blocks move to other frames without an invalidation.
    UntoldMove,
    /// `lost-dirty`: a page of every 16th harvest is dropped.
    LostDirty,
    /// `lost-young`: every 16th aging is dropped.
    LostYoung,
    /// `lost-event`: one of 4096 events is not counted.
    LostEvent,
    /// `never-ready`: one of 16 late pages is not reported to the engine.
    NeverReady,
    /// `stale-clock`: a clock is written to the frame that it was in first, too.
    StaleClock,
    /// `lost-clock`: a clock whose frame was taken back is not written again.
    LostClock,
    /// `unmarked-clock`: a clock is written by a use that reads.
    UnmarkedClock,
    /// `lost-flush`: a flush by L1 is dropped.
    LostFlush,
    /// `lost-walk`: a fault of the walk of L2's own tables is treated as one of the final address.
    LostWalk,
    /// `early-ready`: one of 16 late pages is reported to the engine before it is present.
    EarlyReady,
}

impl Mistake {
    fn named(name: &str) -> Option<Self> {
        match name {
            "untold-move" => Some(Self::UntoldMove),
            "lost-dirty" => Some(Self::LostDirty),
            "lost-young" => Some(Self::LostYoung),
            "lost-event" => Some(Self::LostEvent),
            "never-ready" => Some(Self::NeverReady),
            "stale-clock" => Some(Self::StaleClock),
            "lost-clock" => Some(Self::LostClock),
            "unmarked-clock" => Some(Self::UnmarkedClock),
            "lost-flush" => Some(Self::LostFlush),
            "lost-walk" => Some(Self::LostWalk),
            "early-ready" => Some(Self::EarlyReady),
            _ => None,
        }
    }
}

impl Options {
    /// Returns whether vCPUs share a processor.
    pub fn is_shared(&self) -> bool {
        self.processors < self.cpus
    }

    /// Parses a command line; an unknown word is an error.
    pub fn parse(line: &str) -> Result<Self, Error> {
        let mut options = Self {
            kernel: 0,
            initrd: (0, 0),
            image: (0, 0),
            svm: false,
            // Leaked: once.
            line: Box::leak(line.into()),
            plain: false,
            cpus: 1,
            processors: 1,
            page: Level::M2,
            around: 16,
            chores: Wanted::default(),
            record: false,
        };
        // A loader's line begins with the image's name.
        let mut for_image = String::from("image");
        for word in line.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let hexadecimal = |text: &str| {
                let digits = text.trim_start_matches("0x");
                u64::from_str_radix(digits, 16).map_err(|_| format!("{word}: no hexadecimal number"))
            };
            let stretch = |range: &str| {
                let (at, bytes) = range.split_once('+').ok_or_else(|| format!("{word}: no ADDRESS+BYTES"))?;
                Ok::<_, Error>((hexadecimal(at)?, hexadecimal(bytes)?))
            };
            match (name, value) {
                ("kernel", address) => options.kernel = hexadecimal(address)?,
                ("initrd", range) => options.initrd = stretch(range)?,
                ("image", range) => {
                    options.image = stretch(range)?;
                    options.svm = true;
                }
                ("svm", "") => options.svm = true,
                ("plain", "") => options.plain = true,
                ("cpus", "1") => options.cpus = 1,
                ("cpus", "2") => options.cpus = 2,
                ("pages", "4k") => options.page = Level::K4,
                ("pages", "2m") => options.page = Level::M2,
                ("around", pages) => {
                    options.around = pages
                        .parse()
                        .ok()
                        .filter(|pages: &u64| pages.is_power_of_two())
                        .ok_or_else(|| format!("{word}: no power of two"))?;
                }
                ("zap", "") => options.chores.zap = true,
                ("log-dirty", "") => options.chores.log_dirty = true,
                ("age", "") => options.chores.age = true,
                ("move", "") => options.chores.moves = true,
                ("mistake", name) => {
                    let mistake = Mistake::named(name).ok_or_else(|| format!("{word}: no mistake"))?;
                    options.chores.mistake = Some(mistake);
                }
                ("record", "") => options.record = true,
                _ if options.image.1 > 0 => for_image.extend([" ", word]),
                _ => return Err(format!("{word}: no option").into()),
            }
        }
        if options.svm && (options.cpus, processors()) != (2, 1) {
            return Err("guests of guests are for two vCPUs on one processor".into());
        }
        if options.image.1 > 0 {
            options.line = for_image.leak();
        }
        options.processors = options.cpus.min(processors());
        Ok(options)
    }
}
