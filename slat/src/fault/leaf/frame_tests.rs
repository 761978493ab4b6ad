//! A host that names impossible frames: each way of a page into the engine ends with an error, and maps nothing.

use crate::table::Word;
use crate::table::formats::{Arm64L39, Arm64L48, Ept4, Ept4NoAd, Npt4, Npt5, Pae, Sv39x4, Sv57x4};
use crate::*;
use std::sync::Mutex;
use std::vec::Vec;

const HVA: Hva = Hva(1 << 30);
/// The page that the host is wrong about.
const PAGE: Gfn = Gfn(5);

/// A host whose frame numbers are its page numbers, except for one page.
struct Wrong {
    page: Mutex<Option<HostPage>>,
    answers: bool,
}

impl Host for Wrong {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let right = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN };
        let wrong = hva == HVA + PAGE.gpa().0;
        self.answers.then(|| self.page.lock().unwrap().filter(|_| wrong).unwrap_or(right))
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        Ok(Self { page: Mutex::new(*self.page.lock().unwrap()), answers: true }.lookup(hva, access).unwrap())
    }
}

/// Pages that a table of this format cannot map.
fn impossible<F: Format>() -> Vec<HostPage> {
    let last = F::pfn(Word(F::ADDRESS));
    let page = |pfn, level| HostPage { pfn: Pfn(pfn), level, ..HostPage::PLAIN };
    std::vec![
        page(last.0 + 1, Level::K4),
        page(u64::MAX, Level::K4),
        page(1 << 63 | 7, Level::K4),
        page(513, Level::M2),
        page(512 + PAGE.0 + 1, Level::M2),
        page((last.0 + 1) | PAGE.0, Level::M2),
    ]
}

/// A VM, of which a vCPU has mapped the pages before [`PAGE`], and so remembers the table.
fn vm<F: Format>(idle: &mut Idle, answers: bool) -> Vm<F, Wrong> {
    let vm = Vm::<F, _>::builder(Wrong { page: Mutex::new(None), answers }).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1024, HVA))).unwrap();
    vm
}

const REFUSED: Result<Next, FaultError> = Err(FaultError::Host(HostError::BadFrame));

/// Returns the impossible pages that were mapped or held, in every way, as `way: page`.
fn mapped<F: Format>() -> Vec<std::string::String> {
    let mut idle = Idle::take().unwrap();
    let mut wrong = Vec::new();
    for page in impossible::<F>() {
        let mut note = |way: &str, is_right: bool| {
            if !is_right {
                wrong.push(std::format!("{} {way}: {page:?}", F::NAME));
            }
        };
        for answers in [false, true] {
            let vm = vm::<F>(&mut idle, answers);
            let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
            for gfn in 0..3 {
                let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write }).unwrap();
            }
            *vm.host().page.lock().unwrap() = Some(page);
            let store = Fault { gpa: PAGE.gpa(), access: Access::Write };
            note("fault", vcpu.fault(&mut idle, store) == REFUSED);
            let range = Span::sized(PAGE, 1);
            note("prefault", vcpu.prefault(&mut idle, range, Prefault::OLD).is_err());
            // The size of the page does not matter to a frame that is held alone, but the host's error does.
            note("hold", vm.memory().hold(&mut idle, PAGE, Access::Write).is_err());
            note("leaf", vm.memory().translate(&mut idle, PAGE).is_none());
            // The right page again, to read; then the host tells that the wrong one is there.
            let readable = HostPage { pfn: Pfn((HVA.0 >> PAGE_SHIFT) + PAGE.0), writable: false, ..page };
            *vm.host().page.lock().unwrap() = Some(HostPage { level: Level::K4, ..readable });
            let _ = vcpu.fault(&mut idle, Fault { access: Access::Read, ..store }).unwrap();
            let hvas = Span::sized(HVA + PAGE.gpa().0, PAGE_SIZE);
            let mut change = vm.invalidate(hvas, Reason::ChangePte);
            change.changed(&mut idle, hvas, Some(HostPage { writable: false, ..page })).settle();
            drop(change);
            note("change", vm.memory().translate(&mut idle, PAGE).is_none());
        }
    }
    wrong
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_frame_that_the_format_cannot_hold_is_an_error_of_the_host() {
    let mut wrong = mapped::<Npt4>();
    wrong.extend([mapped::<Ept4>(), mapped::<Ept4NoAd>(), mapped::<Npt5>()].concat());
    wrong.extend([mapped::<Pae>(), mapped::<Arm64L39>(), mapped::<Arm64L48>()].concat());
    wrong.extend([mapped::<Sv39x4>(), mapped::<Sv57x4>()].concat());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_frame_of_the_format_is_mapped() {
    fn last<F: Format>() {
        let mut idle = Idle::take().unwrap();
        let vm = vm::<F>(&mut idle, true);
        let last = F::pfn(Word(F::ADDRESS));
        *vm.host().page.lock().unwrap() = Some(HostPage { pfn: last, ..HostPage::PLAIN });
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, Fault { gpa: PAGE.gpa(), access: Access::Write }).unwrap();
        assert_eq!(vm.memory().translate(&mut idle, PAGE).unwrap().leaf.pfn, last, "{}", F::NAME);
    }
    last::<Npt4>();
    last::<Ept4>();
    last::<Pae>();
    last::<Arm64L48>();
    last::<Sv39x4>();
}
