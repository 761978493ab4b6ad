use crate::table::formats::Npt4;
use crate::*;

const SLOT: SlotId = SlotId(0);

struct Identity;

impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

#[test]
fn each_taking_is_counted_and_looking_is_not() {
    let mut idle = Idle::take().unwrap();
    let rings = DirtyLog::ring(RingSize::new(4096).unwrap());
    for (dirty, ringed) in [(DirtyLog::default(), false), (rings, true)] {
        let vm = Vm::<Npt4, _>::builder(Identity).dirty_log(dirty).build().unwrap();
        let slot = Slot::new(SLOT, Gfn(0), 64, Hva(0x4000_0000)).log_dirty();
        let other = Slot::new(SlotId(1), Gfn(64), 64, Hva(0x5000_0000)).log_dirty();
        vm.memory()
            .commit(&mut idle, |tx| [slot, other].into_iter().try_for_each(|slot| tx.create(slot)))
            .unwrap();
        let slots = vm.memory();
        let first = slots.log_state(SLOT).unwrap();
        let since = |state| slots.log_state(SLOT).unwrap().takings_since(state);
        slots.mark_dirty_bits(SLOT, 0, &[1]).unwrap();
        slots.harvest_slots(&mut idle, [SlotId(1)]).unwrap().commit();
        assert_eq!(since(first), Some(0), "another slot");
        slots.harvest_slots(&mut idle, [SLOT, SlotId(1)]).unwrap().give_back();
        slots.harvest_all(&mut idle).unwrap().commit();
        assert_eq!(since(first), Some(2));
        slots
            .clear_dirty(&mut idle, SLOT, 0, 64, &[1])
            .map_or_else(|_| assert!(ringed), |_| assert!(!ringed));
        assert_eq!(since(first), Some(if ringed { 2 } else { 3 }));
        if ringed {
            vm.harvest_ring(&mut idle, VcpuId(0)).unwrap().commit();
            vm.reset_rings(&mut idle).unwrap();
            assert_eq!(since(first), Some(4));
        }
        let (_, log) = slots.look_up(SLOT).unwrap();
        let taking = slots.taking(log);
        let midst = slots.log_state(SLOT).unwrap();
        assert_eq!(midst.takings_since(first), None, "one is under way");
        drop(taking);
        assert_eq!(since(midst), None);
        assert!(since(first).is_some());
        assert!(slots.harvest_slots(&mut idle, [SLOT, SlotId(2)]).is_err(), "there is no such slot");
    }
}
