/* slat: second-level address translation. Made from crates/c/src by cbindgen: do not edit. */

#ifndef SLAT_H
#define SLAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every function except slat_strerror, slat_harvest_pages and slat_vcpu_kicked returns a slat_status, 0 for success. "The
 * token" is the slat_thread of the calling thread. A null argument is SLAT_EINVAL, unless its comment allows it. So are
 * unknown numbers, and addresses or sizes that are no multiple of 4096. Not checked: that handles are live, and that other
 * pointers are valid. */

// Flag of a memslot: writes are logged.
#define SLAT_SLOT_LOG_DIRTY 1

// Flag of a memslot: guest writes are refused as `SLAT_MMIO`.
#define SLAT_SLOT_READONLY 2

// Flag of a memslot: fetches are refused as `SLAT_MMIO`.
#define SLAT_SLOT_NO_EXECUTE 4

// Host addresses from here on name private memory, which has no address: `SLAT_PRIVATE_HVA + (number << 48) + offset`,
// for 16,384 memories of 2^48 bytes. Every function that takes a host address takes such a name; slat passes them to
// `resolve` and `lookup`.
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

// Flag of a VM: dirty logs use Dirty bits, if the format has them, instead of write protection.
#define SLAT_VM_DIRTY_BITS 1

// Flag of a VM: in a new dirty log every page is dirty, so it costs nothing to begin one.
#define SLAT_VM_DIRTY_INITIALLY_SET 2

// Flag of a VM: large pages have no execute permission; a fetch splits its page down to 4 KiB.
#define SLAT_VM_NX_HUGE_PAGES 4

// Flag of a VM: the first store to a large page of a slot that logs splits it; otherwise the begin of the log does.
#define SLAT_VM_DIRTY_SPLIT_LAZILY 8

// Result of a call. The numbers are those of Linux's errno.
enum slat_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Success.
    SLAT_OK = 0,
    // The thread token belongs to another thread.
    SLAT_EPERM = 1,
    // There is no such address space, memslot, log, vCPU, mapping or token.
    SLAT_ENOENT = 2,
    // The host could not read the page back. Another try may succeed.
    SLAT_EIO = 5,
    // The VM has no dirty rings; or it has rings, and one log cannot be harvested alone.
    SLAT_ENXIO = 6,
    // The call would have to wait for other invalidations, or for memory: try again.
    SLAT_EAGAIN = 11,
    // No memory.
    SLAT_ENOMEM = 12,
    // The host maps no page there for this access.
    SLAT_EFAULT = 14,
    // A handle is in use: by another call, by a vCPU in the guest, or by handles that were made from it.
    SLAT_EBUSY = 16,
    // Memslots would overlap, or the id is taken.
    SLAT_EEXIST = 17,
    // An argument is out of range: a null pointer, an address that is no multiple of 4096, an unknown number.
    SLAT_EINVAL = 22,
    // The caller must provide the page to the host.
    SLAT_ENODATA = 61,
    // The page is on its way to the host.
    SLAT_EINPROGRESS = 115,
    // The host has taken the held frame back: refresh it.
    SLAT_ESTALE = 116,
    // slat panicked, which is a bug in slat; the message is on stderr. Free all handles, and do not continue.
    SLAT_EPANIC = 131,
    // The page's memory is poisoned.
    SLAT_EPOISONED = 133,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_status slat_status;
#else
typedef uint32_t slat_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Result of a fault. After the first three the guest may try again. The others have changed nothing.
enum slat_done
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A page was mapped.
    SLAT_MAPPED = 0,
    // A permission was restored in place.
    SLAT_FIXED = 1,
    // Another vCPU had already resolved the fault.
    SLAT_SPURIOUS = 2,
    // No memslot is there, or the guest wrote to a read-only one, or fetched from one that does not execute: emulate the
    // access.
    SLAT_MMIO = 3,
    // A store while this vCPU's dirty ring is full. Try again when another thread has harvested or reset the ring.
    SLAT_RING_FULL = 4,
    // A store to a frame whose stores are tracked: make it by `slat_emulate_store`.
    SLAT_WRITE_TRACKED = 5,
    // The access was to private memory and the frame is shared, or the reverse. The VMM converts the frame, or ends
    // the guest.
    SLAT_MEMORY_FAULT = 6,
    // The host's page is on its way: the vCPU waits for `slat_vcpu_pending_token`, and may run another task of the
    // guest.
    SLAT_PENDING = 7,
    // The caller must provide the page, and try again when the host has it.
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

// Kind of an access.
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

// Reason why the host changes a range. It decides which edits are needed: `slat plan` prints the table.
enum slat_why
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The mapping is removed: munmap.
    SLAT_UNMAP = 0,
    // The mapping moves to another address: mremap, for the old range.
    SLAT_REMAP = 1,
    // The address space is destroyed.
    SLAT_EXIT = 2,
    // The pages are removed, the mapping stays.
    SLAT_CLEAR = 3,
    // A page moves to another frame with its contents.
    SLAT_MIGRATE = 4,
    // Some pages go to swap; page by page.
    SLAT_RECLAIM = 5,
    // A mapping loses write permission.
    SLAT_PROTECT = 6,
    // Pages lose write permission: fork, write-back.
    SLAT_WRITE_PROTECT = 7,
    // Pages lose write permission, to see which pages are written from now on.
    SLAT_SOFT_DIRTY = 8,
    // Some pages become inaccessible, to see which processor uses them; page by page.
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

// Operation on the Accessed bits of a range.
enum slat_young_how
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Read them, until the first one that is set.
    SLAT_TEST_YOUNG = 0,
    // Clear them. A TLB may keep a translation that sets no bit: the next access is then not seen.
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

// Kind of a memslot operation.
enum slat_slot_op_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Adds the slot.
    SLAT_SLOT_CREATE = 0,
    // Removes the slot of this id. Ignores the other fields.
    SLAT_SLOT_DELETE = 1,
    // Moves the slot of this id to `gpa`. Ignores the other fields.
    SLAT_SLOT_MOVE = 2,
    // Gives the slot of this id `flags`. All but `SLAT_SLOT_LOG_DIRTY` must be as they were created.
    SLAT_SLOT_FLAGS = 3,
    // Cuts [gpa, gpa + bytes) out of the slot of this id. The slot keeps the part below. If both parts are left, the
    // part above becomes slot `rest`, a free id. The remaining mappings stay. In a slot that logs, all remaining pages
    // count as written from then on.
    SLAT_SLOT_CUT = 4,
    // Adds the slot with two kinds of memory: shared at `hva`, and private at `private_hva`. All of it is shared at
    // first. The slot neither moves nor logs, and is not read-only.
    SLAT_SLOT_CREATE_WITH_PRIVATE = 5,
    // Makes [gpa, gpa + bytes) private in slots that have both kinds of memory. Ignores the id. Frames that change
    // lose their mappings, by one flush; nothing is copied.
    SLAT_SLOT_SET_PRIVATE = 6,
    // Makes [gpa, gpa + bytes) shared again, as `SLAT_SLOT_SET_PRIVATE` otherwise.
    SLAT_SLOT_SET_SHARED = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_slot_op_kind slat_slot_op_kind;
#else
typedef uint32_t slat_slot_op_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Memory type of a page. Each is narrower than the one before it; of memslot and host page the narrower one applies.
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

// Kind of an event of a VM.
enum slat_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A fault, or one page of a prefault, has mapped a page of `level`.
    SLAT_EVENT_MAPPED = 0,
    // A fault has restored a permission.
    SLAT_EVENT_FIXED = 1,
    // A fault found nothing wrong any more.
    SLAT_EVENT_SPURIOUS = 2,
    // A fault is an access to a device.
    SLAT_EVENT_MMIO = 3,
    // A fault has done nothing: a dirty ring is full, a page is pending, or the VMM must provide, convert or emulate.
    SLAT_EVENT_DEFERRED = 4,
    // A fault has ended with an error.
    SLAT_EVENT_FAILED = 5,
    // An attempt at a fault is repeated.
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
    // `count` cold tables were reclaimed, because the budget is used up.
    SLAT_EVENT_RECLAIMED = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slat_event_kind slat_event_kind;
#else
typedef uint32_t slat_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A change of the host's tables. One call at a time may use it, from any thread.
typedef struct slat_change slat_change;

// Pages taken from dirty logs. Any thread may read it.
typedef struct slat_harvest slat_harvest;

// A held guest frame. One call at a time may use the handle, from any thread; from `slat_held_use` to `slat_held_done`
// only that thread.
typedef struct slat_held slat_held;

// Frames that several vCPUs map together. It belongs to no VM. Any thread may use it.
typedef struct slat_population slat_population;

// A thread's token. Calls that may wait need it. Each thread has one, and only that thread uses it.
typedef struct slat_thread slat_thread;

// A tracker of stores: a listener, and its frames.
typedef struct slat_tracking slat_tracking;

// A vCPU. One call at a time may use it, from any thread; from `slat_vcpu_enter` to `slat_vcpu_leave` only that
// thread.
typedef struct slat_vcpu slat_vcpu;

// A virtual machine: memslots, and the page table of one format. Any thread may use it.
typedef struct slat_vm slat_vm;

// Options of a VM. Set `size`, and zero the rest for the defaults.
typedef struct slat_config {
    // `sizeof(struct slat_config)`: tells versions of this structure apart.
    size_t size;
    // The page-table format.
    slat_format format;
    // Number of vCPUs, 65,536 at most; zero means one.
    uint32_t vcpus;
    // Bits of a guest-physical address; zero, or more than the format translates, means as many as that.
    uint32_t address_bits;
    // The largest page to map: 1 for 4 KiB, 2 for 2 MiB, 3 or zero for 1 GiB.
    uint32_t max_level;
    // Upper bound of memslot ids; zero means 32,764, as in KVM.
    uint32_t max_slots;
    // `SLAT_VM_*`.
    uint32_t flags;
    // Number of address spaces, each with memslots and tables of its own, 255 at most; zero means one. Numbers begin
    // at 0, and vCPUs begin in number 0.
    uint32_t address_spaces;
    // Zero: dirty logs are bitmaps. Otherwise the bytes of each vCPU's dirty ring, 16 for a store: a power of two from
    // 4096 to 1 MiB. `slat_set_dirty_log` can add rings later.
    uint32_t ring_bytes;
    // Most bytes of table pages in use; above it slat reclaims the coldest tables. Zero means no limit.
    uint64_t table_budget;
} slat_config;

// The host's page at an address.
typedef struct slat_page {
    // The frame of the requested 4 KiB: physical address / 4096, as hardware sees it.
    uint64_t pfn;
    // Size of the host's page there, with the same rights everywhere: zero or 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    uint32_t level;
    // `SLAT_PAGE_WRITE` if the guest may write to it now, `SLAT_PAGE_NO_EXECUTE` if it may not execute it. Other bits
    // are ignored.
    uint32_t flags;
    // Memory type: zero is ordinary memory.
    slat_memory memory;
} slat_page;

// An event of a VM. Fields that its kind does not mention are zero.
typedef struct slat_event {
    // A `slat_event_kind`. Later versions may know more.
    uint32_t kind;
    // The vCPU of faults and retries.
    uint32_t vcpu;
    // The first frame.
    uint64_t gfn;
    // Number of frames: one for a fault.
    uint64_t frames;
    // Meaning depends on the kind.
    uint64_t count;
    // 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    uint32_t level;
    // For faults, a `slat_access`.
    uint32_t access;
    // The cause of retries, zaps and flushes: a static string of `cause_bytes` bytes without a terminating zero.
    // Otherwise null.
    const char *cause;
    // Length of `cause` in bytes.
    size_t cause_bytes;
} slat_event;

// Functions of the host, each with `user` as its first argument. Any thread that calls slat may call them, several at
// once. They return normally: a longjmp or a C++ exception out of one is undefined behaviour.
//
// The contract: before the host takes a page away from an address, moves it, or withdraws write permission, it begins
// an invalidation of the range and applies it. Then it changes its own tables, and then it ends the invalidation. The
// answers of `resolve` and `lookup` must match those tables at that moment.
typedef struct slat_host {
    // `sizeof(struct slat_host)`: tells versions of this structure apart.
    size_t size;
    // First argument of each function.
    void *user;
    // Makes the page at `hva` present for this access and describes it in `page`, which is zeroed before. A page for
    // `SLAT_WRITE` is writable. May sleep. May call slat with `thread`, which is valid until this returns, but may not
    // enter a guest with it. Returns `SLAT_OK`, or `SLAT_EFAULT`, `SLAT_ENOMEM`, `SLAT_EPOISONED`, `SLAT_EIO`; any
    // other number counts as `SLAT_EFAULT`.
    //
    // Two answers avoid waiting for the page. `SLAT_EINPROGRESS`: the page is on its way, and the fault returns
    // `SLAT_PENDING`; the thread that brings the page calls `slat_ready`. After this answer slat asks for the page
    // **once more**, so that it does not miss a page that came in between. `SLAT_ENODATA`: the caller of the fault
    // must provide the page, and the fault returns `SLAT_NEEDS_PAGE`.
    slat_status (*resolve)(void *user,
                           const struct slat_thread *thread,
                           uint64_t hva,
                           slat_access access,
                           struct slat_page *page);
    // May be null. Does the same without sleeping. After any answer but `SLAT_OK` the fault calls `resolve`. Takes no
    // lock that is held while slat is called, allocates nothing, and does not call slat.
    slat_status (*lookup)(void *user, uint64_t hva, slat_access access, struct slat_page *page);
    // May be null: then a page's token is its address. Returns the token of the page at `hva`, for which `resolve` has
    // just answered `SLAT_EINPROGRESS`. A token may stand for a page or for a request. Does not call slat.
    uint64_t (*token)(void *user, uint64_t hva);
    // May be null if vCPUs poll `slat_vcpu_kicked`. Makes the vCPU leave the guest soon, or call `slat_vcpu_answer`,
    // by an IPI or a signal. slat calls it for flushes, and for a ready token, then also for a vCPU out of the guest.
    // Does not call slat.
    void (*kick)(void *user, uint32_t vcpu);
    // May be null. Makes every processor forget these frames, at any page size and under any tag of the VM's vCPUs, by
    // a broadcast of the hardware (TLBI in the inner-shareable domain, INVLPGB and TLBSYNC, remote fences). Returns
    // whether the broadcast is complete. If it returns false, slat kicks vCPUs. Does not call slat.
    bool (*broadcast_flush)(void *user, uint64_t first_gfn, uint64_t frames);
    // May be null. Receives an event of the VM, on the thread that caused it. `event` is valid until this returns.
    // Does not wait, takes no lock that is held while slat is called, and does not call slat.
    void (*observe)(void *user, const struct slat_event *event);
    // May be null together with `free_tables`: then tables come from the global allocator. Returns memory of `bytes`
    // bytes, aligned to `bytes`, that nothing else uses until it is freed; or null. May sleep.
    void *(*alloc_tables)(void *user, size_t bytes);
    // Frees memory of `alloc_tables`. May sleep.
    void (*free_tables)(void *user, void *tables, size_t bytes);
    // slat accesses table memory at physical address p through p + `table_offset`, modulo 2^64: a kernel's direct map,
    // a multiple of 4096. Zero if they are the same, as for a software walker. slat refuses memory whose physical
    // address the format cannot express.
    uint64_t table_offset;
} slat_host;

// Counters of a VM. Sums over all threads, each read at a slightly different moment.
typedef struct slat_stats {
    // Faults that mapped a page.
    uint64_t mapped_faults;
    // Faults that restored a permission.
    uint64_t permission_faults;
    // Faults that found nothing wrong any more.
    uint64_t spurious_faults;
    // Faults on no memslot, or writes to a read-only one.
    uint64_t mmio_faults;
    // Repeated attempts at a fault.
    uint64_t retries;
    // Currently mapped leaves of 4 KiB, 2 MiB and 1 GiB.
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

// A vCPU in the guest that has not answered a flush: see `slat_vm_unanswered`.
typedef struct slat_unanswered {
    // The vCPU.
    uint32_t vcpu;
    // The number of the first flush that it has not answered; the first flush of a VM has number 1. While this stays
    // the same, the vCPU has answered nothing.
    uint64_t since;
    // Number of flushes that it has not answered.
    uint64_t flushes;
} slat_unanswered;

// A mapping of a VM at a frame.
typedef struct slat_mapping {
    // The first guest frame of the page.
    uint64_t gfn;
    // The first frame of the page: frame gfn + n of the guest is frame pfn + n.
    uint64_t pfn;
    // Its size, in frames of 4 KiB.
    uint64_t frames;
    // `SLAT_PAGE_*`: the permissions, and the Accessed and Dirty bits.
    uint32_t flags;
    // Memory type.
    slat_memory memory;
} slat_mapping;

// A memslot: guest memory, and the host address behind it.
typedef struct slat_slot {
    // Number of the slot.
    uint32_t id;
    // `SLAT_SLOT_*`.
    uint32_t flags;
    // Guest-physical address.
    uint64_t gpa;
    // Size.
    uint64_t bytes;
    // The host address of its first byte.
    uint64_t hva;
    // Memory type of its pages, which the host may narrow for a page: zero is ordinary memory.
    slat_memory memory;
} slat_slot;

// One operation of a memslot transaction.
typedef struct slat_slot_op {
    // Kind of the operation.
    slat_slot_op_kind kind;
    // The slot.
    struct slat_slot slot;
    // For `SLAT_SLOT_CREATE_WITH_PRIVATE`: start of its private memory (`SLAT_PRIVATE_HVA`).
    uint64_t private_hva;
    // For `SLAT_SLOT_CUT`: id of the part above.
    uint32_t rest;
} slat_slot_op;

// Functions that make a processor forget translations: a TLB in software, or INVEPT, INVLPGA, TLBI, HFENCE on the
// processor of the calling thread. They do not call slat, and return normally.
typedef struct slat_tlb {
    // First argument of each function.
    void *user;
    // Forgets all translations of this vCPU, including paging-structure caches.
    void (*flush_all)(void *user);
    // May be null, which means `flush_all`. Forgets at least every translation of these frames, at every page size,
    // and every cached link above them.
    void (*flush)(void *user, uint64_t first_gfn, uint64_t frames);
} slat_tlb;

// A word of a dirty log: 64 pages of a slot.
typedef struct slat_dirty_word {
    // Number in the slot of the page of bit 0: a multiple of 64.
    uint64_t first_page;
    // The guest frame of that page at the harvest. Slots move.
    uint64_t gfn;
    // The host address behind it.
    uint64_t hva;
    // Bit n stands for page `first_page` + n.
    uint64_t bits;
    // The slot.
    uint32_t slot;
    // The address space of the slot.
    uint32_t space;
} slat_dirty_word;

// One dirty page of a ring.
typedef struct slat_dirty_page {
    // Number of the page in the slot.
    uint64_t page;
    // The guest frame of the page when it was reported. Slots move.
    uint64_t gfn;
    // The host address behind it.
    uint64_t hva;
    // The slot.
    uint32_t slot;
    // The address space of the slot.
    uint32_t space;
} slat_dirty_page;

// A store to tracked frames, for its listeners.
typedef struct slat_store {
    // Guest address.
    uint64_t gpa;
    // The stored bytes; the store lies in one page.
    const void *bytes;
    // Number of bytes.
    size_t count;
    // The address space.
    uint32_t space;
} slat_store;

// Functions for stores to tracked frames, each with `user` as its first argument. The storing thread calls them,
// several threads at once. They may sleep. They may call slat with `thread`, which is valid until they return, but may
// not enter a guest with it.
typedef struct slat_listener {
    // First argument of each function.
    void *user;
    // May be null. Called before the store, when memory still has the old bytes.
    void (*before)(void *user, const struct slat_thread *thread, const struct slat_store *store);
    // May be null. Called after the store, and after its mark in the dirty log.
    void (*after)(void *user, const struct slat_thread *thread, const struct slat_store *store);
    // May be null. Called once, when no more calls follow: `user` may be freed. The thread that ends the last use
    // calls it, maybe some time after `slat_untrack_writes`. Does not call slat.
    void (*release)(void *user);
} slat_listener;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the meaning of a status in English: a static string, also for an unknown number. Any thread; never sleeps.
const char *slat_strerror(slat_status status);

// Makes the calling thread's token, in `thread`. Never sleeps.
//
// Owed: `slat_thread_free` by the same thread, before it ends. Errors: `SLAT_EBUSY` if the thread has one, or in a
// callback that may not sleep; `SLAT_EINVAL`. A library without `std` cannot tell threads apart. There, no other token of this thread may be in use
// (or of this processor in a kernel without threads), and slat does not check that other threads leave the token
// alone.
slat_status slat_thread_new(struct slat_thread **thread);

// Frees a token. Only its own thread; never sleeps.
//
// Errors, after which the token is unchanged: `SLAT_EBUSY` in a call or in the guest; `SLAT_EPERM` in another thread;
// `SLAT_EINVAL` for null and for the token that `resolve` was given.
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
// Errors, after which the VM is unchanged: `SLAT_EBUSY` while it has vCPUs, invalidations, harvests, held frames or
// trackers of stores; `SLAT_EINVAL`. Not checked: that no other thread uses the VM meanwhile or later.
slat_status slat_vm_free(struct slat_vm *vm);

// Returns the counters of a VM, in `stats`. Any thread; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_vm_stats(const struct slat_vm *vm, struct slat_stats *stats);

// Lists the vCPUs that are in the guest and have not answered a flush, for a watchdog of a call that does not return
// from a flush: up to `room` of them in `vcpus`, and their total, which may be more, in `count`. For a moment each
// flush is unanswered. A vCPU that is listed again after a while with the same `since` does not answer: its kick does
// not reach it, it does not poll `slat_vcpu_kicked`, or its thread waits for the one that flushes. Any thread; never
// sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_vm_unanswered(const struct slat_vm *vm,
                               struct slat_unanswered *vcpus,
                               size_t room,
                               size_t *count);

// Returns the current mapping of guest address `gpa` of address space `space`, in `mapping`. An invalidation may
// remove it before this returns. A software vCPU puts it into its TLB out of the guest and uses it in the guest: the
// entry forgets what was flushed in between. Sets no Accessed or Dirty bit: in a format that has them, a guest's own
// accesses use `slat_vcpu_access`. Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_translate(const struct slat_vm *vm,
                           const struct slat_thread *thread,
                           uint32_t space,
                           uint64_t gpa,
                           struct slat_mapping *mapping);

// Marks these host addresses dirty in each memslot that logs, after a device or the VMM has written them. Any thread,
// also in the guest; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_mark_dirty(const struct slat_vm *vm,
                            uint64_t hva,
                            uint64_t bytes);

// Returns whether the guest has accessed any page of this host range since its Accessed bit was cleared, in `young`.
// `how` says whether to clear the bits. Any thread; `SLAT_CLEAR_YOUNG_AND_FLUSH` waits for vCPUs in the guest.
//
// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_young(const struct slat_vm *vm,
                       const struct slat_thread *thread,
                       uint64_t hva,
                       uint64_t bytes,
                       slat_young_how how,
                       bool *young);

// Does an aging pass: calls `seen` with the pages of this host range that the guest has accessed since their Accessed
// bits were cleared, and clears the bits. Bit n mod 64 of word n / 64 stands for the nth page from `hva` on, of
// `pages` pages, 512 at most. TLBs keep translations that set no bit until they forget them (`slat_forget`). `seen`
// does not wait, and does not call slat. Any thread; never sleeps.
//
// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_age(const struct slat_vm *vm,
                     const struct slat_thread *thread,
                     uint64_t hva,
                     uint64_t bytes,
                     void (*seen)(void *user, uint64_t hva, uint32_t pages, const uint64_t *bits),
                     void *user);

// Asks every TLB to forget this host range soon, so that the next access after an aging pass is seen. There is no
// guarantee. Any thread; never sleeps. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_forget(const struct slat_vm *vm,
                        const struct slat_thread *thread,
                        uint64_t hva,
                        uint64_t bytes);

// Runs `count` memslot operations in order, in address space `space`, and publishes all of them at once: no vCPU ever
// sees a part of them. Memory that slots lose is unmapped and flushed before this returns. Any thread; waits for vCPUs
// in the guest, for readers, and for other transactions. The rules are KVM's.
//
// Errors, after which nothing has changed, and `failed`, unless it is null, has the number of the refused operation:
// `SLAT_EINVAL`, `SLAT_EEXIST`, `SLAT_ENOENT` (also for the space), `SLAT_ENOMEM`; `SLAT_EBUSY`, `SLAT_EPERM` for the
// token.
slat_status slat_slots_commit(const struct slat_vm *vm,
                              const struct slat_thread *thread,
                              uint32_t space,
                              const struct slat_slot_op *ops,
                              size_t count,
                              size_t *failed);

// Returns the memslot of guest address `gpa` of address space `space`, in `slot`. For a slot with private memory it is
// the part around `gpa` that is all private, or all shared. Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_slots_find(const struct slat_vm *vm,
                            const struct slat_thread *thread,
                            uint32_t space,
                            uint64_t gpa,
                            struct slat_slot *slot);

// Makes vCPU number `id` of a VM, out of the guest, in `vcpu`. Copies `tlb`. Any thread; never sleeps.
//
// The caller promises that the functions of `tlb` do what their comments say. Owed: `slat_vcpu_free`. Errors:
// `SLAT_ENOENT` if the VM was made with fewer; `SLAT_EBUSY` if this vCPU exists already; `SLAT_EINVAL`.
slat_status slat_vcpu_new(const struct slat_vm *vm,
                          uint32_t id,
                          const struct slat_tlb *tlb,
                          struct slat_vcpu **vcpu);

// Frees a vCPU, so that its number can be used again. Any thread; never sleeps.
//
// Errors, after which the vCPU is unchanged: `SLAT_EBUSY` in the guest or in another call; `SLAT_EINVAL`. Not checked:
// that no thread uses it later.
slat_status slat_vcpu_free(struct slat_vcpu *vcpu);

// Handles an access to guest address `gpa` that the hardware could not complete. `done` gets the result. Out of the
// guest. May sleep in the host's `resolve`, and waits for an invalidation that covers the page. A processor that
// caches a missing permission or mapping (Arm, RISC-V) forgets this page itself before the guest tries again.
//
// Errors, after which the VM can continue: `SLAT_EFAULT`, `SLAT_EPOISONED`, `SLAT_EIO` from the host; `SLAT_ENOMEM`;
// `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for vCPU and token.
slat_status slat_vcpu_fault(const struct slat_vcpu *vcpu,
                            const struct slat_thread *thread,
                            uint64_t gpa,
                            slat_access wants,
                            slat_done *done);

// The same for a guest with private and shared memory that names the kind of memory: by a bit of the address (TDX),
// which `gpa` lacks, or as the exit reports it (SEV-SNP). If the frame is of the other kind, `done` gets
// `SLAT_MEMORY_FAULT`, also if a page is mapped.
slat_status slat_vcpu_fault_as(const struct slat_vcpu *vcpu,
                               const struct slat_thread *thread,
                               uint64_t gpa,
                               slat_access wants,
                               bool is_private,
                               slat_done *done);

// Translates an access by a guest in software, as the hardware's walk does on a TLB miss, in `mapping`. Sets Accessed
// in links and leaf, and Dirty for a store, if the format has them: aging and dirty logs by Dirty bits then see the
// guest's accesses. Out of the guest. Never sleeps.
//
// The vCPU puts the mapping into its TLB and uses it in the guest: the entry forgets what was flushed in between. In a
// format with Dirty bits a store uses a mapping only if it has `SLAT_PAGE_DIRTY`.
//
// Errors: `SLAT_ENOENT` if no leaf allows the access: call `slat_vcpu_fault`, then this again; `SLAT_EINVAL`;
// `SLAT_EBUSY`, `SLAT_EPERM` for vCPU and token.
slat_status slat_vcpu_access(const struct slat_vcpu *vcpu,
                             const struct slat_thread *thread,
                             uint64_t gpa,
                             slat_access wants,
                             struct slat_mapping *mapping);

// Switches to another address space, such as that of system management mode. The vCPU loads its root at the next
// entry. Out of the guest. Any thread; never sleeps. Errors: `SLAT_ENOENT` if the VM was made with fewer;
// `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_switch_to(const struct slat_vcpu *vcpu,
                                uint32_t space);

// Enters the guest on processor `cpu`, on which the thread stays until it has left. `root` gets the frame from which
// the hardware must walk (EPTP, nCR3, VTTBR, hgatp). Before this returns, slat calls the vCPU's `flush` and
// `flush_all` for flushes that came while it was out. It calls only `flush_all` if processor or root have changed, and
// at the first entry. A software vCPU whose TLB moves with it always passes the same `cpu`.
//
// On hardware the vCPU's thread then disables interrupts and calls `slat_vcpu_kicked`. If that is true, it leaves,
// enables interrupts, and enters again. Otherwise the hardware may enter the guest, and a later kick brings it out.
//
// Owed: an answer to kicks, soon, by `slat_vcpu_answer` or `slat_vcpu_leave`, because invalidations wait for it. Until
// the vCPU leaves, the thread's token is in use. Never sleeps. Errors: `SLAT_EBUSY` if vCPU or token are in use, and
// for the token that `resolve` was given; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_vcpu_enter(const struct slat_vcpu *vcpu,
                            const struct slat_thread *thread,
                            uint64_t cpu,
                            uint64_t *root);

// Returns whether an operation waits for this vCPU. A software vCPU calls this between accesses; a vCPU on hardware
// calls it before each entry, with interrupts disabled. Only the thread that entered, in the guest. Returns false for
// null, and out of the guest. Not checked: that the thread is this one.
bool slat_vcpu_kicked(const struct slat_vcpu *vcpu);

// Forgets flushed translations by the vCPU's `flush` and `flush_all`, and answers the operations that wait. The guest
// continues from `root`, which may have changed. Only the thread that entered, in the guest, on the same processor;
// never sleeps.
//
// Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_vcpu_answer(const struct slat_vcpu *vcpu,
                             uint64_t *root);

// Leaves the guest, and frees the thread's token. Only the thread that entered; never sleeps.
//
// Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_vcpu_leave(const struct slat_vcpu *vcpu);

// Maps [gpa, gpa + bytes) from the first frame on, in the vCPU's address space, so that such an access needs no fault
// afterwards. Pages are young (`is_young`) or not. `mapped` gets the number of mapped bytes. It is smaller if the next
// frame has no memslot, if such an access is a device's or tracked, or if the host has no page for it now; another
// call from there returns the reason. Out of the guest. May sleep in `resolve`. If a page is on its way, the vCPU
// waits for its token as after a fault.
//
// Errors if the first frame could not be mapped: as `slat_vcpu_fault`; `SLAT_EINPROGRESS`, `SLAT_ENODATA` for its
// page.
slat_status slat_vcpu_prefault(const struct slat_vcpu *vcpu,
                               const struct slat_thread *thread,
                               uint64_t gpa,
                               uint64_t bytes,
                               slat_access wants,
                               bool is_young,
                               uint64_t *mapped);

// Makes a population of the frames of [gpa, gpa + bytes), in `population`. vCPUs then map them together by
// `slat_vcpu_populate`. Never sleeps.
//
// Owed: `slat_population_free`. Errors: `SLAT_EINVAL`.
slat_status slat_population_new(uint64_t gpa,
                                uint64_t bytes,
                                slat_access wants,
                                bool is_young,
                                struct slat_population **population);

// Frees a population. Never sleeps. Errors: `SLAT_EBUSY` while a vCPU maps frames of it; `SLAT_EINVAL`. Not checked:
// that no thread uses it later.
slat_status slat_population_free(struct slat_population *population);

// Takes stretches of a population and maps them, in the vCPU's address space, until none is left. Then `rest_bytes` is
// zero, though other vCPUs may still map theirs. If a frame could not be mapped, `rest_gpa` and `rest_bytes` are the
// rest of this vCPU's stretch, which no other vCPU maps. `slat_vcpu_prefault` of it returns the reason; the next call
// takes the next stretch. Out of the guest. May sleep in `resolve`. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM`
// for vCPU and token.
slat_status slat_vcpu_populate(const struct slat_vcpu *vcpu,
                               const struct slat_thread *thread,
                               const struct slat_population *population,
                               uint64_t *rest_gpa,
                               uint64_t *rest_bytes);

// Returns the bytes mapped so far, in `mapped`, and all bytes, in `all`. Any thread; never sleeps. Errors:
// `SLAT_EINVAL`.
slat_status slat_population_progress(const struct slat_population *population,
                                     uint64_t *mapped,
                                     uint64_t *all);

// Makes vCPUs take no further stretch. Each finishes its current one: 32 MiB at most. Any thread; never sleeps.
// Errors: `SLAT_EINVAL`.
slat_status slat_population_stop(const struct slat_population *population);

// Reports that the page with the token `token` is present, or will not come: wakes the vCPUs that wait for it, by
// `kick`. `woken` gets their number, unless it is null. Call this after the host's own table has the page. A second
// call, or a call for an unknown token, has no effect. Any thread, also in the guest, which holds no lock that `kick`
// takes; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_ready(const struct slat_vm *vm,
                       uint64_t token,
                       size_t *woken);

// Lists the vCPUs that wait for `token`, which is not ready: up to `room` of their numbers in `vcpus`, and their
// total, which may be more, in `count`. Others may begin to wait meanwhile. Any thread; never sleeps. Errors:
// `SLAT_EINVAL`.
slat_status slat_waiters(const struct slat_vm *vm,
                         uint64_t token,
                         uint32_t *vcpus,
                         size_t room,
                         size_t *count);

// Returns the token of the page for which the last pending fault, or prefault, of this vCPU ended. Out of the guest.
// Any thread; never sleeps. Errors: `SLAT_ENOENT` if there was none; `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_pending_token(const struct slat_vcpu *vcpu,
                                    uint64_t *token);

// Takes a ready token for which this vCPU waits: the guest may repeat the accesses that got this token. The vCPU no
// longer waits for it, and gets it once. Call this before each entry. Out of the guest. Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT` if none is ready; `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_take_ready(const struct slat_vcpu *vcpu,
                                 uint64_t *token);

// Returns whether a token for which this vCPU waits is ready, in `is_ready`. Call this in the guest, beside
// `slat_vcpu_kicked`. Only the thread that entered; never sleeps. Errors: `SLAT_EBUSY` out of the guest; `SLAT_EPERM`,
// `SLAT_EINVAL`.
slat_status slat_vcpu_has_ready(const struct slat_vcpu *vcpu,
                                bool *is_ready);

// Makes this vCPU wait for no token any more, because it is reset, or its guest moves away. Out of the guest. Any
// thread; never sleeps. Errors: `SLAT_EBUSY`, `SLAT_EINVAL`.
slat_status slat_vcpu_forget_tokens(const struct slat_vcpu *vcpu);

// Begins an invalidation of [hva, hva + bytes) before the host changes its tables there, for this reason. The handle
// is in `change`. Faults on the range wait until it ends. Any thread, also in the guest; never sleeps. Up to 4,032 may
// be open, also nested.
//
// Owed: `slat_invalidate_end`, soon. Errors: `SLAT_EAGAIN` where 4,032 are open, or memory for more than 64 cannot be had;
// `SLAT_EINVAL`.
slat_status slat_invalidate_begin(const struct slat_vm *vm,
                                  uint64_t hva,
                                  uint64_t bytes,
                                  slat_why why,
                                  struct slat_change **change);

// Applies the edits of the reason to the guest's tables, and flushes. When this returns, no vCPU uses the old
// mappings, and the host may change its own tables. For a page-by-page reason (`SLAT_RECLAIM`, `SLAT_NUMA`,
// `SLAT_CHANGE_PTE`) every page of the range counts as changed; a host that reports single pages does not call this.
// Any thread; waits for vCPUs in the guest, and may sleep in the host's
// `alloc_tables` and `free_tables`.
//
// Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for change and token.
slat_status slat_invalidate_apply(const struct slat_change *change,
                                  const struct slat_thread *thread);

// For a page-by-page reason, instead of `slat_invalidate_apply`: reports that the host's page at [hva, hva + bytes), in the range of the change, is now
// `to`, or nothing if `to` is null. Edits the guest's mappings of it, and flushes. When this returns, no vCPU uses the
// old frame. The host calls this under its own lock of the page, and copies or frees the old frame afterwards. After
// `slat_invalidate_apply` this does nothing. Any thread; waits for vCPUs in the guest.
//
// Errors: `SLAT_EINVAL`, also for a range outside of the change; `SLAT_EBUSY`, `SLAT_EPERM` for change and token.
slat_status slat_invalidate_changed(const struct slat_change *change,
                                    const struct slat_thread *thread,
                                    uint64_t hva,
                                    uint64_t bytes,
                                    const struct slat_page *to);

// Ends an invalidation and frees its handle: faults on the range continue, and ask the host again. Without an apply
// the invalidation is cancelled, and the host then changes nothing. Any thread, also in the guest; never sleeps.
//
// Errors, after which it is still open: `SLAT_EBUSY` in another call, `SLAT_EINVAL`.
slat_status slat_invalidate_end(struct slat_change *change);

// Takes the pages that memslot `id` of address space `space` has logged, in `harvest`. They are clean from now on, and
// the next store to each is logged again. When this returns, earlier stores of vCPUs are in memory: copy the pages
// after it. Any thread; waits for vCPUs in the guest, unless nothing was dirty.
//
// Owed: `slat_harvest_commit` or `slat_harvest_fail`. Errors, after which the log is unchanged: `SLAT_ENOENT` if there
// is no such space or slot, or it does not log; `SLAT_ENXIO` in a VM with dirty rings; `SLAT_ENOMEM`, `SLAT_EINVAL`;
// `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_harvest_begin(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t space,
                               uint32_t id,
                               struct slat_harvest **harvest);

// The same for every slot of the address space that logs, with one flush for all of them. In a VM with dirty rings
// this empties all rings, also of pages of other spaces: every vCPU has room again.
slat_status slat_harvest_all_begin(const struct slat_vm *vm,
                                   const struct slat_thread *thread,
                                   uint32_t space,
                                   struct slat_harvest **harvest);

// Returns the number of pages; zero for null. Any thread; never sleeps.
uint64_t slat_harvest_pages(const struct slat_harvest *harvest);

// Copies the words with a dirty page to `words`, slot by slot, in order of pages: those from number `from` on, at most
// `room`. `count` gets their number; fewer than `room` are the last ones. To skip `from` words costs a step each. Any
// thread; never sleeps. Errors: `SLAT_EINVAL`.
slat_status slat_harvest_words(const struct slat_harvest *harvest,
                               size_t from,
                               struct slat_dirty_word *words,
                               size_t room,
                               size_t *count);

// Ends a harvest whose pages are safe elsewhere: the log forgets them. Frees the handle. Any thread; never sleeps. Not
// checked: that no thread uses it meanwhile or later. Errors: `SLAT_EINVAL`.
slat_status slat_harvest_commit(struct slat_harvest *harvest);

// Ends a harvest whose pages could not be copied: they are dirty again. Frees the handle. As `slat_harvest_commit` otherwise.
slat_status slat_harvest_fail(struct slat_harvest *harvest);

// Changes the settings of a VM's dirty logs at run time. `flags` are `SLAT_VM_DIRTY_*`, and `ring_bytes` is as in
// `slat_config`. Later logs begin set or clear, and split large pages, as the flags say. Rings can be added to a VM
// without rings while it has no vCPUs. The size of rings, their removal, and `SLAT_VM_DIRTY_BITS` in a format that has
// them, cannot change. Any thread; waits for transactions.
//
// Errors, after which nothing has changed: `SLAT_EINVAL`, `SLAT_ENOMEM`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_set_dirty_log(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t flags,
                               uint32_t ring_bytes);

// Takes the pages that one vCPU has written since its ring was last harvested, in `harvest`; otherwise as
// `slat_harvest_begin`. Marks of devices, and pages that a failed harvest gives back, are in no ring:
// `slat_harvest_all_begin` takes them.
//
// Errors, after which nothing is lost: `SLAT_ENXIO` in a VM without rings; `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`,
// `SLAT_EPERM` for the token.
slat_status slat_ring_harvest_begin(const struct slat_vm *vm,
                                    const struct slat_thread *thread,
                                    uint32_t vcpu,
                                    struct slat_harvest **harvest);

// The first of two steps: calls `tell` with the pages that one vCPU has written and that were not reported yet, in the
// order of its stores; a page may occur more than once. `count` gets their number. This cleans no page: copy pages
// after `slat_rings_reset`. `tell` does not wait, and does not call slat. Any thread; never sleeps. Errors: as
// `slat_ring_harvest_begin`.
slat_status slat_ring_collect(const struct slat_vm *vm,
                              const struct slat_thread *thread,
                              uint32_t vcpu,
                              void (*tell)(void *user, const struct slat_dirty_page *page),
                              void *user,
                              uint64_t *count);

// The second step: all collected pages, of every vCPU, are clean from now on, and the vCPUs have room again. `count`
// gets the number of stores. When this returns, earlier stores are in memory: copy the pages after it. Any thread;
// waits for vCPUs in the guest, unless nothing was collected. Errors, after which `slat_harvest_all_begin` takes the
// pages that are neither clean nor collected: as `slat_ring_harvest_begin`.
slat_status slat_rings_reset(const struct slat_vm *vm,
                             const struct slat_thread *thread,
                             uint64_t *count);

// Returns the number of stores of one vCPU that were collected and not reset, in `count`. Any thread; never sleeps.
// Errors: as `slat_ring_harvest_begin`.
slat_status slat_ring_not_reset(const struct slat_vm *vm,
                                const struct slat_thread *thread,
                                uint32_t vcpu,
                                uint64_t *count);

// Copies the dirty log of memslot `id` to `words`, without a change: bit n mod 64 of word n / 64 stands for page n of
// the slot. `count` is the room, one word for each 64 pages of the slot. `pages` gets the number of dirty pages. Clean
// the pages with `slat_dirty_clear`, and copy them **after** that call. Any thread; never sleeps.
//
// Errors: `SLAT_ENOENT` if there is no such space or slot, or it does not log; `SLAT_ENXIO` in a VM with dirty rings;
// `SLAT_EINVAL`, also if there is no room; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_dirty_bits(const struct slat_vm *vm,
                            const struct slat_thread *thread,
                            uint32_t space,
                            uint32_t id,
                            uint64_t *words,
                            size_t count,
                            uint64_t *pages);

// Cleans pages of memslot `id`: of the `pages` pages from number `first` on, those whose bit is set in `words` (bit 0
// of the first word is page `first`), of which there are `count`. The next store to each is logged again. `cleared`
// gets how many were dirty. `first` is a multiple of 64, and so is `pages`, unless they end the slot. KVM's
// `KVM_CLEAR_DIRTY_LOG`. Any thread; waits for vCPUs in the guest.
//
// Errors, after which nothing is cleared: those of `slat_dirty_bits`.
slat_status slat_dirty_clear(const struct slat_vm *vm,
                             const struct slat_thread *thread,
                             uint32_t space,
                             uint32_t id,
                             uint64_t first,
                             uint64_t pages,
                             const uint64_t *words,
                             size_t count,
                             uint64_t *cleared);

// Marks pages of memslot `id` that another log found, such as a device's: those whose bit is set in `words`, from page
// `first` on, a multiple of 64. Bits past the end of the slot are ignored. Any thread; never sleeps. Errors:
// those of `slat_dirty_bits`, without `SLAT_ENXIO`.
slat_status slat_dirty_mark(const struct slat_vm *vm,
                            const struct slat_thread *thread,
                            uint32_t space,
                            uint32_t id,
                            uint64_t first,
                            const uint64_t *words,
                            size_t count);

// Takes the write permission from every mapping of [gpa, gpa + bytes). The next store to each page faults, and
// `slat_vcpu_fault` restores the permission. Any thread; waits for vCPUs in the guest, unless nothing was writable.
// Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_write_protect(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t space,
                               uint64_t gpa,
                               uint64_t bytes);

// Splits the large pages of [gpa, gpa + bytes) down to `level` (1 is 4 KiB, 2 is 2 MiB), before a dirty log needs small
// ones. No vCPU stops, and no permission changes. `pages` gets the number of large pages that were split. Any thread;
// may sleep in the host's `alloc_tables`. Errors: `SLAT_ENOMEM`, after which some are split; `SLAT_ENOENT`,
// `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_split(const struct slat_vm *vm,
                       const struct slat_thread *thread,
                       uint32_t space,
                       uint64_t gpa,
                       uint64_t bytes,
                       uint32_t level,
                       uint64_t *pages);

// Replaces tables of small pages in [gpa, gpa + bytes) by large pages, where the host's `lookup` now returns one and no
// log needs small ones. `pages` gets the number of large pages. Any thread; waits for vCPUs in the guest. Errors: `SLAT_ENOENT`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_recover(const struct slat_vm *vm,
                         const struct slat_thread *thread,
                         uint32_t space,
                         uint64_t gpa,
                         uint64_t bytes,
                         uint64_t *pages);

// Zaps all mappings of all address spaces at once, by new roots. `slat_vcpu_enter` loads the new root. Waits for vCPUs
// in the guest; may sleep in the host's functions for tables. Errors: `SLAT_ENOMEM`, after which some address spaces are
// zapped; `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_zap_all(const struct slat_vm *vm,
                         const struct slat_thread *thread);

// Returns free table memory to the host. `bytes` gets by how much the VM's memory shrank. May sleep in the host's
// `free_tables`. Errors: `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_shrink(const struct slat_vm *vm,
                        const struct slat_thread *thread,
                        uint64_t *bytes);

// Tracks stores to [gpa, gpa + bytes) of address space `space`. After this call each store of a vCPU there faults as
// `SLAT_WRITE_TRACKED`, and the VMM makes it by `slat_emulate_store`, which calls `listener`. Loads and fetches do not
// fault. The frames need no memslot; memslots that are deleted, move or log change nothing. Trackers of one frame
// nest. Copies `listener`. Any thread; waits for vCPUs in the guest.
//
// The caller promises that the functions of `listener` do what their comments say. Owed: `slat_untrack_writes`.
// Errors, after which no store is tracked and `release` is not called: `SLAT_ENOENT` for the space, `SLAT_ENOMEM`,
// `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_track_writes(const struct slat_vm *vm,
                              const struct slat_thread *thread,
                              uint32_t space,
                              uint64_t gpa,
                              uint64_t bytes,
                              const struct slat_listener *listener,
                              struct slat_tracking **tracking);

// Ends a tracker and frees its handle. If no other tracker covers a frame, its next store faults once more and then
// succeeds. Stores under way still call the listener. Any thread; waits for no vCPU. Not checked: that no other thread
// does the same. Errors: `SLAT_EINVAL`.
slat_status slat_untrack_writes(struct slat_tracking *tracking);

// Makes a store of `count` bytes at `gpa` for the guest, within one page: calls the listeners of the frame, calls
// `store` with the host address to copy the bytes there, marks the page dirty if the memslot logs, and calls the
// listeners again. An untracked frame has no listeners. The memslot stays while `store` runs; `store` may sleep, but
// does not call slat. Any thread; may sleep in listeners and `store`.
//
// Errors, after which no store was made: `SLAT_ENOENT` if there is no space, or no writable memslot; `SLAT_EFAULT` for
// a private frame; `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_emulate_store(const struct slat_vm *vm,
                               const struct slat_thread *thread,
                               uint32_t space,
                               uint64_t gpa,
                               const void *bytes,
                               size_t count,
                               void (*store)(void *user, uint64_t hva),
                               void *user);

// Holds the guest frame at `gpa` for the access `wants`: a clock page, a posted-interrupt descriptor, a page of
// descriptors. The holder uses the frame by its number, not through the guest's tables. The host may take it back, so
// a use is valid or refused, never stale. Everything that takes a leaf of the frame also takes the held frame back,
// and waits for a use to end. A frame held for `SLAT_WRITE` may also be read. With `for_hardware`, use it by
// `slat_held_current`. Any thread; may sleep in `resolve`, and waits for an invalidation that covers the frame.
//
// Owed: `slat_release`. Errors: `SLAT_ENOENT` if there is no space or memslot; `SLAT_EFAULT`, also for writing if the
// memslot is read-only or stores are tracked; `SLAT_EPOISONED`, `SLAT_EIO`, `SLAT_EINPROGRESS`, `SLAT_ENODATA` from
// the host; `SLAT_ENOMEM`, `SLAT_EINVAL`; `SLAT_EBUSY`, `SLAT_EPERM` for the token.
slat_status slat_hold(const struct slat_vm *vm,
                      const struct slat_thread *thread,
                      uint32_t space,
                      uint64_t gpa,
                      slat_access wants,
                      bool for_hardware,
                      struct slat_held **held);

// Gives a held frame back and frees its handle. If hardware uses the frame, no running vCPU's control block may have
// it. Any thread; waits for nothing.
//
// Errors, after which it is still held: `SLAT_EBUSY` in a use or in another call; `SLAT_EINVAL`. Not checked: that no
// thread uses it later.
slat_status slat_release(struct slat_held *held);

// Begins a use: the frame in `pfn` is the guest's until `slat_held_done`. With `writes` the page is dirty afterwards
// if its memslot logs. Meanwhile the thread's token is in use, and invalidations of the frame wait. So access the
// frame through a mapping of its own, wait for nothing, and end soon. Any thread; never sleeps.
//
// Owed: `slat_held_done`. Errors: `SLAT_ESTALE` if the host has taken the frame back; `SLAT_EINVAL`, also for `writes`
// on a frame that is not held for writing; `SLAT_EBUSY`, also for the token that `resolve` was given; `SLAT_EPERM`.
slat_status slat_held_use(const struct slat_held *held,
                          const struct slat_thread *thread,
                          bool writes,
                          uint64_t *pfn);

// Ends a use, and frees the thread's token. Only the thread that began it; never sleeps.
//
// Errors: `SLAT_EBUSY` outside a use; `SLAT_EPERM`, `SLAT_EINVAL`.
slat_status slat_held_done(const struct slat_held *held);

// Asks the host for the frame again if it has been taken back; otherwise does nothing. Hardware must not use it
// meanwhile. After an error the frame stays refused. Sleeps, waits and fails as `slat_hold`.
slat_status slat_held_refresh(const struct slat_held *held,
                              const struct slat_thread *thread);

// Returns the frame for the control block of `vcpu`, in `pfn`. Call this at each entry, after `slat_vcpu_enter`, and
// after each `slat_vcpu_answer`. Each vCPU holds the frame separately. Until the vCPU leaves, an invalidation that
// takes the frame back kicks it. Only the thread that entered; never sleeps.
//
// Errors: `SLAT_ESTALE` if the host has taken the frame back: leave, and refresh it. `SLAT_EBUSY` if the vCPU is out
// of the guest; `SLAT_EINVAL` if the frame is not held for hardware, or belongs to another VM; `SLAT_EPERM`.
slat_status slat_held_current(const struct slat_held *held,
                              const struct slat_vcpu *vcpu,
                              uint64_t *pfn);

// Marks the frame dirty, if its memslot logs, because hardware has or may have written it. Call this after the write,
// and before `slat_held_refresh`. The memslot may have moved meanwhile. Any thread; never sleeps. Errors: `SLAT_EBUSY`,
// `SLAT_EINVAL`.
slat_status slat_held_mark_dirty(const struct slat_held *held);

// A kernel supplies this to a library without std. Returns unused memory of `bytes` bytes, aligned to `align`; or
// null, and then slat may panic.
extern void *slat_host_alloc(size_t bytes,
                             size_t align);

// A kernel supplies this to a library without std. Frees memory of `slat_host_alloc`.
extern void slat_host_free(void *memory, size_t bytes, size_t align);

// A kernel supplies this to a library without std. slat calls it when it has panicked, which is a bug in slat.
// Does not return.
extern void slat_host_panic(const char *text,
                            size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLAT_H */
