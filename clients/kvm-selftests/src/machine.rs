//! A VM: the engine, and the settings of its VMM.

use crate::abi;
use crate::attributes::Attributes;
use crate::capabilities::{NX_PERIOD, SLOTS, VCPUS};
use crate::process_host::{Engine, Process};
use crate::ring::Ring;
use crate::shared::Shared;
use kvm_bindings::{KVM_X86_DEFAULT_VM, KVM_X86_SW_PROTECTED_VM};
use slat::table::formats::Ept4;
use slat::{DirtyLog, Idle, OwnedVcpu, RingSize, VcpuId, Vm};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, RwLock, Weak};

const PAGE: usize = slat::PAGE_SIZE as usize;

/// A vCPU of the engine, its shared memory, and its ring.
pub type NewVcpu = (OwnedVcpu<Ept4, Process>, Arc<Shared>, Option<Arc<Mutex<Ring>>>);

/// A VM, and its VMM's settings.
pub struct Machine {
    vm: Arc<Engine>,
    /// The engine in its place after `KVM_CAP_VM_DISABLE_NX_HUGE_PAGES`.
    executing: OnceLock<Arc<Engine>>,
    /// In a VM that can have private memory.
    pub private: Option<RwLock<Attributes>>,
    /// Held while slots or attributes change, as KVM's `slots_lock`.
    pub slots: Mutex<()>,
    has_vcpus: AtomicBool,
    /// Whether the guest's `KVM_HC_MAP_GPA_RANGE` exits to the VMM.
    pub hypercalls_exit: AtomicBool,
    pub dirty: Mutex<Chosen>,
    pub rings: Mutex<HashMap<VcpuId, Arc<Mutex<Ring>>>>,
}

pub struct Chosen {
    /// Whether `KVM_CLEAR_DIRTY_LOG`, not `KVM_GET_DIRTY_LOG`, clears the log.
    pub manual: bool,
    pub log: DirtyLog,
    pub ring: Option<RingSize>,
}

impl Machine {
    pub fn new(kind: u64) -> Result<Self, c_int> {
        let private = match u32::try_from(kind).map_err(|_| libc::EINVAL)? {
            KVM_X86_DEFAULT_VM => None,
            KVM_X86_SW_PROTECTED_VM => Some(RwLock::default()),
            _ => return Err(libc::EINVAL),
        };
        let (manual, log, ring) = (false, DirtyLog::bitmap(), None);
        let vm = engine(NX_PERIOD.is_some())?;
        let dirty = Mutex::new(Chosen { manual, log, ring });
        let (slots, rings) = (Mutex::default(), Mutex::default());
        let (has_vcpus, hypercalls_exit) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { vm, executing: OnceLock::new(), private, slots, has_vcpus, hypercalls_exit, dirty, rings })
    }

    pub fn vm(&self) -> &Arc<Engine> {
        self.executing.get().unwrap_or(&self.vm)
    }

    /// Makes the engine's part of a vCPU, and its ring, in memory that `share` maps: as many pages as it is told.
    pub fn vcpu(
        &self,
        id: VcpuId,
        share: impl FnOnce(usize) -> Result<Shared, c_int>,
    ) -> Result<NewVcpu, c_int> {
        let size = self.dirty.lock().unwrap().ring;
        {
            let _changing = self.slots.lock().unwrap();
            self.has_vcpus.store(true, Ordering::SeqCst);
        }
        let vcpu = self.vm().owned_vcpu(id).ok_or(if id.0 < VCPUS { libc::EEXIST } else { libc::EINVAL })?;
        let entries = size.map_or(0, |size| size.entries() as usize);
        let pages = if entries == 0 {
            abi::RUN_PAGES
        } else {
            abi::RING_PAGE + entries * RingSize::ENTRY as usize / PAGE
        };
        let shared = Arc::new(share(pages)?);
        let ring = size.map(|_| Arc::new(Mutex::new(Ring::new(shared.clone(), entries))));
        self.rings.lock().unwrap().extend(ring.clone().map(|ring| (id, ring)));
        Ok((vcpu, shared, ring))
    }

    /// A VM has this policy from its beginning, so another takes its place, before the first vCPU as in KVM.
    pub fn let_large_pages_execute(&self, idle: &mut Idle) -> Result<(), c_int> {
        let _changing = self.slots.lock().unwrap();
        if self.has_vcpus.load(Ordering::SeqCst) || self.private.is_some() {
            return Err(libc::EINVAL);
        }
        let (vm, mut slots) = (engine(false)?, Vec::new());
        self.vm().memory().for_each(idle, |slot| slots.push(slot));
        let copied = vm.memory().commit(idle, |tx| slots.iter().try_for_each(|slot| tx.create(*slot)));
        copied.map_err(|error| error.errno())?;
        self.executing.set(vm).map_err(|_| libc::EINVAL)
    }
}

/// A VM in which large pages do not execute, or do.
fn engine(nx: bool) -> Result<Arc<Engine>, c_int> {
    let builder = Vm::builder(Process).vcpus(VCPUS).max_slots(SLOTS).nx_huge_pages(nx);
    Ok(counted(Arc::new(builder.dirty_log(DirtyLog::bitmap()).build().map_err(|_| libc::ENOMEM)?)))
}

/// The VMs for which no line was printed yet.
static LIVE: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());
static REPORTS: Once = Once::new();

/// Has the statistics of a VM printed when it goes, or when the process ends, if `run` asks for them.
fn counted(vm: Arc<Engine>) -> Arc<Engine> {
    extern "C" fn report() {
        LIVE.lock().unwrap().iter().filter_map(Weak::upgrade).for_each(|vm| print(&vm));
    }
    if std::env::var_os("SLAT_STATS").is_some() {
        // SAFETY: `report` may run at any time.
        REPORTS.call_once(|| _ = unsafe { libc::atexit(report) });
        LIVE.lock().unwrap().push(Arc::downgrade(&vm));
    }
    vm
}

/// A line for `run` to add up.
fn print(vm: &Engine) {
    let stats = vm.stats();
    let faults = stats.mapped_faults + stats.permission_faults + stats.spurious_faults;
    let (devices, flushes, splits) = (stats.mmio_faults, stats.flushes.paid, stats.splits[0]);
    eprintln!("slat: {faults} faults, {devices} of devices, {flushes} flushes, {splits} splits");
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut live = LIVE.lock().unwrap();
        if let Some(at) = live.iter().position(|vm| std::ptr::eq(vm.as_ptr(), Arc::as_ptr(self.vm()))) {
            live.swap_remove(at);
            print(self.vm());
        }
    }
}
