//! The vCPU as an instruction sees it.

use crate::caches::Cached;
use crate::walker::walk;
use crate::window::Window;
use slat::{Access, Fault, Format, Gpa, Host, PAGE_SIZE, Pfn, Vm};

/// The vCPU as an instruction sees it: accesses to guest-physical memory.
pub struct Core<'c, F: Format, H: Host> {
    vm: &'c Vm<F, H>,
    caches: &'c mut Cached,
    window: Window,
    root: Pfn,
}

impl<'c, F: Format, H: Host> Core<'c, F, H> {
    pub(super) fn new(vm: &'c Vm<F, H>, caches: &'c mut Cached, window: Window, root: Pfn) -> Self {
        Self { vm, caches, window, root }
    }

    /// Loads from guest memory; may cross pages. On a fault `into` may be partly filled.
    #[inline]
    pub fn load(&mut self, gpa: Gpa, into: &mut [u8]) -> Result<(), Fault> {
        self.access(gpa, into.len(), Access::Read, |window, pfn, offset, part| {
            window.read(pfn, offset, &mut into[part]);
        })
    }

    /// Fetches instructions from guest memory: a load that needs execute permission.
    #[inline]
    pub fn fetch(&mut self, gpa: Gpa, into: &mut [u8]) -> Result<(), Fault> {
        self.access(gpa, into.len(), Access::Fetch, |window, pfn, offset, part| {
            window.read(pfn, offset, &mut into[part]);
        })
    }

    /// Stores to guest memory. A fault writes nothing: all pages are translated first.
    #[inline]
    pub fn store(&mut self, gpa: Gpa, from: &[u8]) -> Result<(), Fault> {
        if gpa.offset() + from.len() as u64 > PAGE_SIZE {
            self.access(gpa, from.len(), Access::Write, |_, _, _, _| {})?;
        }
        self.access(gpa, from.len(), Access::Write, |window, pfn, offset, part| {
            window.write(pfn, offset, &from[part]);
        })
    }

    /// Atomically loads a naturally aligned word.
    pub fn load_word(&mut self, gpa: Gpa) -> Result<u64, Fault> {
        let (pfn, offset) = self.translate(gpa, Access::Read)?;
        Ok(self.window.load_word(pfn, offset))
    }

    /// Atomically stores `new` to such a word if it is `old`; otherwise returns the word.
    pub fn exchange_word(&mut self, gpa: Gpa, old: u64, new: u64) -> Result<Result<u64, u64>, Fault> {
        let (pfn, offset) = self.translate(gpa, Access::Write)?;
        Ok(self.window.exchange_word(pfn, offset, old, new))
    }

    /// Returns the frame for an access to `gpa`, from the caches or a walk.
    pub fn frame_of(&mut self, gpa: Gpa, access: Access) -> Result<Pfn, Fault> {
        self.translate(gpa, access).map(|(pfn, _)| pfn)
    }

    /// Translates page by page, and calls `copy` for each part.
    #[inline(always)]
    fn access(
        &mut self,
        gpa: Gpa,
        len: usize,
        access: Access,
        mut copy: impl FnMut(&Window, Pfn, u64, core::ops::Range<usize>),
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = gpa + done as u64;
            let part = ((PAGE_SIZE - at.offset()) as usize).min(len - done);
            let (pfn, offset) = self.translate(at, access)?;
            copy(&self.window, pfn, offset, done..done + part);
            done += part;
        }
        Ok(())
    }

    /// Returns the frame of `gpa`, and the offset in it.
    #[inline(always)]
    fn translate(&mut self, gpa: Gpa, access: Access) -> Result<(Pfn, u64), Fault> {
        let gfn = gpa.gfn();
        let hit = if let Some(hit) = self.caches.tlb.lookup(gfn, access) {
            hit
        } else {
            // SAFETY: in guest mode, and without an answer since the step began; earlier answered flushes have
            // removed what they covered from the caches.
            let found =
                unsafe { walk::<F, _>(self.vm.tables(), self.root, &mut self.caches.psc, gpa, access) }?;
            self.caches.tlb.insert(gfn, found);
            found
        };
        let inside = gfn.0 & (hit.level.pages() - 1);
        Ok((hit.pfn + inside, gpa.offset()))
    }
}

impl<F: Format, H: Host> std::fmt::Debug for Core<'_, F, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}
