//! One lap: an entrant on the course, timed, and then checked.
//!
//! An entrant is built anew for each lap. Its threads are pinned, take their handles, and meet at a line
//! before and after every timed stretch, so no thread unmaps or checks while another is being timed. The timed
//! stretch is one loop over the thread's frames, compiled once per entrant; building, handles, unmapping and
//! checking all lie outside it.

use crate::scenarios::threads_prelude::*;
use crate::threads::harness::Line;

pub use crate::threads::arithmetic::frame_of as backing;

/// A mapper as its crate offers it: one owner at a time.
pub trait Peer: Send + Sync + 'static {
    /// The crate, and which of its types.
    const NAME: &'static str;
    /// An empty table.
    fn new() -> Self;
    /// Maps one page to its [`backing`](backing); false if the crate refuses.
    fn map(&mut self, gfn: Gfn) -> bool;
    /// Unmaps one page and keeps its table.
    fn unmap(&mut self, gfn: Gfn);
    /// The frame of a mapped page.
    fn translate(&self, gfn: Gfn) -> Option<Pfn>;
}

/// A table, however guarded, that many vCPUs fault into.
pub trait Contender: Sync {
    /// The handle of vCPU `thread`. Called on the vCPU's own thread, outside the timed stretch.
    fn vcpu(&self, thread: usize) -> impl Vcpu;
}

/// One vCPU's handle on a [`Contender`].
pub trait Vcpu {
    /// The timed operation: maps `gfn`, which is not mapped, to its [`backing`]. True if it did.
    fn fault(&mut self, gfn: Gfn) -> bool;
    /// Unmaps `gfns`, all of them mapped, and keeps the tables.
    fn clear(&mut self, gfns: Span<Gfn>);
    /// The frame that the table holds for `gfn`.
    fn translate(&mut self, gfn: Gfn) -> Option<Pfn>;
}

/// The frames to fault in: for each vCPU its share, and the share's frames in the order of the faults.
pub struct Course {
    /// Disjoint, and none of them empty.
    pub shares: Vec<(Span<Gfn>, Vec<Gfn>)>,
}

/// The outcome of one lap.
pub struct RaceTimes {
    /// Nanoseconds per fault into an empty table.
    pub cold: f64,
    /// Nanoseconds per fault with all tables present.
    pub present: f64,
    /// The counts of the checks.
    pub tally: Vec<Tally>,
}

/// An entrant: it can run a lap.
pub struct Entrant {
    /// Name in the report.
    pub name: String,
    /// The patch series that a comparison with this entrant answers.
    pub series: Option<PatchSeries>,
    /// Runs one lap.
    pub lap: Box<dyn Fn(&Course) -> RaceTimes>,
}

impl Course {
    /// How many vCPUs run it.
    pub fn vcpus(&self) -> usize {
        self.shares.len()
    }

    /// The frames from the first share's first to the last share's last.
    pub fn gfns(&self) -> Span<Gfn> {
        self.shares.iter().fold(Span::new(Gfn(0), Gfn(0)), |all, (span, _)| all.hull(span))
    }
}

impl Entrant {
    /// The entrant that `build` makes for a course.
    pub fn new<C: Contender>(name: impl Into<String>, build: impl Fn(&Course) -> C + 'static) -> Self {
        Self { name: name.into(), series: None, lap: Box::new(move |course| lap(&build(course), course)) }
    }
}

fn lap<C: Contender>(contender: &C, course: &Course) -> RaceTimes {
    let line = Line::new(course.shares.len());
    let threads: Vec<RaceTimes> = thread::scope(|scope| {
        let runners: Vec<_> = (course.shares.iter().enumerate())
            .map(|(thread, (span, gfns))| {
                let line = &line;
                slat_cli::thread::start(scope, move || {
                    pin(thread);
                    share(contender.vcpu(thread), *span, gfns, line)
                })
            })
            .collect();
        // A runner that panics takes the process with it: its fellows would wait at the line for ever.
        runners.into_iter().map(|runner| runner.join().expect("a vCPU thread panicked")).collect()
    });

    let mean = |figure: fn(&RaceTimes) -> f64| threads.iter().map(figure).sum::<f64>() / threads.len() as f64;
    let (cold, present) = (mean(|lap| lap.cold), mean(|lap| lap.present));
    RaceTimes { cold, present, tally: threads.into_iter().flat_map(|lap| lap.tally).collect() }
}

/// One thread's part of a lap.
fn share(mut vcpu: impl Vcpu, span: Span<Gfn>, gfns: &[Gfn], line: &Line) -> RaceTimes {
    let mut tally = Vec::new();
    let cold = pass(&mut vcpu, gfns, line, &mut tally);
    vcpu.clear(span);
    tally.push((
        "sampled pages are gone between the passes",
        sampled(gfns, |gfn| vcpu.translate(gfn).is_none()),
    ));
    let present = pass(&mut vcpu, gfns, line, &mut tally);
    RaceTimes { cold, present, tally }
}

/// Faults in every frame once; returns nanoseconds per fault.
fn pass(vcpu: &mut impl Vcpu, gfns: &[Gfn], line: &Line, tally: &mut Vec<Tally>) -> f64 {
    line.cross();
    let start = Instant::now();
    let installed = faults(vcpu, gfns);
    let elapsed = start.elapsed();
    line.cross();

    let right = sampled(gfns, |gfn| vcpu.translate(gfn) == Some(backing(gfn)));
    tally.extend([
        ("every fault installed a page", [black_box(installed), gfns.len() as u64]),
        ("sampled pages translate to their frames", right),
    ]);
    elapsed.as_nanos() as f64 / gfns.len() as f64
}

/// The loop that is timed: a function of its own, so that what an entrant keeps in registers is not what this file leaves of them.
#[inline(never)]
fn faults(vcpu: &mut impl Vcpu, gfns: &[Gfn]) -> u64 {
    gfns.iter().map(|&gfn| u64::from(vcpu.fault(gfn))).sum()
}

/// Of about a thousand frames, spread over all, those that are as `holds` says; and how many there are.
fn sampled(gfns: &[Gfn], mut holds: impl FnMut(Gfn) -> bool) -> [u64; 2] {
    let all = gfns.iter().step_by(gfns.len().div_ceil(1000));
    all.fold([0; 2], |[good, of], &gfn| [good + u64::from(holds(gfn)), of + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map that can break each of the three checks.
    #[derive(Default)]
    struct Liar {
        pages: Mutex<BTreeMap<Gfn, Pfn>>,
        skips: bool,
        misplaces: bool,
        keeps: bool,
    }

    impl Contender for Liar {
        fn vcpu(&self, _thread: usize) -> impl Vcpu {
            self
        }
    }

    impl Vcpu for &Liar {
        fn fault(&mut self, gfn: Gfn) -> bool {
            let odd = gfn.0 % 2;
            let frame = backing(gfn) + if self.misplaces { odd } else { 0 };
            !(self.skips && odd == 1) && self.pages.lock().insert(gfn, frame).is_none()
        }

        fn clear(&mut self, gfns: Span<Gfn>) {
            if !self.keeps {
                self.pages.lock().retain(|&gfn, _| !gfns.contains(gfn));
            }
        }

        fn translate(&mut self, gfn: Gfn) -> Option<Pfn> {
            self.pages.lock().get(&gfn).copied()
        }
    }

    /// Two vCPUs of 100 pages: pages installed, right and gone, each of how many.
    fn tally(build: impl Fn(&Course) -> Liar + 'static) -> [[u64; 2]; 3] {
        let shares =
            [0, 512].map(|first| (Span::sized(Gfn(first), 100), (first..first + 100).map(Gfn).collect()));
        let lap = (Entrant::new("liar", build).lap)(&Course { shares: shares.to_vec() });
        ["installed", "translate", "gone"].map(|name| {
            let of = lap.tally.iter().filter(|(what, _)| what.contains(name));
            of.fold([0; 2], |sum, (_, counts)| [sum[0] + counts[0], sum[1] + counts[1]])
        })
    }

    #[test]
    fn an_honest_lap_passes_every_check() {
        assert_eq!(tally(|_| Liar::default()), [[400; 2], [400; 2], [200; 2]]);
    }

    #[test]
    fn each_kind_of_lie_is_found() {
        let holds = |liar: fn() -> Liar| tally(move |_| liar()).map(|[good, of]| good == of);
        assert_eq!(holds(|| Liar { skips: true, ..Liar::default() })[..2], [false, false]);
        assert_eq!(holds(|| Liar { misplaces: true, ..Liar::default() })[..2], [true, false]);
        let [installed, _, gone] = holds(|| Liar { keeps: true, ..Liar::default() });
        assert!(!installed && !gone);
    }
}
