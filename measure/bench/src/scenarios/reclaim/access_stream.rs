//! The accesses of the guests: the bundled traces and the program with phases; and the order of the accesses to each page.

use crate::scenarios::threads_prelude::*;
use crate::threads::traces::Trace;
use slat_vcpu::guest::{Phases, PhasesSettings};
use slat_vcpu::trace::Access;

/// Accesses that the guest is given at once; between two batches the bench looks at the memory in use.
const BATCH: usize = 4096;

/// The bundled traces and the program with phases; of each the first `most` accesses.
pub fn traces(most: usize) -> Result<Vec<Trace>, Error> {
    let phases: Vec<Access> = Phases::new(PhasesSettings::default()).take(most).collect();
    let mut all = Trace::all(BATCH, most)?;
    all.push(Trace::new("phases", &phases, BATCH));
    Ok(all)
}

/// Which guest frame is accessed when. A frame that is accessed several times running appears once.
pub struct Stream {
    /// Guest frames, by number.
    pub gfns: Vec<u32>,
    /// For each: how many accesses came before the one that touches it.
    pub made: Vec<u32>,
    /// All frames have numbers below this.
    pub end: usize,
    /// How many different frames there are.
    pub distinct: usize,
}

impl Stream {
    /// Of this trace.
    pub fn new(trace: &Trace) -> Self {
        let end = (trace.bytes() / PAGE_SIZE) as usize;
        let mut stream = Self { gfns: Vec::new(), made: Vec::new(), end, distinct: 0 };
        let mut seen = vec![false; end];
        for (made, Gfn(gfn)) in trace.touched() {
            if stream.gfns.last() != Some(&(gfn as u32)) {
                stream.gfns.push(gfn as u32);
                stream.made.push(made);
                stream.distinct += usize::from(!std::mem::replace(&mut seen[gfn as usize], true));
            }
        }
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat_vcpu::guest::Layout;
    use slat_vcpu::trace::Kind;

    #[test]
    fn a_stream_has_every_page_of_every_access_in_order() {
        let access = |addr, size| Access { addr, size, kind: Kind::Load };
        let region = Layout::REGION;
        let accesses = vec![
            access(3 * region, 8),
            access(3 * region + 8, 8),
            access(3 * region + 4095, 2),
            access(8 * region - 4, 8),
            access(3 * region, 1),
        ];
        let trace = Trace::new("test", &accesses, accesses.len());
        assert_eq!(trace.regions, [3 * region, 7 * region, 8 * region]);
        let stream = Stream::new(&trace);
        assert_eq!(stream.gfns, [0, 1, 2 * 4096 - 1, 2 * 4096, 0]);
        assert_eq!(stream.made, [0, 2, 3, 3, 4]);
        assert_eq!((stream.end, stream.distinct), (3 * 4096, 4));
    }

    #[test]
    fn all_work_is_there_and_cut_where_it_is_told() {
        let traces = traces(1000).unwrap();
        let names: Vec<_> = traces.iter().map(|trace| trace.name).collect();
        assert_eq!(names, ["cc1", "sort", "boot", "phases"]);
        assert!(traces.iter().all(|trace| trace.accesses() == 1000 && Stream::new(trace).distinct > 10));
    }
}
