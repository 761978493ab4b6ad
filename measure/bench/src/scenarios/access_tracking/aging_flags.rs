//! `slat bench access-tracking-perf`: which pages vCPUs have used, and what aging costs these vCPUs (the MGLRU aging series).
//!
//! ```text
//! aging_beside_faults.rs   -p: vCPUs bring new memory in while the ager ages it
//! aging_stages.rs          without -p: the ager has to tell used pages from idle ones
//! ```
//! After KVM's `access_tracking_perf_test`, to which the series added `-l` and `-p`. There an aging pass asks the secondary
//! MMU page by page: under the MMU lock, taken alone, before ("no opt"), and without it after ("opt"). Both are here, on
//! this engine, on the reader-writer lock that the series' kernel has; slat's own pass asks table by table and has no
//! lock at all. With `-p` what runs is what `slat sim` simulates: `aging_run.rs`.

use super::aging_run::{Aged, by_tables, page_by_page};
use crate::scenarios::threads_prelude::*;
use crate::threads::software_vcpu::{SoftwareVcpu, Uses, all_went_well, stored};
use slat_mm::{Lru, LruSettings, Node};

/// The flags of `slat bench access-tracking-perf`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  slat bench access-tracking-perf --performance -l -v 1,4 -b 64M")]
pub struct AccessTracking {
    /// Ages by the multi-gen LRU; else the secondary MMU is asked, and there are no generations
    #[arg(short, long)]
    pub lru: bool,
    /// Measure the cost of aging for vCPUs that fault memory in; without it, test that aging tells used pages from idle pages
    #[arg(long)]
    pub performance: bool,
    /// Numbers of vCPUs to measure with, a thread each
    #[arg(short, long, value_name = "N,…", default_value = "1,2,4,8,16", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    pub vcpus: Vec<u32>,
    /// Guest memory for each vCPU: a multiple of 2M
    #[arg(short, long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub bytes: u64,
    /// With --performance: milliseconds that the ager rests between two passes: about what the series' took with one vCPU
    #[arg(long, value_name = "MS", default_value_t = 5)]
    pub pause: u64,
}

/// Tables that show what each idea contributes: [`crate::levers`].
const LEVERS: &[Grid] = &[
    Grid {
        what: "One aging pass while vCPUs fault memory in",
        columns: &[
            ("page by page, lock held", Cell::baseline("page by page: lock (no opt) → lockless (opt)")),
            ("page by page, no lock held", Cell::slat("page by page: lock (no opt) → lockless (opt)")),
            ("by tables, lock held", Cell::baseline("slat's batches under the lock → slat")),
            ("by tables, no lock at all", Cell::slat("slat's batches under the lock → slat")),
        ],
        rows: &[
            ("1 vCPU", &[("figure", "average pass"), ("vcpus", "1")], "ms"),
            ("4 vCPUs", &[("figure", "average pass"), ("vcpus", "4")], "ms"),
            ("16 vCPUs", &[("figure", "average pass"), ("vcpus", "16")], "ms"),
        ],
        says: "Aging without the lock is the idea of the MGLRU aging series. A pass by tables is slat's idea, and makes a pass short. In\n\
               the last column faults take no lock either.",
    },
    Grid {
        what: "vCPUs fault their memory in",
        columns: &[
            ("no aging", Cell::baseline("reader-writer lock: no aging → no opt")),
            ("aging, lock held", Cell::slat("reader-writer lock: no aging → no opt")),
            ("aging, no lock held", Cell::slat("reader-writer lock: no aging → opt")),
            ("no aging, no lock at all", Cell::baseline("slat: no aging → aging")),
            ("aging by tables, no lock at all", Cell::slat("slat: no aging → aging")),
        ],
        rows: &[
            ("1 vCPU", &[("figure", "vCPU wall time"), ("vcpus", "1")], "ms"),
            ("4 vCPUs", &[("figure", "vCPU wall time"), ("vcpus", "4")], "ms"),
            ("16 vCPUs", &[("figure", "vCPU wall time"), ("vcpus", "16")], "ms"),
        ],
        says: "Where a pass holds the lock, faults wait for it; without the lock they do not.",
    },
];

/// `slat bench access-tracking-perf`.
pub const MEASURED: Measured = Measured {
    takes: ["10 s", "1.1 GiB"],
    question: "How much does aging cost vCPUs that fault memory in meanwhile?",
    kept: "--performance -l -b 128M --runs 9",
    headlines: &[Headline {
        what: "one aging pass by tables while 16 vCPUs fault",
        against: "page by page, which holds no lock either",
        row: "page by page, lockless (opt) → slat",
        params: &[("figure", "average pass"), ("vcpus", "16")],
    }],
    levers: LEVERS,
    ci: &["-v 2 -b 8M", "-l -v 2 -b 8M", "--performance -v 2 -b 8M", "--performance -l -v 2 -b 8M"],
    quick: &["--performance -l -v 1,2,4,8 -b 32M --runs 3"],
    full: &["--performance -l"],
    ..Measured::of::<AccessTracking>()
};

impl Flags for AccessTracking {
    fn unused(&self) -> Unused {
        let pause =
            (!self.performance).then(|| ("pause".into(), "only --performance has an ager that rests".into()));
        pause.into_iter().collect()
    }

    fn report(&self, scenario: &'static Scenario, asked: Asked) -> Result<Report> {
        let most = self.vcpus.iter().copied().max().unwrap_or(1);
        GuestMemory::asked(most, self.bytes, Level::M2, MOST)?;
        let mut report = Report::of(scenario.name, Machine::detect());
        report.params = params! {
            "bytes_per_vcpu": self.bytes,
            "pause_ms": self.pause,
            "ages": if self.lru { "multi-gen LRU" } else { "secondary MMU alone" },
            "runs": asked.runs,
        };
        let measure = if self.performance { Self::faulting } else { Self::stages };
        measure(self, &mut report, asked.runs)?;
        Ok(report)
    }
}

impl AccessTracking {
    /// So many vCPUs'.
    pub fn memory(&self, vcpus: u32) -> GuestMemory {
        GuestMemory { vcpus, pages_per_vcpu: self.bytes / PAGE_SIZE }
    }
}

// How the ager asks which pages are young.

/// How to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Each page that the primary MMU has, by one call of every secondary MMU: as the kernel's passes do.
    PageByPage,
    /// The secondary MMU, table by table; then TLBs are asked to forget.
    Tables,
    /// A pass of the multi-gen LRU, forced: the primary's bits, the secondary MMU's, and the generations.
    Generations,
}

/// One pass.
pub fn pass(world: &TrackedMemory, idle: &mut Idle, way: Way) -> Result<Aged, String> {
    let (space, hvas) = (&world.space, world.hvas());
    Ok(match way {
        Way::PageByPage => page_by_page(
            idle,
            hvas,
            |hva| space.lookup(hva, Access::Read).is_some(),
            |idle, page| space.young(idle, page, Young::Clear),
        ),
        Way::Tables => by_tables(&*world.vm, idle, hvas),
        Way::Generations => {
            let lru = space.lru().ok_or("there are no generations")?;
            let before = lru.stats().young;
            let seq = youngest(world);
            space.age(idle, Node(0), seq, true, true).map_err(|error| error.to_string())?;
            [world.vm.stats().leaves[0], lru.stats().young - before]
        }
    })
}

/// The youngest generation's number.
pub fn youngest(world: &TrackedMemory) -> u64 {
    let generations = world.space.lru().map(Lru::generations).unwrap_or_default();
    generations.iter().flat_map(|node| &node.generations).map(|generation| generation.seq).max().unwrap_or(0)
}

// Guest memory on slat-mm, a VM, and vCPUs that go over their parts of it.

/// Guest memory at most.
pub const MOST: u64 = 1 << 38;

/// The lock of the VM's tables, and whether aging does without it.
pub type Guard = (MmuLock, bool);
/// The kernel before the series.
pub const NO_OPT: Guard = (MmuLock::ReadWrite, false);
/// The kernel with it.
pub const OPT: Guard = (MmuLock::ReadWrite, true);
/// As slat ships.
pub const SLAT: Guard = (MmuLock::None, true);

/// See the module's header.
pub struct TrackedMemory {
    pub space: Arc<AddressSpace>,
    pub vm: Arc<Vm<Npt4, HostView>>,
    pub memory: GuestMemory,
}

impl TrackedMemory {
    /// Memory that was never touched, in generations where `lru` says so.
    pub fn new(
        arena: &Arc<Arena>,
        (lock, lockless_aging): Guard,
        memory: GuestMemory,
        lru: bool,
    ) -> Result<Self> {
        let builder = AddressSpace::builder(arena);
        let space = if lru { builder.lru(LruSettings::default()) } else { builder }.build()?;
        let vm = machine(&space, memory.bytes(), Backing::Anonymous, |vm| {
            vm.vcpus(memory.vcpus).baseline(Baseline::NONE.mmu_lock(lock).lockless_aging(lockless_aging))
        });
        Ok(Self { space, vm: vm.map_err(Error::Machine)?, memory })
    }

    /// Guest memory, as the host sees it.
    pub fn hvas(&self) -> Span<Hva> {
        hvas_of(self.pages())
    }

    pub fn pages(&self) -> Span<Gfn> {
        self.memory.pages()
    }

    /// vCPUs with empty TLBs, whose guests store a word to each page, or load it and compare.
    pub fn vcpus(&self, access: Access) -> Result<Vec<SoftwareVcpu<'_>>> {
        let stores = access == Access::Write;
        let uses = Uses { stores, finds: (!stores).then_some((0, stored)) };
        let vcpu = |number| {
            let vcpu = SoftwareVcpu::new(&self.vm, number, uses)?.untimed();
            Ok(vcpu.on(number as usize % agers_cpu().max(1)))
        };
        (0..self.memory.vcpus).map(vcpu).collect()
    }

    /// Each vCPU goes over its part, of which `which` says what to touch. Milliseconds that they took, from the line until the last
    /// was done.
    pub fn sweep(&self, access: Access, which: impl Fn(Gfn) -> bool + Sync) -> Result<f64> {
        let mut vcpus = self.vcpus(access)?;
        let pages = |part| gfns(part).filter(|&gfn| which(gfn));
        let jobs = vcpus.iter_mut().zip(self.memory.parts()).map(|(vcpu, part)| vcpu.job(pages(part), || ()));
        let stats = run(&Costs::SERVER, jobs.collect());
        all_went_well(&mut vcpus)?;
        Ok(stats.wall_ns as f64 / 1e6)
    }
}

/// The last one, which vCPUs leave to the ager, where there are two: a guest's time is then what the ager's *work* costs
/// it, not what its own want of processors does.
pub fn agers_cpu() -> usize {
    cpus() - 1
}
