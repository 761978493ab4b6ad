//! Faults in another address space while a swap device takes 100 ms for each write.
//!
//! ```text
//! busy       an address space at its limit: each of its writes needs a page, which has to go to the device      another thread
//! elsewhere  an address space on the same arena and the same swap: fresh pages, and pages from compressed memory  measured
//! ```
//! The same accesses are measured without the busy thread, in the same rounds. The busy thread sleeps in the device, so that it takes
//! no processor from the measured thread.

use super::limited_guest::Blocks;
use crate::scenarios::threads_prelude::*;
use slat_mm::{Swap, SwapDevice};
use std::io;
use std::io::IoSlice;

/// The time of a write to the device.
const WRITE: Duration = Duration::from_millis(100);
/// For so many writes the faults elsewhere are measured.
const WRITES: u64 = 4;
/// Pages elsewhere.
const PAGES: u64 = 2048;
/// The limit of the busy address space, and what it writes to, in pages.
const LIMIT: u64 = 4 << 20;
const BUSY: u64 = 16 << 10;
/// The p99 of faults elsewhere may be so many times that without the device.
const BAR: f64 = 2.0;

/// One sample: percentiles of a fault, in nanoseconds, and what the busy one did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    fresh: [f64; 2],
    back: [f64; 2],
    writes: u64,
    wrong: u64,
}

/// A device in memory that takes its time.
#[derive(Debug, Default)]
struct Slow {
    blocks: Blocks,
    writes: AtomicU64,
}

impl SwapDevice for Slow {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.write_vectored_at(&[IoSlice::new(bytes)], offset)
    }

    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        thread::sleep(WRITE);
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>();
        self.writes.fetch_add(1, Relaxed);
        self.blocks.write_at(&bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.blocks.read_at(bytes, offset)
    }
}

/// The content that the busy guest writes: it does not compress.
fn noise(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    (0..PAGE_SIZE).map(|_| random.u8(..)).collect()
}

fn map(space: &AddressSpace, pages: u64) -> Result<(), MmError> {
    space.mmap(Place::Fixed(BASE), pages * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).map(drop)
}

/// Writes page after page until it is over, and then counts the pages that are not as they were written.
fn be_busy(space: &AddressSpace, over: &AtomicBool) -> Result<u64, MmError> {
    let Some(mut idle) = Idle::take() else { return Ok(1) };
    let mut written = 0;
    while written < BUSY && !over.load(Relaxed) {
        space.write(&mut idle, hva_of(Gfn(written)), &noise(written))?;
        written += 1;
    }
    // The first went, and come back.
    let mut bytes = vec![0; PAGE_SIZE as usize];
    let mut wrong = 0;
    for number in 0..written.min(64) {
        space.read(&mut idle, hva_of(Gfn(number)), &mut bytes)?;
        wrong += u64::from(bytes != noise(number));
    }
    Ok(wrong)
}

/// Median and p99, in nanoseconds.
fn percentiles(mut times: Vec<u64>) -> [f64; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| times.get(times.len() * percent / 100).map_or(0.0, |&time| time as f64))
}

/// Measures faults elsewhere, beside a busy one or not.
pub fn sample(busy: bool) -> Result<Sample> {
    pin(0);
    let idle = &mut idle()?;
    let arena = Arena::builder().limit((LIMIT + PAGES * PAGE_SIZE) * 4 + (64 << 20)).build()?;
    let device = Arc::new(Slow::default());
    let swap = Swap::builder().memory(4 << 20).device(device.clone(), BUSY * PAGE_SIZE).build(&arena)?;
    let elsewhere = AddressSpace::builder(&arena).swap(&swap).build()?;
    map(&elsewhere, PAGES)?;
    let other = AddressSpace::builder(&arena).swap(&swap).limit(LIMIT).build()?;
    map(&other, BUSY)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let thread = busy.then(|| scope.spawn(|| be_busy(&other, &over)));
        let (mut fresh, mut back) = (Vec::new(), Vec::new());
        let began = Instant::now();
        let mut measure = || -> Result<(), MmError> {
            // As long with no busy one.
            while began.elapsed() < WRITE * (WRITES as u32 + 1)
                || busy && device.writes.load(Relaxed) < WRITES
            {
                let fault = |idle: &mut Idle, times: &mut Vec<u64>, number, access| {
                    let began = Instant::now();
                    elsewhere.fault(idle, hva_of(Gfn(number)), access)?;
                    times.push(began.elapsed().as_nanos() as u64);
                    Ok::<_, MmError>(())
                };
                for number in 0..PAGES {
                    fault(idle, &mut fresh, number, Access::Write)?;
                    elsewhere.write(idle, hva_of(Gfn(number)), &number.to_le_bytes())?;
                }
                let all = Span::sized(BASE, PAGES * PAGE_SIZE);
                elsewhere.pageout(idle, all)?;
                (0..PAGES).try_for_each(|number| fault(idle, &mut back, number, Access::Read))?;
                elsewhere.dontneed(idle, all)?;
            }
            Ok(())
        };
        let measured = measure();
        over.store(true, Relaxed);
        let wrong = thread.map_or(Ok(0), |thread| thread.join().unwrap_or(Ok(1)))?;
        measured?;
        let writes = device.writes.load(Relaxed);
        Ok(Sample { fresh: percentiles(fresh), back: percentiles(back), writes, wrong })
    })
}

/// A kind of fault, and its percentiles.
type Kind = (&'static str, fn(&Sample) -> [f64; 2]);

/// Adds the rows, and what must hold: the bar on times where the run is `whole`, and not just a look at whether it works.
pub fn add_to(report: &mut Report, quiet: &[Sample], busy: &[Sample], whole: bool) {
    let kinds: [Kind; 2] =
        [("a fresh page", |sample| sample.fresh), ("a page from compressed memory", |sample| sample.back)];
    for (kind, of) in kinds {
        for (at, percentile) in ["median", "p99"].into_iter().enumerate() {
            let params = params! {
                "guest": "none",
                "limit": "none",
                "figure": format!("{kind}, {percentile}, beside a device with 100 ms a write"),
            };
            let [before, now] = [quiet, busy].map(|samples| Series::of(samples, |sample| of(sample)[at]));
            if whole && percentile == "p99" {
                let ratio = now.median() / before.median();
                report.checks.push(Check {
                    name: format!("{kind}, elsewhere: p99 at most 2 x that without the slow device"),
                    ok: ratio <= BAR,
                    detail: format!("{:.0} ns, and {:.0} ns: {ratio:.2} x", now.median(), before.median()),
                });
            }
            report.rows.push(Row::compare("no slow device", params, "ns", &before, &now));
        }
    }
    let (writes, wrong) = busy.iter().fold((0, 0), |sum, one| (sum.0 + one.writes, sum.1 + one.wrong));
    report.checks.push(Check {
        name: "the slow device wrote meanwhile, and gave back what it was given".into(),
        ok: busy.iter().all(|sample| sample.writes >= WRITES) && wrong == 0,
        detail: format!("{writes} writes, {wrong} pages wrong"),
    });
}
