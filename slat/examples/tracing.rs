//! Events of a VM as events of the crate `tracing`, for any collector of a program's traces.
//! Run it: `cargo run -p slat --example tracing`. A program has a subscriber already; this is the smallest one.

use slat::table::formats::Ept4;
use slat::trace::TraceEvent;
use slat::{
    Access, Fault, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, PAGE_SHIFT, Pfn, Slot, SlotId, VcpuId, Vm,
    Why,
};
use std::fmt::Debug;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// REPLACE: your host, with this `observe`.
struct Traced;

impl Host for Traced {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    // The thread may be inside a section, and then so is the subscriber: it may queue, but must not wait.
    fn observe(&self, event: TraceEvent) {
        match event {
            TraceEvent::Fault { vcpu, gfn, access, result } => {
                let result = result.name();
                tracing::trace!(target: "slat", vcpu = vcpu.0, gfn = gfn.0, ?access, result, "fault");
            }
            TraceEvent::Flush { gfns, cause, edits, pages } => {
                let cause = cause.name();
                tracing::debug!(target: "slat", first = gfns.start.0, edits, pages, cause, "flush");
            }
            other => tracing::trace!(target: "slat", "{other}"),
        }
    }
}

/// REPLACE: the subscriber of your program, such as that of `tracing-subscriber`.
struct Print;

impl Visit for Print {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        print!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Print {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        print!("{} {}:", event.metadata().level(), event.metadata().target());
        event.record(&mut Print);
        println!();
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(Print)?;
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Traced).build()?;
    let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
    vm.memory().commit(&mut idle, |tx| tx.create(ram))?;
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("it is run elsewhere")?;
    let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
    vm.change(&mut idle, ram.hvas(), Why::Migrate, |_| { /* the host changes its own table */ });
    Ok(())
}
