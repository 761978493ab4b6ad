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

// Flag of a memslot: fetches are refused, and come out as `SLAT_MMIO`.
#define SLAT_SLOT_NO_EXECUTE 4

// Host addresses from here on name private memory, which has no address: `SLAT_PRIVATE_HVA + (number << 48) + offset`, of 16,384
// memories of 2^48 bytes. Whatever takes a host address takes such a name; `resolve` and `lookup` are given them.
#define SLAT_PRIVATE_HVA 9223372036854775808ull

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

// Flag of a host's page: the guest may not execute it.
#define SLAT_PAGE_NO_EXECUTE 32

// Flag of a VM: stores are found by Dirty bits, where the format has them, and not by write protection.
#define SLAT_VM_DIRTY_BITS 1

// Flag of a VM: a fresh dirty log says of every page that it is dirty, and costs nothing to begin.
#define SLAT_VM_DIRTY_INITIALLY_SET 2

// Flag of a VM: large pages do not execute; a fetch splits its page down to 4 KiB.
#define SLAT_VM_NX_HUGE_PAGES 4

// Flag of a VM: large pages of slots that log are split by the first store to each, and not when the log begins.
#define SLAT_VM_DIRTY_SPLIT_LAZILY 8

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
    // There is no such address space, memslot, log, vCPU, mapping or token.
    SLAT_ENOENT = 2,
    // The host could not read the page back. Another try may succeed.
    SLAT_EIO = 5,
    // The VM has no dirty rings; or it has, and its logs are harvested all together.
    SLAT_ENXIO = 6,
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
    // The caller has to provide the page to the host.
    SLAT_ENODATA = 61,
    // The page is on its way to the host.
    SLAT_EINPROGRESS = 115,
    // The host has taken the held frame back: refresh it.
    SLAT_ESTALE = 116,
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

// How a fault was dealt with: the guest may try again after the first three. After the others nothing was done.
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
    // No memslot is there, or the guest wrote to a read-only one, or fetched from one that does not execute: emulate the
    // access.
    SLAT_MMIO = 3,
    // A store, while this vCPU's dirty ring is full. Again when another thread has harvested or reset it.
    SLAT_RING_FULL = 4,
    // A store to a frame whose stores are tracked: make it by `slat_emulate_store`.
    SLAT_WRITE_TRACKED = 5,
    // The access meant private memory and the frame is shared, or the other way round. The VMM converts the frame, or ends the
    // guest.
    SLAT_MEMORY_FAULT = 6,
    // The host's page is on its way: the vCPU waits for `slat_vcpu_pending_token`, and may run something else of the guest.
    SLAT_PENDING = 7,
    // The caller has to provide the page. Again when the host has it.
    SLAT_NEEDS_PAGE = 8,
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
    // Gives the slot of this id `flags`. All but `SLAT_SLOT_LOG_DIRTY` must be as they were created.
    SLAT_SLOT_FLAGS = 3,
    // Takes [gpa, gpa + bytes) out of the slot of this id. It keeps what lies below; what lies above becomes slot `rest`, a free
    // id, where both are left. What stays mapped is not touched; of a slot that logs all that stays
    // counts as written from then on.
    SLAT_SLOT_CUT = 4,
    // Adds the slot with two kinds of memory: shared at `hva`, and private at `private_hva`. All of it is shared at first. It
    // neither moves nor logs, and is not read-only.
    SLAT_SLOT_CREATE_WITH_PRIVATE = 5,
    // Makes [gpa, gpa + bytes) private, or shared again, in slots that have both; the id is not looked at. Frames that change
    // lose what they map, by one flush; nothing is copied.
    SLAT_SLOT_SET_PRIVATE = 6,
    // See `SLAT_SLOT_SET_PRIVATE`.
    SLAT_SLOT_SET_SHARED = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_slot_op_kind slat_slot_op_kind;
#else
typedef uint32_t slat_slot_op_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a page is cached. Each is narrower than the one before it; of memslot and host page the narrower one counts.
enum slat_memory
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Ordinary memory: cached.
    SLAT_WRITE_BACK = 0,
    // Not cached; stores may be combined, loads may be made ahead: a frame buffer.
    SLAT_WRITE_COMBINING = 1,
    // Not cached, no loads ahead of their time; the guest may choose to combine stores.
    SLAT_UNCACHED = 2,
    // Registers of a device: not cached, each access as it is written.
    SLAT_DEVICE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_memory slat_memory;
#else
typedef uint32_t slat_memory;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What has happened in a VM.
enum slat_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A fault, or one page of a prefault, has mapped a page of `level`.
    SLAT_EVENT_MAPPED = 0,
    // A fault has given a permission back.
    SLAT_EVENT_FIXED = 1,
    // A fault found nothing wrong any more.
    SLAT_EVENT_SPURIOUS = 2,
    // A fault is a device's.
    SLAT_EVENT_MMIO = 3,
    // A fault has done nothing: a dirty ring is full, a page is pending, or the VMM has to provide, convert or emulate.
    SLAT_EVENT_DEFERRED = 4,
    // A fault has ended with an error.
    SLAT_EVENT_FAILED = 5,
    // An attempt at a fault is made again.
    SLAT_EVENT_RETRY = 6,
    // `count` leaves of `level` were taken out of the tables; their flush is owed.
    SLAT_EVENT_ZAP = 7,
    // A leaf of `level` became a table of smaller ones.
    SLAT_EVENT_SPLIT = 8,
    // A table became one leaf of `level`.
    SLAT_EVENT_RECOVERED = 9,
    // A flush was made, for `count` edits.
    SLAT_EVENT_FLUSH = 10,
    // A grace period has ended.
    SLAT_EVENT_GRACE_PERIOD = 11,
    // Dead tables were taken apart: `count` leaves of `level` are counted off.
    SLAT_EVENT_TABLES_FREED = 12,
    // `count` cold tables were taken back, since the budget is used up.
    SLAT_EVENT_RECLAIMED = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_event_kind slat_event_kind;
#else
typedef uint32_t slat_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A change in the host's tables. One call at a time has it, from any thread.
typedef struct slat_change slat_change;

// What was taken from dirty logs. Any thread may read it.
typedef struct slat_harvest slat_harvest;

// A guest frame that is held. One call at a time has it, from any thread; from `slat_held_use` to `slat_held_done` it is that
// thread's.
typedef struct slat_held slat_held;

// Frames that several vCPUs map together. It belongs to no VM. Any thread may use it.
typedef struct slat_population slat_population;

// A thread's token, which whatever may wait asks for. One for each thread, used by this thread alone.
typedef struct slat_thread slat_thread;

// A tracker of stores: a listener, and its frames.
typedef struct slat_tracking slat_tracking;

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
    // How many address spaces there are, each with memslots and tables of its own, 255 at most; zero means one. They are
    // numbered from 0, and vCPUs begin in number 0.
    uint32_t address_spaces;
    // Zero: dirty logs are bitmaps. Else each vCPU has a dirty ring of so many bytes, 16 for a store: a power of two from 4096 to
    // 1 MiB. `slat_set_dirty_log` gives rings later.
    uint32_t ring_bytes;
    // Bytes of table pages that may be in use; beyond, the coldest tables are taken back. Zero means no limit.
    uint64_t table_budget;
} slat_config;

// What the host maps at an address.
typedef struct slat_page {
    // The frame of the very 4 KiB that was asked for: physical address / 4096, as hardware sees it.
    uint64_t pfn;
    // How large a page the host maps there, all of it alike: zero or 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    uint32_t level;
    // `SLAT_PAGE_WRITE` where the guest may write to it now, `SLAT_PAGE_NO_EXECUTE` where it may not execute it; other bits are
    // not looked at.
    uint32_t flags;
    // How it is cached: zero is ordinary memory.
    slat_memory memory;
} slat_page;

// Something that has happened in a VM. Fields that its kind does not mention are zero.
typedef struct slat_event {
    // A `slat_event_kind`. Later versions may know more.
    uint32_t kind;
    // Of faults and retries: whose.
    uint32_t vcpu;
    // The first frame.
    uint64_t gfn;
    // How many frames: one for a fault.
    uint64_t frames;
    // What the kind says.
    uint64_t count;
    // 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    uint32_t level;
    // Of faults: a `slat_access`.
    uint32_t access;
    // Of retries, zaps and flushes: why, in a word of `cause_bytes` bytes that lives for ever, with no zero behind it. Else null.
    const char *cause;
    // See `cause`.
    size_t cause_bytes;
} slat_event;

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
    //
    // It need not make the thread wait for the page. `SLAT_EINPROGRESS`: the page is on its way, and the fault returns
    // `SLAT_PENDING`; the thread that brings the page calls `slat_ready`. After this answer slat asks for the page **once
    // more**, so that a page which came in between is not missed. `SLAT_ENODATA`: the caller of the fault has to provide the
    // page, and the fault returns `SLAT_NEEDS_PAGE`.
    slat_status (*resolve)(void *user,
                           const struct slat_thread *thread,
                           uint64_t hva,
                           slat_access access,
                           struct slat_page *page);
    // May be null. The same where it can be said without sleeping; anything but `SLAT_OK` sends the fault to `resolve`. Takes
    // no lock that is held while slat is called, allocates nothing, and does not call slat.
    slat_status (*lookup)(void *user, uint64_t hva, slat_access access, struct slat_page *page);
    // May be null: then a page's token is its address. What the page at `hva` is called, of which `resolve` has just said that
    // it is on its way: for each page, or for each request, as long as it is. Does not call slat.
    uint64_t (*token)(void *user, uint64_t hva);
    // May be null, where vCPUs poll `slat_vcpu_kicked`. Makes the vCPU leave the guest soon, or call `slat_vcpu_answer`: an
    // IPI, a signal. Called for flushes, and for a token that is ready: then also where the vCPU is out of the guest. Does not
    // call slat.
    void (*kick)(void *user, uint32_t vcpu);
    // May be null. Makes every processor forget these frames, at any page size and under any tag that the VM's vCPUs have, by a
    // broadcast of the hardware (TLBI in the inner-shareable domain, INVLPGB and TLBSYNC, remote fences), and says whether
    // that is done. Where it answers false, vCPUs are kicked. Does not call slat.
    bool (*broadcast_flush)(void *user, uint64_t first_gfn, uint64_t frames);
    // May be null. Is told what the VM has just done, by the thread that did it: `event` is good until this returns. Waits for
    // nothing, takes no lock that is held while slat is called, and does not call slat.
    void (*observe)(void *user, const struct slat_event *event);
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
    // How it is cached.
    slat_memory memory;
} slat_mapping;

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
    // How its pages are cached, unless the host says something narrower of one: zero is ordinary memory.
    slat_memory memory;
} slat_slot;

// One operation of a memslot transaction.
typedef struct slat_slot_op {
    // What to do.
    slat_slot_op_kind kind;
    // The slot.
    struct slat_slot slot;
    // Of `SLAT_SLOT_CREATE_WITH_PRIVATE`: where its private memory begins (`SLAT_PRIVATE_HVA`).
    uint64_t private_hva;
    // Of `SLAT_SLOT_CUT`: the id of what lies above.
    uint32_t rest;
} slat_slot_op;

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
    // The slot.
    uint32_t slot;
    // The address space of the slot.
    uint32_t space;
} slat_dirty_word;

// One dirty page, as a ring tells it.
typedef struct slat_dirty_page {
    // Its number in the slot.
    uint64_t page;
    // The guest frame that it was when it was told. Slots move.
    uint64_t gfn;
    // The host address behind it.
    uint64_t hva;
    // The slot.
    uint32_t slot;
    // The address space of the slot.
    uint32_t space;
} slat_dirty_page;

// A store to tracked frames, as its listeners are told of it.
typedef struct slat_store {
    // Where.
    uint64_t gpa;
    // What is stored; it lies in one page.
    const void *bytes;
    // How many bytes.
    size_t count;
    // The address space.
    uint32_t space;
} slat_store;

// What is told of the stores to tracked frames, by the thread that makes the store: functions, each with `user` as its first
// argument, several at once. They may sleep, and may call slat with `thread`, which is good until they return, but for entering a
// guest.
typedef struct slat_listener {
    // Given to each function.
    void *user;
    // May be null. The store is about to be made: what is there still stands.
    void (*before)(void *user, const struct slat_thread *thread, const struct slat_store *store);
    // May be null. The store has been made, and marked dirty where the memslot logs.
    void (*after)(void *user, const struct slat_thread *thread, const struct slat_store *store);
    // May be null. The listener is told of nothing more: `user` may be freed. Called once, by the thread that ends the last use,
    // maybe some time after `slat_untrack_writes`. Does not call slat.
    void (*release)(void *user);
} slat_listener;

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
// Errors, after which the VM is as it was: `SLAT_EBUSY` while there are vCPUs, invalidations, harvests, held frames or trackers of
// stores of it; `SLAT_EINVAL`.
// Not checked: that no other thread uses the VM meanwhile or later.
slat_status slat_vm_free(struct slat_vm *vm);

// What a VM has done and holds, in `stats`. Any thread; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_vm_stats(const struct slat_vm *vm, struct slat_stats *stats);

// What is mapped at guest address `gpa` of address space `space` at this moment, in `mapping`. An invalidation may take it away before this returns. A
// software vCPU puts it into its TLB out of the guest and uses it in the guest: entering forgets what was flushed meanwhile.
// Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_translate(const struct slat_vm *vm,
                           const struct slat_thread *thread,
                           uint32_t space,
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

// Runs `count` memslot operations in order and publishes what they made, at once: no vCPU ever sees a part of them. What slots
// lose is unmapped and flushed before this returns. Address space `space`. Any thread; waits for vCPUs in the guest, for readers, and
// for other transactions. The rules are KVM's.
//
// Errors, after which nothing has changed, and `failed`, unless it is null, holds the number of the operation that was
// refused: `SLAT_EINVAL`, `SLAT_EEXIST`, `SLAT_ENOENT` (also for the space), `SLAT_ENOMEM`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_slots_commit(const struct slat_vm *vm,
                              const struct slat_thread *thread,
                              uint32_t space,
                              const struct slat_slot_op *ops,
                              size_t count,
                              size_t *failed);

// The memslot that holds guest address `gpa` of address space `space`, in `slot`; of one with private memory the part around `gpa` that is
// all private, or all shared. Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_slots_find(const struct slat_vm *vm,
                            const struct slat_thread *thread,
                            uint32_t space,
                            uint64_t gpa,
                            struct slat_slot *slot);

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

// The same for a guest that has private and shared memory, and says which it means: by a bit of the address (TDX), which `gpa` is
// without, or as the exit reports it (SEV-SNP). Where the frame is of the other kind, `SLAT_MEMORY_FAULT` is in `done`, also
// where a page is mapped.
slat_status slat_vcpu_fault_as(const struct slat_vcpu *vcpu,
                               const struct slat_thread *thread,
                               uint64_t gpa,
                               slat_access wants,
                               bool is_private,
                               slat_done *done);

// Goes over to another address space, whose root is loaded when the vCPU enters the guest: system management mode. Out of the
// guest. Any thread; never sleeps. Errors: `SLAT_ENOENT` where the VM was made with fewer; `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_switch_to(const struct slat_vcpu *vcpu,
                                uint32_t space);

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

// Maps [gpa, gpa + bytes) from the first frame on, in the address space that the vCPU is in, so that such an access needs no fault
// afterwards; pages are accessed (`is_young`), or not yet. How many bytes are mapped is in `mapped`: fewer where the next frame has no
// memslot, or such an access is a device's or tracked, or the host has no page for it now; asked again from there, it tells
// which. Out of the guest. May sleep in `resolve`. For a page that is on its way the vCPU waits, as after a fault.
//
// Errors where not even the first frame could be mapped: as `slat_vcpu_fault`; `SLAT_EINPROGRESS`, `SLAT_ENODATA` for its page.
slat_status slat_vcpu_prefault(const struct slat_vcpu *vcpu,
                               const struct slat_thread *thread,
                               uint64_t gpa,
                               uint64_t bytes,
                               slat_access wants,
                               bool is_young,
                               uint64_t *mapped);

// Names the frames of [gpa, gpa + bytes), which vCPUs then map together by `slat_vcpu_populate`, in `population`. Never sleeps.
//
// Owed: `slat_population_free`. Errors: `SLAT_EINVAL`.
slat_status slat_population_new(uint64_t gpa,
                                uint64_t bytes,
                                slat_access wants,
                                bool is_young,
                                struct slat_population **population);

// Frees it. Never sleeps. Errors: `SLAT_EBUSY` while a vCPU maps frames of it; `SLAT_EINVAL`. Not checked: that no thread uses it later.
slat_status slat_population_free(struct slat_population *population);

// Takes stretches of a population and maps them, in the address space that the vCPU is in, until none is left: `rest_bytes` is zero
// then, though other vCPUs may still map theirs. Else a frame could not be mapped: `rest_gpa` and `rest_bytes` are what is left of this
// vCPU's stretch, and no other vCPU maps it. `slat_vcpu_prefault` of it says why; the next call takes the next stretch. Out of the
// guest. May sleep in `resolve`. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for vCPU and token.
slat_status slat_vcpu_populate(const struct slat_vcpu *vcpu,
                               const struct slat_thread *thread,
                               const struct slat_population *population,
                               uint64_t *rest_gpa,
                               uint64_t *rest_bytes);

// How many bytes of it are mapped by now, in `mapped`, and how many it has, in `all`. Any thread; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_population_progress(const struct slat_population *population,
                                     uint64_t *mapped,
                                     uint64_t *all);

// No vCPU takes another stretch of it. Each finishes the one that it has: 32 MiB at most. Any thread; never sleeps. Errors:
// `SLAT_EINVAL`.
slat_status slat_population_stop(const struct slat_population *population);

// The page that the host called `token` is there, or cannot be had: wakes the vCPUs that wait for it, by `kick`. How many is in
// `woken`, unless it is null. After the host's own table has the page. To call it twice, or for a token that was never answered, does
// nothing more. Any thread, also in the guest, which holds no lock that `kick` takes; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_ready(const struct slat_vm *vm,
                       uint64_t token,
                       size_t *woken);

// The vCPUs that wait for `token`, which is not ready: the numbers of `room` of them in `vcpus`, and how many they are, which may be
// more, in `count`. Others may begin to wait meanwhile. Any thread; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_waiters(const struct slat_vm *vm,
                         uint64_t token,
                         uint32_t *vcpus,
                         size_t room,
                         size_t *count);

// The token of the page for which a fault, or a prefault, of this vCPU has ended as pending last. Out of the guest. Any thread; never
// sleeps. Errors: `SLAT_ENOENT` where none has; `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_pending_token(const struct slat_vcpu *vcpu,
                                    uint64_t *token);

// A token that this vCPU waits for and that is ready: the accesses that it was answered for may be made again. The vCPU does not wait
// for it any more, and is told of it once. To be called before each entry. Out of the guest. Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT` where none is ready; `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_take_ready(const struct slat_vcpu *vcpu,
                                 uint64_t *token);

// Whether a token that this vCPU waits for is ready, in `is_ready`: asked in the guest, beside `slat_vcpu_kicked`. By the thread
// that entered; never sleeps. Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_vcpu_has_ready(const struct slat_vcpu *vcpu,
                                bool *is_ready);

// This vCPU waits for no token any more, and is told of none: it is reset, or its guest moves away. Out of the guest. Any thread; never
// sleeps. Errors: `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_forget_tokens(const struct slat_vcpu *vcpu);

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

// Takes what memslot `id` of address space `space` has logged, in `harvest`: those pages are clean from now on, and the next store to each is logged
// again. What vCPUs stored before is in memory when this returns: the pages are to be copied after it. Any thread; waits for
// vCPUs in the guest, unless nothing was dirty.
//
// Owed: `slat_harvest_commit` or `slat_harvest_fail`. Errors, after which the log is as it was: `SLAT_ENOENT` where there is
// no such space or slot, or it does not log; `SLAT_ENXIO` in a VM with dirty rings; `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`,
// `SLAT_EPERM` for the token.
slat_status slat_harvest_begin(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t space,
                               uint32_t id,
                               struct slat_harvest **harvest);

// The same of every slot of the address space that logs, with one flush for all of them. In a VM with dirty rings these are emptied,
// of whatever space their pages are: every vCPU has room again.
slat_status slat_harvest_all_begin(const struct slat_vm *vm,
                                   const struct slat_thread *thread,
                                   uint32_t space,
                                   struct slat_harvest **harvest);

// How many pages were taken; zero for null. Any thread; never sleeps.
uint64_t slat_harvest_pages(const struct slat_harvest *harvest);

// Copies the words that have a dirty page, slot by slot, in order of pages, from the one with number `from` on, `room` at most, to `words`;
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

// Changes how a VM logs while it lives: `flags` are `SLAT_VM_DIRTY_*`, and `ring_bytes` is as in `slat_config`. Logs that begin from now on
// are initially set or not; large pages are split so from now on. Rings come where there are none, while there are no vCPUs.
// Rings of another size or none any more, and `SLAT_VM_DIRTY_BITS` in a format that has them, never change. Any thread; waits for
// transactions.
//
// Errors, after which nothing has changed: `SLAT_EINVAL`, `SLAT_ENOMEM`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_set_dirty_log(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t flags,
                               uint32_t ring_bytes);

// Takes what one vCPU has written since its ring was last harvested, in `harvest`: as `slat_harvest_begin` otherwise. Marks of devices
// are in no ring, nor is what a failed harvest gives back: both wait for `slat_harvest_all_begin`.
//
// Errors, after which nothing is lost: `SLAT_ENXIO` in a VM without rings; `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for
// the token.
slat_status slat_ring_harvest_begin(const struct slat_vm *vm,
                                    const struct slat_thread *thread,
                                    uint32_t vcpu,
                                    struct slat_harvest **harvest);

// The first of two steps: calls `tell` with the pages that one vCPU has written and that were not told yet, in the order of its
// stores, some maybe more than once; how many is in `count`. Nothing is clean by that: copy pages after `slat_rings_reset`. `tell` does
// not wait, and does not call slat. Any thread; never sleeps. Errors: as `slat_ring_harvest_begin`.
slat_status slat_ring_collect(const struct slat_vm *vm,
                              const struct slat_thread *thread,
                              uint32_t vcpu,
                              void (*tell)(void *user, const struct slat_dirty_page *page),
                              void *user,
                              uint64_t *count);

// The second step: all that was collected, of every vCPU, is clean from now on, and the vCPUs have room again. How many stores is in `count`.
// What was stored before is in memory when this returns: copy the pages after it. Any thread; waits for vCPUs in the guest, unless
// nothing was collected. Errors, after which what is neither gone nor collected waits for `slat_harvest_all_begin`: as
// `slat_ring_harvest_begin`.
slat_status slat_rings_reset(const struct slat_vm *vm,
                             const struct slat_thread *thread,
                             uint64_t *count);

// How many stores of one vCPU were collected and not reset, in `count`. Any thread; never sleeps. Errors: as `slat_ring_harvest_begin`.
slat_status slat_ring_not_reset(const struct slat_vm *vm,
                                const struct slat_thread *thread,
                                uint32_t vcpu,
                                uint64_t *count);

// From the return of this call on no vCPU stores to [gpa, gpa + bytes) of address space `space` by itself: each store faults as
// `SLAT_WRITE_TRACKED`, and is made by `slat_emulate_store`, which tells `listener`. Loads and fetches go on. The frames need have no
// memslot; memslots that go, move or log change nothing. Trackers of one frame nest. Copies `listener`. Any thread; waits for vCPUs in
// the guest.
//
// The caller promises that the functions of `listener` do what their comments say. Owed: `slat_untrack_writes`. Errors, after which
// nothing is tracked and `release` is not called: `SLAT_ENOENT` for the space, `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`,
// `SLAT_EPERM` for the token.
slat_status slat_track_writes(const struct slat_vm *vm,
                              const struct slat_thread *thread,
                              uint32_t space,
                              uint64_t gpa,
                              uint64_t bytes,
                              const struct slat_listener *listener,
                              struct slat_tracking **tracking);

// Ends a tracker and frees its handle: where no other tracks a frame, its next store faults once more, and is let through. Stores that
// are under way are told still. Any thread; waits for no vCPU. Not checked: that no other thread does the same. Errors: `SLAT_EINVAL`.
slat_status slat_untrack_writes(struct slat_tracking *tracking);

// Makes a store for the guest, of `count` bytes at `gpa`, which lie in one page: tells the listeners of the frame, calls `store` with the
// host address, which copies the bytes there, marks the page dirty where the memslot logs, and tells the listeners again. For a
// frame that is not tracked the same without listeners. The memslot stays while `store` runs, which may sleep, but does not call
// slat. Any thread; may sleep in listeners and `store`.
//
// Errors, after which no store was made: `SLAT_ENOENT` where there is no space, or no memslot that may be written; `SLAT_EFAULT` for a
// frame that is private; `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_emulate_store(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t space,
                               uint64_t gpa,
                               const void *bytes,
                               size_t count,
                               void (*store)(void *user, uint64_t hva),
                               void *user);

// Holds the guest frame at `gpa`, for `wants`: a clock page, a posted-interrupt descriptor, a page of descriptors. It is used by its
// frame number and not by way of the guest's tables, so the host may take it back: it is valid or refused, never stale. What
// takes a leaf of the frame away takes it back, and waits for a use to end. Held for `SLAT_WRITE` it may be read, too. With
// `for_hardware` it is used by `slat_held_current`. Any thread; may sleep in `resolve`, and waits for an invalidation that covers the
// frame.
//
// Owed: `slat_release`. Errors: `SLAT_ENOENT` where there is no space or memslot; `SLAT_EFAULT`, also to write where the memslot is
// read-only or stores are tracked; `SLAT_EPOISONED`, `SLAT_EIO`, `SLAT_EINPROGRESS`, `SLAT_ENODATA` from the host; `SLAT_ENOMEM`, `SLAT_EINVAL`;
// `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_hold(const struct slat_vm *vm,
                      const struct slat_thread *thread,
                      uint32_t space,
                      uint64_t gpa,
                      slat_access wants,
                      bool for_hardware,
                      struct slat_held **held);

// Gives a held frame back and frees its handle. One that hardware uses is in no control block of a vCPU that runs. Any thread; waits
// for nothing.
//
// Errors, after which it is held still: `SLAT_EBUSY` in a use or in another call; `SLAT_EINVAL`. Not checked: that no thread uses it
// later.
slat_status slat_release(struct slat_held *held);

// Begins a use: the frame that is in `pfn` is the guest's until `slat_held_done`. With `writes` the page is dirty then, where its memslot
// logs. The thread's token is in use meanwhile, and invalidations of the frame wait: use it by a mapping of its own, wait for
// nothing, and end soon. Any thread; never sleeps.
//
// Owed: `slat_held_done`. Errors: `SLAT_ESTALE` where the host has taken the frame back; `SLAT_EINVAL`, also to write what is not held
// for it; `SLAT_EBUSY`, also for the token that `resolve` was given; `SLAT_EPERM`.
slat_status slat_held_use(const struct slat_held *held,
                          const struct slat_thread *thread,
                          bool writes,
                          uint64_t *pfn);

// Ends a use: the frame is not used any more, and the thread's token is free. By the thread that began it; never sleeps.
//
// Errors: `SLAT_EBUSY` in no use; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_held_done(const struct slat_held *held);

// Asks the host for the frame anew where it has been taken back; else does nothing. No hardware uses it meanwhile. After an error it
// stays refused. Sleeps, waits and fails as `slat_hold`.
slat_status slat_held_refresh(const struct slat_held *held,
                              const struct slat_thread *thread);

// The frame that the control block of `vcpu` is given, in `pfn`: asked at each entry, after `slat_vcpu_enter`, and after each
// `slat_vcpu_answer`. Each vCPU holds the frame by itself. Until it leaves, an invalidation that takes the frame back kicks it. By the
// thread that entered; never sleeps.
//
// Errors: `SLAT_ESTALE` where the host has taken the frame back: leave, and refresh it. `SLAT_EBUSY` where the vCPU is out of the guest;
// `SLAT_EINVAL` where the frame is not held for hardware, or is another VM's; `SLAT_EPERM`.
slat_status slat_held_current(const struct slat_held *held,
                              const struct slat_vcpu *vcpu,
                              uint64_t *pfn);

// Hardware has written the frame, or may have: it is dirty where its memslot logs. After the write. Any thread; never sleeps. Errors:
// `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_held_mark_dirty(const struct slat_held *held);

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
