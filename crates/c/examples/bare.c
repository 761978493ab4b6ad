/* slat in a kernel: a library without std, and the three functions that the kernel must provide. With features.c it calls every
 * function, so the linker takes them all. CI runs it as a program, and links it for x86_64-unknown-none with nothing else. */
#include <slat.h>

/* REPLACE: the kernel's allocator. This one never reuses a block. */
static _Alignas(1 << 18) unsigned char block[8 << 20];
static size_t used;

void *slat_host_alloc(size_t bytes, size_t align)
{
    size_t start = (used + align - 1) & ~(align - 1);
    if (start > sizeof block || bytes > sizeof block - start)
        return NULL;
    used = start + bytes;
    return block + start;
}

void slat_host_free(void *memory, size_t bytes, size_t align)
{
    (void)memory, (void)bytes, (void)align;
}

/* REPLACE: the kernel's own panic. */
void slat_host_panic(const char *text, size_t bytes)
{
    (void)text, (void)bytes;
    for (;;)
        __builtin_trap();
}

/* REPLACE: physical memory for tables, from the frame allocator. The frame numbers are those of a kernel that maps
 * physical address p at p + OFFSET. */
enum { OFFSET = 1 << 16 };

static void *alloc_tables(void *user, size_t bytes)
{
    (void)user;
    return slat_host_alloc(bytes, bytes);
}

static void free_tables(void *user, void *tables, size_t bytes)
{
    (void)user, (void)tables, (void)bytes;
}

/* REPLACE: the kernel's own tables. */
static slat_status resolve(void *user, const slat_thread *thread, uint64_t hva, slat_access access, slat_page *page)
{
    (void)user, (void)thread, (void)access;
    *page = (slat_page){.pfn = hva >> 12, .level = 2, .flags = SLAT_PAGE_WRITE};
    return SLAT_OK;
}

static void kick(void *user, uint32_t vcpu) /* REPLACE: an IPI */
{
    (void)user, (void)vcpu;
}

static void flush_all(void *user) /* REPLACE: INVEPT */
{
    (void)user;
}

static void seen(void *user, uint64_t hva, uint32_t pages, const uint64_t *bits)
{
    (void)hva, (void)pages;
    *(uint64_t *)user += bits[0];
}

/* Maps, logs, ages and unmaps a page. Returns 0, or the number of the check that failed. */
static int once(slat_thread *thread, slat_format format)
{
    slat_config config = {.size = sizeof config, .format = format};
    slat_host host = {.size = sizeof host, .resolve = resolve, .kick = kick, .alloc_tables = alloc_tables,
                      .free_tables = free_tables, .table_offset = OFFSET};
    slat_slot_op ram = {.kind = SLAT_SLOT_CREATE, .slot = {.id = 0, .bytes = 2 << 20, .hva = 1 << 30}};
    slat_slot_op log = {.kind = SLAT_SLOT_FLAGS, .slot = {.id = 0, .flags = SLAT_SLOT_LOG_DIRTY}};
    slat_tlb tlb = {.flush_all = flush_all};
    slat_vm *vm;
    slat_vcpu *vcpu;
    slat_change *change;
    slat_harvest *harvest;
    slat_done done;
    slat_mapping mapping;
    slat_slot slot;
    slat_dirty_word word;
    slat_stats stats;
    uint64_t root, young = 0;
    size_t count;
    bool any;
#define CHECK(that) if (!(that)) return __LINE__
    CHECK(slat_vm_new(&config, &host, &vm) == SLAT_OK);
    CHECK(slat_slots_commit(vm, thread, 0, &ram, 1, NULL) == SLAT_OK);
    CHECK(slat_slots_find(vm, thread, 0, 0x5000, &slot) == SLAT_OK && slot.hva == 1 << 30);
    CHECK(slat_vcpu_new(vm, 0, &tlb, &vcpu) == SLAT_OK);
    CHECK(slat_vm_free(vm) == SLAT_EBUSY);
    CHECK(slat_vcpu_enter(vcpu, thread, 0, &root) == SLAT_OK && root != 0);
    CHECK(!slat_vcpu_kicked(vcpu) && slat_vcpu_answer(vcpu, &root) == SLAT_OK);
    CHECK(slat_vcpu_leave(vcpu) == SLAT_OK);
    CHECK(slat_vcpu_fault(vcpu, thread, 0x5000, SLAT_WRITE, &done) == SLAT_OK && done == SLAT_MAPPED);
    CHECK(slat_translate(vm, thread, 0, 0x5000, &mapping) == SLAT_OK);
    CHECK(mapping.pfn + (5 - mapping.gfn) == (1 << 18) + 5);
    CHECK(slat_slots_commit(vm, thread, 0, &log, 1, NULL) == SLAT_OK);
    CHECK(slat_mark_dirty(vm, (1 << 30) + 0x3000, 0x1000) == SLAT_OK);
    CHECK(slat_harvest_begin(vm, thread, 0, 0, &harvest) == SLAT_OK && slat_harvest_pages(harvest) == 1);
    CHECK(slat_harvest_fail(harvest) == SLAT_OK);
    CHECK(slat_harvest_begin(vm, thread, 0, 0, &harvest) == SLAT_OK);
    CHECK(slat_harvest_words(harvest, 0, &word, 1, &count) == SLAT_OK && count == 1 && word.bits == 8);
    CHECK(slat_harvest_commit(harvest) == SLAT_OK);
    CHECK(slat_young(vm, thread, 1 << 30, 2 << 20, SLAT_TEST_YOUNG, &any) == SLAT_OK && any);
    CHECK(slat_age(vm, thread, 1 << 30, 2 << 20, seen, &young) == SLAT_OK);
    CHECK(slat_forget(vm, thread, 1 << 30, 2 << 20) == SLAT_OK);
    CHECK(slat_invalidate_begin(vm, 1 << 30, 2 << 20, SLAT_RECLAIM, &change) == SLAT_OK);
    CHECK(slat_invalidate_changed(change, thread, (1 << 30) + 0x5000, 0x1000, NULL) == SLAT_OK);
    CHECK(slat_invalidate_apply(change, thread) == SLAT_OK && slat_invalidate_end(change) == SLAT_OK);
    CHECK(slat_translate(vm, thread, 0, 0x5000, &mapping) == SLAT_ENOENT);
    CHECK(slat_vm_stats(vm, &stats) == SLAT_OK && stats.mapped_faults == 1);
    CHECK(slat_vcpu_free(vcpu) == SLAT_OK && slat_vm_free(vm) == SLAT_OK);
    return slat_strerror(SLAT_OK)[0] == 'd' ? 0 : __LINE__;
}

int slat_features(slat_thread *thread, slat_host host); /* features.c: all other functions */

/* The kernel's entry, and a program's. */
int main(void)
{
    slat_thread *thread;
    if (slat_thread_new(&thread) != SLAT_OK)
        return 1;
    int ept = once(thread, SLAT_EPT4), riscv = once(thread, SLAT_SV48X4);
    slat_host host = {.size = sizeof host, .alloc_tables = alloc_tables, .free_tables = free_tables, .table_offset = OFFSET};
    int features = slat_features(thread, host);
    return slat_thread_free(thread) != SLAT_OK || ept != 0 || riscv != 0 || features != 0 ? 1 : 0;
}
