//! The flags of `slat run`. Bad input is refused here, before anything is built.

use super::choices::{DirtyLogName, FormatName, LockName, Pages};
use super::migrate_flags::Migrate;
use crate::error::Error;
use crate::flags::Switch;
use crate::size::{self, seconds, size};
use clap::Args;
use slat::PAGE_SIZE;
use slat_mm::LruSettings;
use slat_vcpu::guest::Layout;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Replay memory traces on software vCPUs. Each TLB miss walks slat's tables, each fault goes through memslot, host and
/// install, and each byte that the guest reads is checked
#[derive(Debug, Args)]
#[command(
    after_help = "valgrind writes traces; socat talks to the sockets. Debian has a package of each name.

Examples:
  slat run
  valgrind --tool=lackey --trace-mem=yes ls 2>&1 | slat run --trace - -v 2
  slat run --trace ls.trace --format npt4 --pages thp --json
  slat run --dirty-log ring --churn 20000
  slat run --nested --format arm64 -v 2
  slat run --top
  slat run --trace-events - | grep -c 'slat:flush:'
  slat run -q --serve /tmp/guest & slat top /tmp/guest
  slat run --migrate-from /tmp/move & slat run --migrate-to /tmp/move
  slat run --limit 48M --swap mem --swap /var/tmp/swap --lru-gen /tmp/guest & socat - UNIX-CONNECT:/tmp/guest

Exit status: 0 all reads were right; 2 bad input, or the machine failed; 3 the guest's data is corrupt: a read returned
bytes that the guest never wrote, swap lost a page, the dirty log lost a write, or with --nested L2 wrote to a page that
L1 had protected; 130 interrupted.
Time: 2 s for the bundled traces; 5 to 20 million accesses a second for others. Memory: 420 MiB for the bundled traces; for
others 20 MiB plus twice what the guest touches, of which --limit bounds one half. The run reserves address space for all of
--memory; use -m where the system has less."
)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag that users type")]
pub struct Run {
    /// Trace to replay, as `valgrind --tool=lackey --trace-mem=yes` prints it, or lines of `ADDRESS R` and `ADDRESS W`, or
    /// the lines of drmemtrace's tool view, or `kvm_page_fault` lines of ftrace or perf: a file (plain, .gz, .zst), or `-` for standard input; may be repeated
    /// [default: the bundled traces]
    #[arg(short, long, value_name = "FILE")]
    pub trace: Vec<String>,

    /// Number of vCPUs. With more vCPUs than traces, the extra ones replay copies at other addresses [default: one per trace]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub vcpus: Option<u32>,

    /// Passes over each trace, by the same guest in the same memory [default: 1; 10 for the bundled traces]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,

    /// Maximum guest memory [default: 8G; 4G with pae, which cannot map more]
    #[arg(short, long, value_name = "SIZE", value_parser = |text: &str| within(text, 1 << 20, 64 << 40))]
    pub memory: Option<u64>,

    /// Page-table format
    #[arg(short, long, value_enum, default_value_t = FormatName::Ept4)]
    pub format: FormatName,

    /// MMU lock: none, a reader-writer lock (the TDP MMU series), or one mutex (KVM before that series)
    #[arg(long, value_enum, default_value_t = LockName::None)]
    pub mmu_lock: LockName,

    /// Page sizes that the host uses for guest memory
    #[arg(short, long, value_enum, default_value_t = Pages::K4)]
    pub pages: Pages,

    /// Maximum host memory for pages and tables together; at the limit --swap evicts cold pages
    /// [default: guest memory plus an eighth]
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| within(text, 16 << 20, 64 << 40))]
    pub limit: Option<u64>,

    /// Swap device: `mem` (compressed, up to half of --limit), or a file (new, empty, or left by a killed run); may be
    /// repeated. Memory is used first, then the file with the highest priority that has room; files with the same
    /// priority take turns. Without priorities the order of the flags counts
    #[arg(long, value_name = "FILE[,pri=N]|mem")]
    pub swap: Vec<String>,

    /// Overwrite the --swap files, whatever they contain
    #[arg(long, requires = "swap")]
    pub overwrite: bool,

    /// Watch the run: a screen on standard error, or a line per interval where that is not a terminal
    #[arg(long)]
    pub top: bool,

    /// Serve samples on a Unix socket, for `slat top PATH`
    #[arg(long, value_name = "PATH")]
    pub serve: Option<PathBuf>,

    /// Serve samples and the LRU's generations on a Unix socket: commands `read`, `+ memcg node max_seq …`,
    /// `- memcg node min_seq …` as in the kernel's `lru_gen`, `enabled [MASK]`, `min_ttl_ms [MS]`
    #[arg(long, value_name = "PATH", conflicts_with = "serve")]
    pub lru_gen: Option<PathBuf>,

    /// Swap out pages that the guest has not used for this many seconds
    #[arg(long, value_name = "SECS", value_parser = |text: &str| seconds(text, 0.01, 1e6), requires = "swap")]
    pub reclaim_idle: Option<Duration>,

    /// The work-ahead flags.
    #[command(flatten)]
    pub ahead: AheadArgs,

    /// on: the LRU reads the guest's tables when it ages (the MGLRU aging series); off: only before it evicts a page
    /// [default: on]
    #[arg(long, value_enum)]
    pub walk_secondary: Option<Switch>,

    /// Create a memslot for these traced addresses at the start, such as 0x4000000+16M; may be repeated. Other addresses
    /// get memslots of 16 MiB at their first access
    #[arg(long, value_name = "START+SIZE", value_parser = region)]
    pub region: Vec<Range<u64>>,

    /// Pages per second that the host moves to other frames during the run. Once per 1,000 pages it takes a copy-on-write
    /// snapshot of all memory. 0: none
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub churn: u64,

    /// Log the guest's writes in a bitmap or in a ring per vCPU, and harvest the log during the run. At the end each page
    /// must equal its copy of the last harvest that named it
    #[arg(long, value_enum, default_value_t = DirtyLogName::Off)]
    pub dirty_log: DirtyLogName,

    #[command(flatten)]
    pub(super) migrate: Migrate,

    /// Seed of the random choices of --churn and --nested [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// The flags of nested guests.
    #[command(flatten)]
    pub nested: NestedArgs,

    /// Fail on a garbled trace line instead of counting it
    #[arg(long)]
    pub strict: bool,

    /// Write the VM's events to a file or to standard output (`-`), one line each in the format of `perf script`: faults,
    /// zapped leaf entries, splits, flushes, grace periods. Events queue in memory if the file is slow
    #[arg(long, value_name = "FILE|-")]
    pub trace_events: Option<String>,

    /// Print one JSON object on standard output, and nothing else
    #[arg(long)]
    pub json: bool,

    /// Negative control: leave out every TLB flush. The guest's checks must fail
    #[arg(long, hide = true)]
    pub sabotage_flushes: bool,
}

/// The flags of the threads that work ahead of faults.
#[derive(Debug, Args)]
pub struct AheadArgs {
    /// Threads that evict cold pages before --limit is reached, so that faults need not reclaim; 0: faults reclaim
    /// themselves [default: 1]
    #[arg(long, value_name = "N", requires = "swap", value_parser = clap::value_parser!(u8).range(..=64))]
    pub evictors: Option<u8>,

    /// Free memory that a thread keeps zeroed while processors are idle; 0: faults zero their pages themselves
    /// [default: 4M]
    #[arg(long, value_name = "SIZE", value_parser = zero_ahead)]
    pub zero_ahead: Option<u64>,
}

/// The flags of nested guests.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag that users type")]
pub struct NestedArgs {
    /// Replay the traces in L2, a guest of the guest. L1, its hypervisor, maps L2's memory by page tables of its own in
    /// the format's layout and changes them at random: it moves, protects and swaps out pages, clears A and D bits,
    /// moves tables, and flushes by every instruction that its processor has
    #[arg(long, conflicts_with_all = ["migrate_to", "migrate_from"])]
    pub nested: bool,

    /// Accesses of a vCPU between two changes by L1, on average; 0: L1 makes none [default: 5000]
    #[arg(long, value_name = "N", requires = "nested")]
    pub l1_edits: Option<u64>,

    /// Negative control: leave out the flushes that L1 asks for
    #[arg(long, hide = true, requires = "nested")]
    pub sabotage_l1_flushes: bool,

    /// Negative control: do not flush L2's TLB entries
    #[arg(long, hide = true, requires = "nested")]
    pub sabotage_l2_tag: bool,
}

impl Run {
    /// The size of guest memory in bytes.
    pub fn memory(&self) -> u64 {
        self.memory.unwrap_or(if self.format == FormatName::Pae { 4 << 30 } else { 8 << 30 })
    }

    /// The seed of the churn and of the nested hypervisor's changes.
    pub fn seed(&self) -> Result<u64, Error> {
        match self.seed {
            Some(seed) if self.churn == 0 && !self.nested.nested => Err(Error::Usage(format!(
                "--seed {seed}: nothing is random with --churn 0; give --churn a number of pages a second"
            ))),
            seed => Ok(seed.unwrap_or(1)),
        }
    }

    /// The swap devices; `None` where `--swap` is absent.
    pub fn swaps(&self) -> Result<Option<Swaps<'_>>, Error> {
        let mut swaps = Swaps { memory: false, files: Vec::new(), overwrite: self.overwrite };
        for swap in &self.swap {
            if swap == "mem" {
                if std::mem::replace(&mut swaps.memory, true) {
                    return Err(Error::Usage("--swap mem: once is enough".into()));
                }
                continue;
            }
            let (path, priority) = swap_file(swap);
            let priority = priority.map(str::parse).transpose().map_err(|_| {
                Error::Usage(format!("--swap {swap}: a priority is a number from -32768 to 32767"))
            })?;
            if let Some(trace) = self.trace.iter().find(|trace| same_file(path, Path::new(trace))) {
                let path = path.display();
                return Err(Error::Usage(format!("--swap {path}: --trace {trace} is the same file")));
            }
            swaps.files.push((path, priority));
        }
        if self.overwrite && swaps.files.is_empty() {
            return Err(Error::Usage("--overwrite: --swap names no file that it could be".into()));
        }
        Ok((!self.swap.is_empty()).then_some(swaps))
    }

    /// Opens the event file. It must not be one of the trace files.
    pub fn trace_events(&self) -> Result<Option<&str>, Error> {
        let Some(path) = self.trace_events.as_deref() else { return Ok(None) };
        if path == "-" && (self.json || self.top) {
            let other = if self.json { "--json" } else { "--top" };
            return Err(Error::Usage(format!("--trace-events -: {other} is there, too; name a file")));
        }
        let traces = self.trace.iter().map(Path::new);
        let mut others = traces.chain(self.swap.iter().map(|swap| swap_file(swap).0));
        if let Some(other) = others.find(|other| same_file(Path::new(path), other)) {
            let other = other.display();
            return Err(Error::Usage(format!("--trace-events {path}: {other} is the same file")));
        }
        Ok(Some(path))
    }

    /// The socket's path, and the flag that named it.
    pub fn socket(&self) -> Option<(&'static str, &Path)> {
        let serve = self.serve.as_deref().map(|path| ("--serve", path));
        serve.or_else(|| Some(("--lru-gen", self.lru_gen.as_deref()?)))
    }

    /// The LRU's settings, if `--swap` or `--lru-gen` needs an LRU.
    pub fn lru(&self) -> Result<Option<LruSettings>, Error> {
        let wanted = !self.swap.is_empty() || self.lru_gen.is_some();
        if !wanted && self.walk_secondary.is_some() {
            return Err(Error::Usage("--walk-secondary: there is no LRU without --swap or --lru-gen".into()));
        }
        let walk_secondary = self.walk_secondary != Some(Switch::Off);
        Ok(wanted.then(|| LruSettings { walk_secondary, ..LruSettings::default() }))
    }

    /// The first address of each region that a memslot of the start covers. Each of `replays` replays places all of
    /// these regions, so more than guest memory holds is refused here.
    pub fn regions(&self, replays: usize) -> Result<Vec<u64>, Error> {
        let mut sorted = self.region.clone();
        sorted.sort_unstable_by_key(|region| region.start);
        for pair in sorted.windows(2) {
            if pair[0].end > pair[1].start {
                let typed = |of: &Range<u64>| format!("--region {:#x}+{:#x}", of.start, of.end - of.start);
                let (one, other) = (typed(&pair[0]), typed(&pair[1]));
                return Err(Error::Usage(format!("{one} overlaps {other}")));
            }
        }
        let room = self.memory().div_ceil(Layout::REGION) as usize / replays;
        let mut regions = Vec::new();
        for Range { start, end } in sorted {
            for region in start / Layout::REGION..=(end - 1) / Layout::REGION {
                let start = region * Layout::REGION;
                // Two neighbouring memslots may share a region.
                if regions.last() == Some(&start) {
                    continue;
                }
                if regions.len() == room {
                    return Err(Error::Usage(format!(
                        "--region: {replays} replays of it are more than --memory {}M",
                        self.memory() >> 20
                    )));
                }
                regions.push(start);
            }
        }
        Ok(regions)
    }
}

/// The swap devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swaps<'r> {
    /// Memory, compressed, comes first.
    pub memory: bool,
    /// The files and their priorities.
    pub files: Vec<(&'r Path, Option<i16>)>,
    /// Whether files are overwritten whatever they contain.
    pub overwrite: bool,
}

/// The file of one `--swap` value, and its priority.
fn swap_file(swap: &str) -> (&Path, Option<&str>) {
    let (path, priority) = swap.rsplit_once(",pri=").map_or((swap, None), |(path, pri)| (path, Some(pri)));
    (Path::new(path), priority)
}

fn same_file(one: &Path, other: &Path) -> bool {
    let is = |path| fs::metadata(path).map(|found: fs::Metadata| (found.dev(), found.ino())).ok();
    is(one).is_some() && is(one) == is(other)
}

/// Parses a number of bytes, of which `least` and `most` are allowed.
fn within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let bytes = size(text)?;
    match bytes {
        _ if bytes < least => Err(format!("at least {} are needed", size::text(least))),
        _ if bytes > most => Err(format!("{} at most", size::text(most))),
        _ => Ok(bytes),
    }
}

/// Parses the value of `--zero-ahead`.
fn zero_ahead(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { within(text, PAGE_SIZE, 1 << 40) }
}

/// Parses traced addresses.
fn region(text: &str) -> Result<Range<u64>, String> {
    let (start, bytes) = text.split_once('+').ok_or("a region is START+SIZE, such as 0x4000000+16M")?;
    let digits = start.strip_prefix("0x").unwrap_or(start);
    let start =
        u64::from_str_radix(digits, 16).map_err(|_| format!("`{start}` is no hexadecimal address"))?;
    let bytes = size(bytes)?;
    if bytes == 0 {
        return Err("a region has at least one byte".into());
    }
    match start.checked_add(bytes) {
        Some(end) if end <= slat_vcpu::trace::Access::LIMIT => Ok(start..end),
        _ => Err("the region reaches past the last address of a program".into()),
    }
}
