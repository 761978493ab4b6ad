//! The bundled traces in memory, cut into stretches, and the guest memory that they touch.

pub use crate::parts::mm_vm::POISON;
pub use crate::parts::sim_host::BASE;
use slat::{Format, Gfn, Gpa, Idle, PAGE_SIZE, Slot, SlotId, Vm};
use slat_cli::error::Error;
use slat_mm::{AddressSpace, Backing, HostView, Place, Prot};
use slat_vcpu::guest::Layout;
use slat_vcpu::trace::{Access, Bundled, bundled};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A trace in memory.
pub struct Trace {
    pub name: &'static str,
    /// Its accesses, in order.
    pub stretches: Vec<Arc<Vec<Access>>>,
    /// Where the regions begin that it touches.
    pub regions: Vec<u64>,
}

impl Trace {
    /// The first `most` accesses of the bundled ones, with `every` of them in a stretch.
    pub fn all(every: usize, most: usize) -> Result<Vec<Self>, Error> {
        let trace = |bundled: &Bundled| {
            let (mut reader, mut accesses) = (bundled.reader()?, Vec::new());
            reader.fill(&mut accesses, most)?;
            Ok(Self::new(bundled.name, &accesses, every))
        };
        bundled().iter().map(trace).collect()
    }

    /// These accesses, with `every` of them in a stretch.
    pub fn new(name: &'static str, accesses: &[Access], every: usize) -> Self {
        let region = |addr| addr / Layout::REGION * Layout::REGION;
        let regions: BTreeSet<u64> = accesses.iter().flat_map(ends).map(region).collect();
        let stretches = accesses.chunks(every).map(|stretch| Arc::new(stretch.to_vec())).collect();
        Self { name, stretches, regions: regions.into_iter().collect() }
    }

    /// For so many guests, each with a trace of its own: those beyond the first ones follow them, round robin.
    pub fn dealt(traces: Vec<Self>, guests: usize) -> Vec<Self> {
        let mut dealt: Vec<Self> = Vec::new();
        for (nth, trace) in traces.into_iter().enumerate() {
            if nth < guests {
                dealt.push(trace);
            } else {
                let before = &mut dealt[nth % guests];
                before.stretches.extend(trace.stretches);
                before.regions.extend(trace.regions);
                before.regions.sort_unstable();
                before.regions.dedup();
            }
        }
        dealt
    }

    /// The guest memory that its regions need. They lie one after the other, from guest address 0 on.
    pub fn bytes(&self) -> u64 {
        self.regions.len() as u64 * Layout::REGION
    }

    fn placed(&self) -> impl Iterator<Item = (u64, Gpa)> {
        (0..).zip(&self.regions).map(|(nth, &region)| (region, Gpa(nth * Layout::REGION)))
    }

    /// Where its regions lie in guest memory.
    pub fn layout(&self) -> Layout {
        let mut layout = Layout::new();
        self.placed().for_each(|(region, gpa)| layout.place(region, gpa));
        layout
    }

    /// The guest frames that it touches, in order, each with the number of accesses before.
    pub fn touched(&self) -> impl Iterator<Item = (u32, Gfn)> {
        let mut layout = self.layout();
        let accesses = (0..).zip(self.stretches.iter().flat_map(|stretch| stretch.iter()));
        let touched = accesses.flat_map(|(made, access)| ends(access).map(|addr| (made, addr)));
        // `regions` has all that it touches.
        touched.filter_map(move |(made, addr)| Some((made, layout.gpa(addr)?.gfn())))
    }

    /// Maps the guest's memory, and gives the VM a memslot for each region.
    pub fn place<F: Format>(
        &self,
        space: &AddressSpace,
        vm: &Vm<F, HostView>,
        idle: &mut Idle,
        log_dirty: bool,
    ) -> Result<(), Error> {
        for (nth, (_, gpa)) in (0..).zip(self.placed()) {
            let hva = BASE + gpa.0;
            space.mmap(Place::Fixed(hva), Layout::REGION, Prot::ReadWrite, Backing::Anonymous)?;
            let slot = Slot::new(SlotId(nth), gpa.gfn(), Layout::REGION / PAGE_SIZE, hva);
            vm.memory().commit(idle, |tx| tx.create(Slot { log_dirty, ..slot }))?;
        }
        Ok(())
    }

    /// Accesses of one pass.
    pub fn accesses(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.len() as u64).sum()
    }
}

/// The first byte and the last that an access touches.
fn ends(access: &Access) -> [u64; 2] {
    [access.addr, access.addr + u64::from(access.size) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_the_same_however_it_is_cut() {
        let (whole, cut) = (Trace::all(1 << 40, 1 << 40), Trace::all(300_000, 1 << 40));
        for (whole, cut) in whole.unwrap().iter().zip(&cut.unwrap()) {
            assert_eq!((whole.stretches.len(), whole.accesses()), (1, cut.accesses()), "{}", whole.name);
            let (last, full) = cut.stretches.split_last().unwrap();
            assert!(full.iter().all(|stretch| stretch.len() == 300_000) && last.len() <= 300_000);
            let joined = cut.stretches.iter().flat_map(|stretch| stretch.iter());
            assert!(joined.eq(whole.stretches[0].iter()));
            assert!(whole.regions == cut.regions && whole.regions.is_sorted());
        }
    }

    #[test]
    fn no_trace_is_left_out_where_guests_are_few() {
        let all = || Trace::all(1000, 1000).unwrap();
        let counts = |guests| Trace::dealt(all(), guests).iter().map(Trace::accesses).collect::<Vec<_>>();
        assert_eq!([counts(1), counts(2), counts(9)], [vec![3000], vec![2000, 1000], vec![1000; 3]]);
        let regions = |traces: &[Trace]| -> BTreeSet<u64> {
            traces.iter().flat_map(|trace| trace.regions.clone()).collect()
        };
        let one = Trace::dealt(all(), 1);
        assert!(regions(&one) == regions(&all()) && one[0].regions.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_part_of_a_trace_is_its_beginning() {
        for (whole, part) in Trace::all(1 << 40, 1 << 40).unwrap().iter().zip(&Trace::all(300, 1000).unwrap())
        {
            let lengths: Vec<_> = part.stretches.iter().map(|stretch| stretch.len()).collect();
            assert_eq!((lengths.as_slice(), part.accesses()), ([300, 300, 300, 100].as_slice(), 1000));
            let joined = part.stretches.iter().flat_map(|stretch| stretch.iter());
            assert!(joined.eq(&whole.stretches[0][..1000]));
        }
    }
}
