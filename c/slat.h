/* slat: second-level address translation. Made from c/src by cbindgen: do not edit. */

#ifndef SLAT_H
#define SLAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every function but slat_strerror, slat_harvest_pages and slat_vcpu_kicked answers a slat_status, 0 for success. "The
 * token" is the slat_thread of the calling thread. An argument that is null, unless its comment allows it, is
 * SLAT_EINVAL, and so are unknown numbers and addresses or sizes that are no multiple of 4096. Not checked: that handles
 * are live, and other pointers good. */

// Flag of a memslot: writes are logged.
#define SLAT_SLOT_LOG_DIRTY 1

// Flag of a memslot: guest writes are refused, and come out as `SLAT_MMIO`.
#define SLAT_SLOT_READONLY 2

// Flag of a page: loads are allowed.
#define SLAT_PAGE_READ 1

// Flag of a page: stores are allowed.
#define SLAT_PAGE_WRITE 2

// Flag of a page: fetches are allowed.
#define SLAT_PAGE_EXECUTE 4

// Flag of a mapping: its Accessed bit.
#define SLAT_PAGE_ACCESSED 8

// Flag of a mapping: its Dirty bit.
#define SLAT_PAGE_DIRTY 16

// Flag of a VM: stores are found by Dirty bits, where the format has them, and not by write protection.
#define SLAT_VM_DIRTY_BITS 1

// Flag of a VM: a fresh dirty log says of every page that it is dirty, and costs nothing to begin.
#define SLAT_VM_DIRTY_INITIALLY_SET 2

// Flag of a VM: large pages do not execute; a fetch splits its page down to 4 KiB.
#define SLAT_VM_NX_HUGE_PAGES 4

// How a call went. The numbers are those of Linux's errno.
enum slat_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    SLAT_OK = 0,
    // The thread token belongs to another thread.
    SLAT_EPERM = 1,
    // There is no such memslot, log, vCPU or mapping.
    SLAT_ENOENT = 2,
    // The host could not read the page back. Another try may succeed.
    SLAT_EIO = 5,
    // It would have to wait for other invalidations to end, or for memory: try again.
    SLAT_EAGAIN = 11,
    // No memory.
    SLAT_ENOMEM = 12,
    // The host maps nothing there for this access.
    SLAT_EFAULT = 14,
    // A handle is in use: by another call, by a vCPU in the guest, or by handles that were made from it.
    SLAT_EBUSY = 16,
    // Memslots would overlap, or the id is taken.
    SLAT_EEXIST = 17,
    // An argument is out of range: a null pointer, an address that is no multiple of 4096, an unknown number.
    SLAT_EINVAL = 22,
    // slat panicked, which is a bug in slat: what it was is on stderr. Free what there is, and do not go on.
    SLAT_EPANIC = 131,
    // The page's memory is broken.
    SLAT_EPOISONED = 133,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_status slat_status;
#else
typedef uint32_t slat_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a fault was dealt with: the guest may try again, except after `SLAT_MMIO`.
enum slat_done
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A page was mapped.
    SLAT_MAPPED = 0,
    // The permission was given back, in place.
    SLAT_FIXED = 1,
    // Another vCPU had dealt with it already.
    SLAT_SPURIOUS = 2,
    // No memslot is there, or the guest wrote to a read-only one: emulate the access.
    SLAT_MMIO = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_done slat_done;
#else
typedef uint32_t slat_done;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A page-table format.
enum slat_format
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Intel's EPT, 4 levels.
    SLAT_EPT4 = 0,
    // Intel's EPT, 5 levels.
    SLAT_EPT5 = 1,
    // EPT of a processor that sets no Accessed and Dirty bits.
    SLAT_EPT4_NO_AD = 2,
    // AMD's nested tables, 4 levels.
    SLAT_NPT4 = 3,
    // AMD's nested tables, 5 levels.
    SLAT_NPT5 = 4,
    // PAE: AMD's nested tables of a 32-bit host.
    SLAT_PAE = 5,
    // Arm's stage 2, 39 bits of guest address.
    SLAT_ARM64_39 = 6,
    // Arm's stage 2, 40 bits.
    SLAT_ARM64_40 = 7,
    // Arm's stage 2, 48 bits.
    SLAT_ARM64_48 = 8,
    // Arm's stage 2, 48 bits, of a processor that sets no Access flag and dirty state.
    SLAT_ARM64_48_NO_AD = 9,
    // RISC-V's G-stage, 3 levels.
    SLAT_SV39X4 = 10,
    // RISC-V's G-stage, 4 levels.
    SLAT_SV48X4 = 11,
    // RISC-V's G-stage, 5 levels.
    SLAT_SV57X4 = 12,
    // RISC-V's G-stage, 3 levels, of a processor without Svadu.
    SLAT_SV39X4_NO_AD = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_format slat_format;
#else
typedef uint32_t slat_format;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What an access wants.
enum slat_access
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A data load.
    SLAT_READ = 0,
    // A data store.
    SLAT_WRITE = 1,
    // An instruction fetch.
    SLAT_FETCH = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_access slat_access;
#else
typedef uint32_t slat_access;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why the host changes a range. The reason decides how little is done: slat's ARCHITECTURE.md has the table.
enum slat_why
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The mapping goes away: munmap.
    SLAT_UNMAP = 0,
    // The mapping moves to another address: mremap, for the old range.
    SLAT_REMAP = 1,
    // The address space itself goes away.
    SLAT_EXIT = 2,
    // The pages go away, the mapping stays.
    SLAT_CLEAR = 3,
    // A page moves to another frame with its contents.
    SLAT_MIGRATE = 4,
    // Some pages go to swap; page by page.
    SLAT_RECLAIM = 5,
    // A mapping loses write permission.
    SLAT_PROTECT = 6,
    // Pages lose write permission: fork, write-back.
    SLAT_WRITE_PROTECT = 7,
    // The same, to learn which pages are written from now on.
    SLAT_SOFT_DIRTY = 8,
    // Some pages become inaccessible, to learn who uses them; page by page.
    SLAT_NUMA = 9,
    // Some pages are replaced by others with the same contents; page by page.
    SLAT_CHANGE_PTE = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_why slat_why;
#else
typedef uint32_t slat_why;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What to do with the Accessed bits of a range.
enum slat_young_how
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Only look; the first one found ends it.
    SLAT_TEST_YOUNG = 0,
    // Clear them. A TLB may keep a copy that says accessed: the next access is then not noticed.
    SLAT_CLEAR_YOUNG = 1,
    // Clear them, and make every TLB forget: waits for vCPUs in the guest.
    SLAT_CLEAR_YOUNG_AND_FLUSH = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_young_how slat_young_how;
#else
typedef uint32_t slat_young_how;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a memslot operation does.
enum slat_slot_op_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Adds the slot.
    SLAT_SLOT_CREATE = 0,
    // Removes the slot of this id; the other fields are not looked at.
    SLAT_SLOT_DELETE = 1,
    // Moves the slot of this id to `gpa`; the other fields are not looked at.
    SLAT_SLOT_MOVE = 2,
    // Gives the slot of this id `flags`. `SLAT_SLOT_READONLY` must be as it was created.
    SLAT_SLOT_FLAGS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_slot_op_kind slat_slot_op_kind;
#else
typedef uint32_t slat_slot_op_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A change in the host's tables. One call at a time has it, from any thread.
typedef struct slat_change slat_change;

// What was taken from the dirty log of a slot. Any thread may read it.
typedef struct slat_harvest slat_harvest;

// A thread's token, which whatever may wait asks for. One for each thread, used by this thread alone.
typedef struct slat_thread slat_thread;

// A vCPU. One call at a time has it, from any thread; from `slat_vcpu_enter` to `slat_vcpu_leave` it is that thread's.
typedef struct slat_vcpu slat_vcpu;

// A virtual machine: memslots, and the page table of one format. Any thread may use it.
typedef struct slat_vm slat_vm;

// How a VM is made. Zero in a field means what its comment says; set `size`, and zero the rest.
typedef struct slat_config {
    // `sizeof(struct slat_config)`: tells versions of this structure apart.
    size_t size;
    // The page-table format.
    slat_format format;
    // How many vCPUs it can have, 65,536 at most; zero means one.
    uint32_t vcpus;
    // Bits of a guest-physical address; zero, or more than the format translates, means as many as that.
    uint32_t address_bits;
    // The largest page to map: 1 for 4 KiB, 2 for 2 MiB, 3 or zero for 1 GiB.
    uint32_t max_level;
    // Memslot ids are below this; zero means 32,764, as in KVM.
    uint32_t max_slots;
    // `SLAT_VM_*`.
    uint32_t flags;
    // Bytes of table pages that may be in use; beyond, the coldest tables are taken back. Zero means no limit.
    uint64_t table_budget;
} slat_config;

// What the host maps at an address.
typedef struct slat_page {
    // The frame of the very 4 KiB that was asked for: physical address / 4096, as hardware sees it.
    uint64_t pfn;
    // How large a page the host maps there, all of it alike: zero or 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    uint32_t level;
    // `SLAT_PAGE_WRITE` where the guest may write to it now; other bits are not looked at.
    uint32_t flags;
} slat_page;

// What slat asks of the host: functions, each with `user` as its first argument. Any thread that calls slat may be in any of
// them, several at once. They return: a longjmp or a C++ exception out of one is undefined behaviour.
//
// The contract: before the host takes a page away from an address, moves it, or withdraws write permission, it begins an
// invalidation of the range, applies it, changes its own tables, and then ends it. What `resolve` and `lookup` say must be
// what those tables say at that moment.
typedef struct slat_host {
    // `sizeof(struct slat_host)`: tells versions of this structure apart.
    size_t size;
    // Given to each function.
    void *user;
    // Makes the page at `hva` present for this access and describes it in `page`, which comes zeroed. A page for `SLAT_WRITE`
    // is writable. May sleep, and may call slat with `thread`, which is good until this returns, but for entering a guest.
    // Answers `SLAT_OK`, or `SLAT_EFAULT`, `SLAT_ENOMEM`, `SLAT_EPOISONED`, `SLAT_EIO`; any other number counts as
    // `SLAT_EFAULT`.
    slat_status (*resolve)(void *user,
                           const struct slat_thread *thread,
                           uint64_t hva,
                           slat_access access,
                           struct slat_page *page);
    // May be null. The same where it can be said without sleeping; anything but `SLAT_OK` sends the fault to `resolve`. Takes
    // no lock that is held while slat is called, allocates nothing, and does not call slat.
    slat_status (*lookup)(void *user, uint64_t hva, slat_access access, struct slat_page *page);
    // May be null, where vCPUs poll `slat_vcpu_kicked`. Makes the vCPU leave the guest soon, or call `slat_vcpu_answer`: an
    // IPI, a signal. Does not call slat.
    void (*kick)(void *user, uint32_t vcpu);
    // May be null together with `free_tables`: then tables come from the global allocator. Memory of `bytes`, aligned to as
    // much, that nothing else uses until it is freed; or null. May sleep.
    void *(*alloc_tables)(void *user, size_t bytes);
    // Takes such memory back. May sleep.
    void (*free_tables)(void *user, void *tables, size_t bytes);
    // Table memory at physical address p is seen at p + `table_offset`, modulo 2^64: a kernel's direct map, a multiple of
    // 4096. Zero where they are the same, as for a software walker. Memory whose physical address the format cannot name is
    // refused.
    uint64_t table_offset;
} slat_host;

// What a VM has done and holds. Sums over all threads, each read at a slightly different moment.
typedef struct slat_stats {
    // Faults that mapped a page.
    uint64_t mapped_faults;
    // Faults that gave a permission back.
    uint64_t permission_faults;
    // Faults that found nothing wrong any more.
    uint64_t spurious_faults;
    // Faults on no memslot, or writes to a read-only one.
    uint64_t mmio_faults;
    // Attempts at a fault that were made again.
    uint64_t retries;
    // Leaves mapped now, of 4 KiB, 2 MiB and 1 GiB.
    uint64_t leaves[3];
    // Shootdowns made.
    uint64_t flushes;
    // Frames that lost a translation by them.
    uint64_t flushed_frames;
    // Bytes of table pages in use.
    uint64_t table_bytes;
    // Bytes that the host lends for tables.
    uint64_t lent_bytes;
} slat_stats;

// A memslot: guest memory, and the host address behind it.
typedef struct slat_slot {
    // Its name.
    uint32_t id;
    // `SLAT_SLOT_*`.
    uint32_t flags;
    // Where the guest sees it.
    uint64_t gpa;
    // Its size.
    uint64_t bytes;
    // The host address of its first byte.
    uint64_t hva;
} slat_slot;

// One operation of a memslot transaction.
typedef struct slat_slot_op {
    // What to do.
    slat_slot_op_kind kind;
    // The slot.
    struct slat_slot slot;
} slat_slot_op;

// What a VM maps at a frame.
typedef struct slat_mapping {
    // The first guest frame of the page.
    uint64_t gfn;
    // The first frame of the page: frame gfn + n of the guest is frame pfn + n.
    uint64_t pfn;
    // Its size, in frames of 4 KiB.
    uint64_t frames;
    // `SLAT_PAGE_*`: what the hardware lets through, and its Accessed and Dirty bits.
    uint32_t flags;
} slat_mapping;

// What a processor caches, told what to forget: a TLB in software, or INVEPT, INVLPGA, TLBI, HFENCE on the processor that
// the calling thread is on. The functions do not call slat, and return.
typedef struct slat_tlb {
    // Given to each function.
    void *user;
    // Forget everything of this vCPU, paging-structure caches included.
    void (*flush_all)(void *user);
    // May be null, which means `flush_all`. Forget at least every translation of these frames, at every page size, and every
    // cached link above them.
    void (*flush)(void *user, uint64_t first_gfn, uint64_t frames);
} slat_tlb;

// Up to 64 pages of a slot, some of which are dirty.
typedef struct slat_dirty_word {
    // The number in the slot of the page that bit 0 stands for: a multiple of 64.
    uint64_t first_page;
    // The guest frame that it was when it was harvested. Slots move.
    uint64_t gfn;
    // The host address behind it.
    uint64_t hva;
    // Bit n stands for the nth page from it on.
    uint64_t bits;
} slat_dirty_word;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What a status means, in English: a string that lives for ever, also for an unknown number. Any thread; never sleeps.
const char *slat_strerror(slat_status status);

// Makes the calling thread's token, in `thread`. Never sleeps.
//
// Owed: `slat_thread_free` by the same thread, before it ends. Errors: `SLAT_EBUSY` where the thread has one; `SLAT_EINVAL`. A
// library without `std` cannot tell threads apart: there, no other token of this thread, or of this processor in a kernel
// without threads, may be in use; and it is not checked that other threads keep off it.
slat_status slat_thread_new(struct slat_thread **thread);

// Gives a token back. By its own thread; never sleeps.
//
// Errors: `SLAT_EBUSY` in a call or in the guest; `SLAT_EPERM` in another thread; `SLAT_EINVAL` for null and for the token
// that `resolve` was given. After an error the token is as it was.
slat_status slat_thread_free(struct slat_thread *thread);

// Makes a VM without memslots, in `vm`. May sleep in the host's `alloc_tables`. Copies both structures.
//
// The caller promises that the functions of `host` do what their comments say, until the VM is freed. Owed: `slat_vm_free`.
// Errors: `SLAT_EINVAL`, `SLAT_ENOMEM`.
slat_status slat_vm_new(const struct slat_config *config,
                        const struct slat_host *host,
                        struct slat_vm **vm);

// Frees a VM and its tables. May sleep in the host's `free_tables`.
//
// Errors, after which the VM is as it was: `SLAT_EBUSY` while there are vCPUs, invalidations or harvests of it; `SLAT_EINVAL`.
// Not checked: that no other thread uses the VM meanwhile or later.
slat_status slat_vm_free(struct slat_vm *vm);

// What a VM has done and holds, in `stats`. Any thread; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_vm_stats(const struct slat_vm *vm, struct slat_stats *stats);

// Runs `count` memslot operations in order and publishes what they made, at once: no vCPU ever sees a part of them. What slots
// lose is unmapped and flushed before this returns. Any thread; waits for vCPUs in the guest, for readers, and for other
// transactions. The rules are KVM's.
//
// Errors, after which nothing has changed, and `failed`, unless it is null, holds the number of the operation that was
// refused: `SLAT_EINVAL`, `SLAT_EEXIST`, `SLAT_ENOENT`, `SLAT_ENOMEM`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_slots_commit(const struct slat_vm *vm,
                              const struct slat_thread *thread,
                              const struct slat_slot_op *ops,
                              size_t count,
                              size_t *failed);

// The memslot that holds guest address `gpa`, in `slot`. Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_slots_find(const struct slat_vm *vm,
                            const struct slat_thread *thread,
                            uint64_t gpa,
                            struct slat_slot *slot);

// What is mapped at guest address `gpa` at this moment, in `mapping`. An invalidation may take it away before this returns. A
// software vCPU puts it into its TLB out of the guest and uses it in the guest: entering forgets what was flushed meanwhile.
// Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_translate(const struct slat_vm *vm,
                           const struct slat_thread *thread,
                           uint64_t gpa,
                           struct slat_mapping *mapping);

// A device, or the VMM, has written these host addresses by itself: the pages are dirty in each memslot that logs. After the
// write. Any thread, also in the guest; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_mark_dirty(const struct slat_vm *vm,
                            uint64_t hva,
                            uint64_t bytes);

// Whether the guest has accessed any page of this host range since its Accessed bit was cleared, in `young`; and clears those
// bits, or not. Any thread; `SLAT_CLEAR_YOUNG_AND_FLUSH` waits for vCPUs in the guest.
//
// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_young(const struct slat_vm *vm,
                       const struct slat_thread *thread,
                       uint64_t hva,
                       uint64_t bytes,
                       slat_young_how how,
                       bool *young);

// An aging pass: calls `seen` with the pages of this host range that the guest has accessed since their Accessed bits were
// cleared, and clears them. Bit n mod 64 of word n / 64 stands for the nth page from `hva` on, of `pages` pages, 512 at most.
// TLBs keep copies that say accessed, until they forget them (`slat_forget`). `seen` does not wait, and does not call slat.
// Any thread; never sleeps.
//
// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_age(const struct slat_vm *vm,
                     const struct slat_thread *thread,
                     uint64_t hva,
                     uint64_t bytes,
                     void (*seen)(void *user, uint64_t hva, uint32_t pages, const uint64_t *bits),
                     void *user);

// Asks every TLB to forget this host range, soon: after an aging pass, so that the next access is noticed. Nothing may count
// on it. Any thread; never sleeps. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_forget(const struct slat_vm *vm,
                        const struct slat_thread *thread,
                        uint64_t hva,
                        uint64_t bytes);

// Makes vCPU number `id` of a VM, out of the guest, in `vcpu`. Copies `tlb`. Any thread; never sleeps.
//
// The caller promises that the functions of `tlb` do what their comments say. Owed: `slat_vcpu_free`. Errors: `SLAT_ENOENT`
// where the VM was made with fewer; `SLAT_EBUSY` where this one is there already; `SLAT_EINVAL`.
slat_status slat_vcpu_new(const struct slat_vm *vm,
                          uint32_t id,
                          const struct slat_tlb *tlb,
                          struct slat_vcpu **vcpu);

// Frees a vCPU: its number can be used again. Any thread; never sleeps.
//
// Errors, after which the vCPU is as it was: `SLAT_EBUSY` in the guest or in another call; `SLAT_EINVAL`. Not checked: that no
// thread uses it later.
slat_status slat_vcpu_free(struct slat_vcpu *vcpu);

// Deals with an access to guest address `gpa` that the hardware could not complete; how is in `done`. Out of the guest. May
// sleep in the host's `resolve`, and waits for an invalidation that covers the page. A processor that remembers a missing
// permission or mapping (Arm, RISC-V) forgets this page by itself before the guest tries again.
//
// Errors, after which the VM goes on: `SLAT_EFAULT`, `SLAT_EPOISONED`, `SLAT_EIO` from the host; `SLAT_ENOMEM`; `SLAT_EINVAL`;
// `SLAT_EBUSY`, `SLAT_EPERM` for vCPU and token.
slat_status slat_vcpu_fault(const struct slat_vcpu *vcpu,
                            const struct slat_thread *thread,
                            uint64_t gpa,
                            slat_access wants,
                            slat_done *done);

// Enters the guest on processor `cpu`, on which the thread stays until it has left; `root` is the frame that the hardware is
// to walk from (EPTP, nCR3, VTTBR, hgatp). Before this returns, the vCPU's `flush` and `flush_all` have been called for what
// was flushed while it was out; `flush_all` alone where the processor or the root is another one than before, and the first
// time. A vCPU whose TLB goes where it goes, in software, says the same `cpu` always.
//
// On hardware the vCPU's thread then holds interrupts and asks `slat_vcpu_kicked`: where that is true, it leaves, lets interrupts
// in, and enters again; else the hardware may go in, and a kick that comes later brings it out.
//
// Owed: an answer to kicks, soon, by `slat_vcpu_answer` or `slat_vcpu_leave`: invalidations wait for it. Until then the
// thread's token is in use. Never sleeps. Errors: `SLAT_EBUSY` where vCPU or token are in use, and for the token that
// `resolve` was given; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_vcpu_enter(const struct slat_vcpu *vcpu,
                            const struct slat_thread *thread,
                            uint64_t cpu,
                            uint64_t *root);

// Whether an operation waits for this vCPU: asked between accesses by a software vCPU, before each entry with interrupts held by one on
// hardware. By the thread that entered, in the
// guest; false for null, and out of the guest. Not checked: that the thread is this one.
bool slat_vcpu_kicked(const struct slat_vcpu *vcpu);

// Forgets what has been flushed, by the vCPU's `flush` and `flush_all`, and says so to the operations that wait; the guest
// goes on, from `root`, which may be another one now. By the thread that entered, in the guest, on the same processor; never
// sleeps.
//
// Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_vcpu_answer(const struct slat_vcpu *vcpu,
                             uint64_t *root);

// Leaves the guest: the thread's token is free again. By the thread that entered; never sleeps.
//
// Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_vcpu_leave(const struct slat_vcpu *vcpu);

// The host is about to change its tables in [hva, hva + bytes), for this reason: begins an invalidation, in `change`. Faults
// on the range wait until it ends. Any thread, also in the guest; never sleeps. Any number may be open, inside each other too.
//
// Owed: `slat_invalidate_end`, soon. Errors: `SLAT_EAGAIN` where 4,032 are open, or memory for more than 64 cannot be had;
// `SLAT_EINVAL`.
slat_status slat_invalidate_begin(const struct slat_vm *vm,
                                  uint64_t hva,
                                  uint64_t bytes,
                                  slat_why why,
                                  struct slat_change **change);

// Takes from the guest what the reason says, and flushes: when this returns, no vCPU uses it, and the host may change its own
// tables. A reason that is told page by page (`SLAT_RECLAIM`, `SLAT_NUMA`, `SLAT_CHANGE_PTE`) does nothing here. Any thread;
// waits for vCPUs in the guest, and may sleep in the host's `alloc_tables` and `free_tables`.
//
// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for change and token.
slat_status slat_invalidate_apply(const struct slat_change *change,
                                  const struct slat_thread *thread);

// For a reason that is told page by page: the host's page at [hva, hva + bytes), in the range of the change, is `to` now, or
// nothing where it is null. Edits what the guest has of it, and flushes: when this returns, no vCPU uses the frame that was
// there. The host calls this under its own lock of the page, and copies or frees the old frame afterwards. Other reasons: does
// nothing. Any thread; waits for vCPUs in the guest.
//
// Errors: `SLAT_EINVAL`, also for a range outside of the change; `SLAT_EBUSY`, `SLAT_EPERM` for change and token.
slat_status slat_invalidate_changed(const struct slat_change *change,
                                    const struct slat_thread *thread,
                                    uint64_t hva,
                                    uint64_t bytes,
                                    const struct slat_page *to);

// Ends an invalidation and frees its handle: faults on the range go on, and ask the host anew. One that was never applied is
// called off: the host then changes nothing. Any thread, also in the guest; never sleeps.
//
// Errors, after which it is open still: `SLAT_EBUSY` in another call, `SLAT_EINVAL`.
slat_status slat_invalidate_end(struct slat_change *change);

// Takes what memslot `id` has logged, in `harvest`: those pages are clean from now on, and the next store to each is logged
// again. What vCPUs stored before is in memory when this returns: the pages are to be copied after it. Any thread; waits for
// vCPUs in the guest, unless nothing was dirty.
//
// Owed: `slat_harvest_commit` or `slat_harvest_fail`. Errors, after which the log is as it was: `SLAT_ENOENT` where there is
// no such slot, or it does not log; `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_harvest_begin(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t id,
                               struct slat_harvest **harvest);

// How many pages were taken; zero for null. Any thread; never sleeps.
uint64_t slat_harvest_pages(const struct slat_harvest *harvest);

// Copies the words that have a dirty page, in order of pages, from the one with number `from` on, `room` at most, to `words`;
// how many is in `count`, and fewer than `room` are the last. Passing over `from` words costs a step each. Any thread; never
// sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_harvest_words(const struct slat_harvest *harvest,
                               size_t from,
                               struct slat_dirty_word *words,
                               size_t room,
                               size_t *count);

// Ends a harvest whose pages are safe elsewhere: the log is rid of them. Frees the handle. Any thread; never sleeps. Not
// checked: that no thread uses it meanwhile or later. Errors: `SLAT_EINVAL`.
slat_status slat_harvest_commit(struct slat_harvest *harvest);

// Ends a harvest whose pages could not be copied: they are dirty again. Frees the handle. As `slat_harvest_commit` otherwise.
slat_status slat_harvest_fail(struct slat_harvest *harvest);

// A kernel supplies it to a library without std: unused memory, as large and as aligned; null where there is none, and
// then slat may panic.
extern void *slat_host_alloc(size_t bytes,
                             size_t align);

// A kernel supplies it to a library without std: takes memory back.
extern void slat_host_free(void *memory, size_t bytes, size_t align);

// A kernel supplies it to a library without std: slat has panicked, which is a bug in slat. Does not return.
extern void slat_host_panic(const char *text, size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLAT_H */
