/* The functions that hypervisor.c does not use, one call after the other in one thread: private memory, tracked stores, held frames, pages
 * on their way, rings, a second address space, memory types, events. Returns 0, or the line of the check that failed. Uses no C library, so
 * that bare.c can call it (SLAT_BARE). */
#include <slat.h>

#define CHECK(that) if (!(that)) return __LINE__
enum { HVA = 1 << 30, PAGE = 4096 };
static const uint64_t PRIVATE = SLAT_PRIVATE_HVA + (3ull << 48);
static bool is_here;           /* page 7 has come */
static uint64_t told[3];       /* listeners: before, after, released */
static uint64_t zapped, flushes, flushed, collected, stored;

/* The host does not wait for page 7: it has requested it. The VMM must provide page 9. */
static slat_status resolve(void *user, const slat_thread *thread, uint64_t hva, slat_access access, slat_page *page)
{
    (void)user, (void)thread, (void)access;
    if (hva == HVA + 7 * PAGE && !is_here)
        return SLAT_EINPROGRESS;
    if (hva == HVA + 9 * PAGE)
        return SLAT_ENODATA;
    bool is_private = hva >= SLAT_PRIVATE_HVA;
    *page = (slat_page){.pfn = is_private ? 0x900000 + ((hva - PRIVATE) >> 12) : hva >> 12, .flags = SLAT_PAGE_WRITE};
    page->level = hva >> 21 == 2 ? 2 : 1;
    return SLAT_OK;
}

/* The large page only. */
static slat_status lookup(void *user, uint64_t hva, slat_access access, slat_page *page)
{
    return hva >> 21 == 2 ? resolve(user, NULL, hva, access, page) : SLAT_EFAULT;
}

static uint64_t token(void *user, uint64_t hva) { return (void)user, hva >> 12; }

static bool broadcast(void *user, uint64_t first, uint64_t frames)
{
    return (void)user, flushed += frames, first == UINT64_MAX; /* false: slat kicks the vCPUs */
}

static void observe(void *user, const slat_event *event)
{
    (void)user;
    zapped += event->kind == SLAT_EVENT_ZAP ? event->count : 0;
    flushes += event->kind == SLAT_EVENT_FLUSH;
}

static void flush_all(void *user) { (void)user; }

static void before(void *user, const slat_thread *thread, const slat_store *store)
{
    (void)user, (void)thread;
    told[0] += store->gpa == 5 * PAGE + 8 && store->count == 4 && stored == 0;
}

static void after(void *user, const slat_thread *thread, const slat_store *store)
{
    (void)user, (void)thread;
    told[1] += ((const unsigned char *)store->bytes)[0] == 42 && stored != 0;
}

static void release(void *user) { (void)user, told[2]++; }
static void store(void *user, uint64_t hva) { (void)user, stored = hva; }
static void tell(void *user, const slat_dirty_page *page) { (void)user, collected = collected * 16 + page->gfn % 16; }

static int attributes(slat_vm *vm, slat_thread *thread, slat_vcpu *vcpu)
{
    slat_done done;
    slat_mapping map;
    slat_slot_op ops[] = {
        {.kind = SLAT_SLOT_CREATE_WITH_PRIVATE, .slot = {.id = 0, .bytes = 16 * PAGE, .hva = HVA}, .private_hva = PRIVATE},
        {.kind = SLAT_SLOT_SET_PRIVATE, .slot = {.gpa = 4 * PAGE, .bytes = PAGE}},
        {.kind = SLAT_SLOT_CREATE, .slot = {.id = 1, .gpa = 1 << 20, .bytes = 16 * PAGE, .hva = HVA + (1 << 20),
                                            .flags = SLAT_SLOT_NO_EXECUTE, .memory = SLAT_DEVICE}},
        {.kind = SLAT_SLOT_CUT, .slot = {.id = 1, .gpa = (1 << 20) + PAGE, .bytes = PAGE}, .rest = 2},
    }, smram = {.kind = SLAT_SLOT_CREATE, .slot = {.id = 0, .bytes = 16 * PAGE, .hva = 2u * HVA}};
    CHECK(slat_slots_commit(vm, thread, 0, ops, 4, NULL) == SLAT_OK);
    CHECK(slat_slots_commit(vm, thread, 1, &smram, 1, NULL) == SLAT_OK);
    /* Private and shared: a fault by an access of the wrong kind reports it. */
    CHECK(slat_vcpu_fault_as(vcpu, thread, 4 * PAGE, SLAT_WRITE, false, &done) == SLAT_OK && done == SLAT_MEMORY_FAULT);
    CHECK(slat_vcpu_fault_as(vcpu, thread, 4 * PAGE, SLAT_WRITE, true, &done) == SLAT_OK && done == SLAT_MAPPED);
    CHECK(slat_translate(vm, thread, 0, 4 * PAGE, &map) == SLAT_OK && map.pfn == 0x900004);
    /* A device's registers: not executable, not cached. */
    CHECK(slat_vcpu_fault(vcpu, thread, 1 << 20, SLAT_FETCH, &done) == SLAT_OK && done == SLAT_MMIO);
    CHECK(slat_vcpu_fault(vcpu, thread, 1 << 20, SLAT_READ, &done) == SLAT_OK && done == SLAT_MAPPED);
    CHECK(slat_translate(vm, thread, 0, 1 << 20, &map) == SLAT_OK && map.memory == SLAT_DEVICE);
    CHECK(slat_vcpu_fault(vcpu, thread, (1 << 20) + PAGE, SLAT_READ, &done) == SLAT_OK && done == SLAT_MMIO);
    /* System management mode. */
    CHECK(slat_vcpu_switch_to(vcpu, 1) == SLAT_OK && slat_vcpu_switch_to(vcpu, 2) == SLAT_ENOENT);
    CHECK(slat_vcpu_fault(vcpu, thread, 0, SLAT_READ, &done) == SLAT_OK && slat_vcpu_switch_to(vcpu, 0) == SLAT_OK);
    return slat_translate(vm, thread, 1, 0, &map) == SLAT_OK && map.pfn == 2u * HVA / PAGE ? 0 : __LINE__;
}

static int frames(slat_vm *vm, slat_thread *thread, slat_vcpu *vcpu)
{
    slat_listener listener = {.before = before, .after = after, .release = release};
    slat_tracking *tracking;
    slat_held *held;
    slat_change *change;
    slat_population *all;
    slat_done done;
    uint64_t root, pfn, ready, mapped, rest_gpa, rest;
    uint32_t waiter;
    size_t count;
    bool is_ready;
    /* Tracked stores. */
    CHECK(slat_track_writes(vm, thread, 0, 5 * PAGE, PAGE, &listener, &tracking) == SLAT_OK);
    CHECK(slat_vcpu_fault(vcpu, thread, 5 * PAGE + 8, SLAT_WRITE, &done) == SLAT_OK && done == SLAT_WRITE_TRACKED);
    CHECK(slat_emulate_store(vm, thread, 0, 5 * PAGE + 8, (unsigned char[]){42, 0, 0, 0}, 4, store, NULL) == SLAT_OK);
    CHECK(stored == HVA + 5 * PAGE + 8 && told[0] == 1 && told[1] == 1);
    CHECK(slat_untrack_writes(tracking) == SLAT_OK && told[2] == 1);
    /* A page that is on its way: the vCPU waits for its token, and slat wakes it. */
    CHECK(slat_vcpu_fault(vcpu, thread, 7 * PAGE, SLAT_READ, &done) == SLAT_OK && done == SLAT_PENDING);
    CHECK(slat_vcpu_pending_token(vcpu, &ready) == SLAT_OK && ready == HVA / PAGE + 7);
    CHECK(slat_waiters(vm, ready, &waiter, 1, &count) == SLAT_OK && count == 1 && waiter == 0);
    is_here = true;
    CHECK(slat_vcpu_take_ready(vcpu, &ready) == SLAT_ENOENT && slat_ready(vm, ready, &count) == SLAT_OK && count == 1);
    CHECK(slat_vcpu_enter(vcpu, thread, 0, &root) == SLAT_OK && slat_vcpu_has_ready(vcpu, &is_ready) == SLAT_OK && is_ready);
    CHECK(slat_vcpu_leave(vcpu) == SLAT_OK && slat_vcpu_take_ready(vcpu, &ready) == SLAT_OK && ready == HVA / PAGE + 7);
    CHECK(slat_vcpu_forget_tokens(vcpu) == SLAT_OK);
    CHECK(slat_vcpu_fault(vcpu, thread, 9 * PAGE, SLAT_READ, &done) == SLAT_OK && done == SLAT_NEEDS_PAGE);
    /* A held frame: slat refuses its use once the host has taken it back. */
    CHECK(slat_hold(vm, thread, 0, 6 * PAGE, SLAT_WRITE, true, &held) == SLAT_OK);
    CHECK(slat_held_use(held, thread, true, &pfn) == SLAT_OK && pfn == HVA / PAGE + 6 && slat_held_done(held) == SLAT_OK);
    CHECK(slat_vcpu_fault(vcpu, thread, 6 * PAGE, SLAT_READ, &done) == SLAT_OK && done == SLAT_MAPPED);
    CHECK(slat_invalidate_begin(vm, HVA + 6 * PAGE, PAGE, SLAT_MIGRATE, &change) == SLAT_OK);
    CHECK(slat_invalidate_apply(change, thread) == SLAT_OK && slat_invalidate_end(change) == SLAT_OK);
    CHECK(slat_held_use(held, thread, false, &pfn) == SLAT_ESTALE && slat_held_refresh(held, thread) == SLAT_OK);
    CHECK(slat_vcpu_enter(vcpu, thread, 0, &root) == SLAT_OK && slat_held_current(held, vcpu, &pfn) == SLAT_OK);
    CHECK(slat_vcpu_leave(vcpu) == SLAT_OK && slat_held_mark_dirty(held) == SLAT_OK && slat_release(held) == SLAT_OK);
    /* Maps pages ahead of the guest, where the host has them: all but page 9. */
    CHECK(slat_vcpu_prefault(vcpu, thread, 0, 4 * PAGE, SLAT_WRITE, true, &mapped) == SLAT_OK && mapped == 4 * PAGE);
    CHECK(slat_population_new(0, 16 * PAGE, SLAT_READ, false, &all) == SLAT_OK);
    CHECK(slat_vcpu_populate(vcpu, thread, all, &rest_gpa, &rest) == SLAT_OK && rest_gpa == 9 * PAGE && rest == 7 * PAGE);
    CHECK(slat_vcpu_prefault(vcpu, thread, rest_gpa, rest, SLAT_READ, false, &mapped) == SLAT_ENODATA);
    CHECK(slat_population_progress(all, &mapped, &rest) == SLAT_OK && mapped == 9 * PAGE && rest == 16 * PAGE);
    return slat_population_stop(all) == SLAT_OK && slat_population_free(all) == SLAT_OK ? 0 : __LINE__;
}

static int rings(slat_vm *vm, slat_thread *thread, slat_tlb *tlb)
{
    slat_slot_op log = {.kind = SLAT_SLOT_CREATE, .slot = {.id = 9, .gpa = 2 << 20, .bytes = 16 * PAGE, .hva = HVA + (2 << 20),
                                                   .flags = SLAT_SLOT_LOG_DIRTY}};
    slat_vcpu *vcpu;
    slat_harvest *harvest;
    slat_done done;
    uint64_t count;
    CHECK(slat_set_dirty_log(vm, thread, SLAT_VM_DIRTY_SPLIT_LAZILY, 4096) == SLAT_OK && slat_vcpu_new(vm, 0, tlb, &vcpu) == SLAT_OK);
    CHECK(slat_slots_commit(vm, thread, 0, &log, 1, NULL) == SLAT_OK);
    for (uint64_t nth = 0; nth < 3; nth++)
        CHECK(slat_vcpu_fault(vcpu, thread, (2 << 20) + (3 - nth) * PAGE, SLAT_WRITE, &done) == SLAT_OK && done == SLAT_MAPPED);
    CHECK(slat_ring_collect(vm, thread, 0, tell, NULL, &count) == SLAT_OK && count == 3 && collected % 4096 == 0x321);
    CHECK(slat_ring_not_reset(vm, thread, 0, &count) == SLAT_OK && count == 3);
    CHECK(slat_rings_reset(vm, thread, &count) == SLAT_OK && count == 3);
    CHECK(slat_vcpu_fault(vcpu, thread, (2 << 20) + PAGE, SLAT_WRITE, &done) == SLAT_OK && done == SLAT_FIXED);
    CHECK(slat_ring_harvest_begin(vm, thread, 0, &harvest) == SLAT_OK && slat_harvest_pages(harvest) == 1);
    CHECK(slat_harvest_fail(harvest) == SLAT_OK && slat_harvest_all_begin(vm, thread, 0, &harvest) == SLAT_OK);
    CHECK(slat_harvest_pages(harvest) == 1 && slat_harvest_commit(harvest) == SLAT_OK);
    return slat_vcpu_free(vcpu) == SLAT_OK ? 0 : __LINE__;
}

/* A dirty log whose pages are read, and then cleaned some at a time; page sizes; write protection; new roots. */
static int whole(slat_vm *vm, slat_thread *thread, slat_vcpu *vcpu)
{
    const uint64_t at = 4 << 20, large = 512 * PAGE;
    slat_slot_op ram = {.kind = SLAT_SLOT_CREATE, .slot = {.id = 5, .gpa = at, .bytes = large, .hva = at}}, log = ram;
    log.kind = SLAT_SLOT_FLAGS, log.slot.flags = SLAT_SLOT_LOG_DIRTY;
    uint64_t bits[8], one = 1 << 3, count;
    slat_mapping map;
    slat_done done;
    CHECK(slat_slots_commit(vm, thread, 0, &ram, 1, NULL) == SLAT_OK);
    CHECK(slat_vcpu_fault(vcpu, thread, at, SLAT_WRITE, &done) == SLAT_OK && done == SLAT_MAPPED);
    CHECK(slat_translate(vm, thread, 0, at, &map) == SLAT_OK && map.frames == 512);
    CHECK(slat_split(vm, thread, 0, at, large, 1, &count) == SLAT_OK && count == 1);
    CHECK(slat_recover(vm, thread, 0, at, large, &count) == SLAT_OK && count == 1);
    CHECK(slat_write_protect(vm, thread, 0, at, large) == SLAT_OK);
    CHECK(slat_vcpu_fault(vcpu, thread, at, SLAT_WRITE, &done) == SLAT_OK && done == SLAT_FIXED);
    CHECK(slat_dirty_bits(vm, thread, 0, 5, bits, 8, &count) == SLAT_ENOENT);
    CHECK(slat_slots_commit(vm, thread, 0, &log, 1, NULL) == SLAT_OK);
    CHECK(slat_vcpu_fault(vcpu, thread, at + 3 * PAGE, SLAT_WRITE, &done) == SLAT_OK);
    CHECK(slat_dirty_mark(vm, thread, 0, 5, 64, &one, 1) == SLAT_OK);
    CHECK(slat_dirty_bits(vm, thread, 0, 5, bits, 7, &count) == SLAT_EINVAL);
    CHECK(slat_dirty_bits(vm, thread, 0, 5, bits, 8, &count) == SLAT_OK && count == 2 && bits[0] == one && bits[1] == one);
    CHECK(slat_dirty_clear(vm, thread, 0, 5, 0, 64, bits, 1, &count) == SLAT_OK && count == 1); /* copy page 3 now */
    CHECK(slat_dirty_clear(vm, thread, 0, 5, 1, 64, bits, 1, &count) == SLAT_EINVAL);
    CHECK(slat_dirty_bits(vm, thread, 0, 5, bits, 8, &count) == SLAT_OK && count == 1 && bits[0] == 0);
    CHECK(slat_zap_all(vm, thread) == SLAT_OK && slat_translate(vm, thread, 0, at, &map) == SLAT_ENOENT);
    log.kind = SLAT_SLOT_DELETE;
    CHECK(slat_slots_commit(vm, thread, 0, &log, 1, NULL) == SLAT_OK);
    return slat_shrink(vm, thread, &count) == SLAT_OK && slat_shrink(vm, NULL, &count) == SLAT_EINVAL ? 0 : __LINE__;
}

int slat_features(slat_thread *thread, slat_host host)
{
    host.resolve = resolve, host.lookup = lookup, host.token = token, host.broadcast_flush = broadcast, host.observe = observe;
    slat_config config = {.size = sizeof config, .format = SLAT_EPT4, .vcpus = 1, .address_spaces = 2};
    slat_tlb tlb = {.flush_all = flush_all};
    slat_vm *vm;
    slat_vcpu *vcpu;
    slat_stats stats;
    CHECK(slat_vm_new(&config, &host, &vm) == SLAT_OK && slat_vcpu_new(vm, 0, &tlb, &vcpu) == SLAT_OK);
    int failed = attributes(vm, thread, vcpu);
    failed = failed ? failed : frames(vm, thread, vcpu);
    failed = failed ? failed : whole(vm, thread, vcpu);
    CHECK(slat_vcpu_free(vcpu) == SLAT_OK); /* rings begin only while there are no vCPUs */
    failed = failed ? failed : rings(vm, thread, &tlb);
    if (failed)
        return failed;
    CHECK(slat_vm_stats(vm, &stats) == SLAT_OK && zapped == 1 && flushes == stats.flushes && flushed != 0);
    return slat_vm_free(vm) == SLAT_OK ? 0 : __LINE__;
}

#ifndef SLAT_BARE
#include <stdio.h>

int main(void)
{
    slat_thread *thread;
    if (slat_thread_new(&thread) != SLAT_OK)
        return 1;
    int failed = slat_features(thread, (slat_host){.size = sizeof(slat_host)});
    printf("features.c: %s %d\n", failed ? "failed in line" : "all checks hold", failed);
    return slat_thread_free(thread) != SLAT_OK || failed ? 1 : 0;
}
#endif
