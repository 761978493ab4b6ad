/* A small hypervisor on slat: two vCPUs use memory while a third thread moves pages, and copies the dirty pages by a dirty log. The
 * guest is a loop in C; its TLB is an array, which keeps each translation until slat flushes it.
 *
 *   cc -Ic -o hypervisor crates/c/examples/hypervisor.c -lslat -lpthread
 *
 * `hypervisor --no-flush` ignores the flushes, and must find its memory corrupt: exit status 1. */
#include <pthread.h>
#include <slat.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VCPUS = 2, PAGES = 64, FRAMES = 2 * PAGES, WORDS = 512, ACCESSES = 100000, ROUNDS = 50 };
static const uint64_t HVA = 0x40000000; /* host address of guest address 0; only the host below uses it */

typedef _Atomic uint64_t word;
static word memory[FRAMES][WORDS];  /* physical memory of the machine: frame n is memory[n] */
static uint64_t copy[PAGES][WORDS]; /* the pages that a migration would have sent */
static word frame_of[PAGES];        /* the host's own table */
static slat_vm *vm;
static bool no_flush;
static word running = VCPUS, rounds, corrupt;

static void must(slat_status status, const char *what)
{
    if (status != SLAT_OK) {
        fprintf(stderr, "%s: %s\n", what, slat_strerror(status));
        exit(2);
    }
}

/* ANCHOR: host */
/* The host: the frame behind a host address at this moment. It never sleeps, so `resolve` does the same. */
static slat_status lookup(void *user, uint64_t hva, slat_access access, slat_page *page)
{
    (void)user, (void)access;
    if (hva < HVA || hva >= HVA + PAGES * 4096)
        return SLAT_EFAULT;
    page->pfn = atomic_load(&frame_of[(hva - HVA) / 4096]);
    page->flags = SLAT_PAGE_WRITE;
    return SLAT_OK;
}

static slat_status resolve(void *user, const slat_thread *thread, uint64_t hva, slat_access access, slat_page *page)
{
    (void)thread;
    return lookup(user, hva, access, page);
}
/* ANCHOR_END: host */

struct tlb {
    struct { uint64_t pfn; uint32_t flags; } of[PAGES];
};

static void flush(void *user, uint64_t first, uint64_t frames)
{
    struct tlb *tlb = user;
    for (uint64_t gfn = 0; gfn < PAGES && !no_flush; gfn++)
        if (gfn >= first && gfn - first < frames)
            tlb->of[gfn].flags = 0;
}

static void flush_all(void *user)
{
    flush(user, 0, PAGES);
}

/* ANCHOR: vcpu */
/* Finds a page for an access by the guest. The vCPU polls for kicks, where hardware would take an IPI, and answers them. */
static word *reach(slat_vcpu *vcpu, slat_thread *thread, struct tlb *tlb, uint64_t gfn, slat_access access)
{
    uint32_t wants = access == SLAT_WRITE ? SLAT_PAGE_WRITE : SLAT_PAGE_READ;
    uint64_t root;
    if (slat_vcpu_kicked(vcpu))
        must(slat_vcpu_answer(vcpu, &root), "answer");
    while (!(tlb->of[gfn].flags & wants)) { /* a TLB miss: the vCPU leaves the guest */
        slat_mapping mapping = {0};
        slat_done done;
        must(slat_vcpu_leave(vcpu), "leave");
        /* The walk sets Accessed and Dirty, as hardware's does. */
        slat_status found = slat_vcpu_access(vcpu, thread, gfn * 4096, access, &mapping);
        if (found != SLAT_OK) {
            must(slat_vcpu_fault(vcpu, thread, gfn * 4096, access, &done), "fault");
            found = slat_vcpu_access(vcpu, thread, gfn * 4096, access, &mapping);
        }
        tlb->of[gfn].pfn = mapping.pfn + (gfn - mapping.gfn);
        tlb->of[gfn].flags = found == SLAT_OK ? mapping.flags : 0;
        if (!(mapping.flags & SLAT_PAGE_DIRTY)) /* the first store walks again, to set Dirty */
            tlb->of[gfn].flags &= ~(uint32_t)SLAT_PAGE_WRITE;
        /* Entering flushes the translation if slat has invalidated it since the read. */
        must(slat_vcpu_enter(vcpu, thread, 0, &root), "enter");
    }
    return memory[tlb->of[gfn].pfn];
}
/* ANCHOR_END: vcpu */

/* The guest: each vCPU owns every second word of each page, and keeps a copy of its stores. */
static void *guest(void *argument)
{
    uint32_t id = (uint32_t)(uintptr_t)argument;
    uint64_t(*stored)[WORDS] = calloc(PAGES, sizeof *stored);
    struct tlb tlb = {0};
    slat_tlb forget = {.user = &tlb, .flush_all = flush_all, .flush = flush};
    slat_thread *thread;
    slat_vcpu *vcpu;
    uint64_t root, seed = id + 1;
    must(slat_thread_new(&thread), "thread");
    must(slat_vcpu_new(vm, id, &forget, &vcpu), "vcpu");
    must(slat_vcpu_enter(vcpu, thread, 0, &root), "enter");
    for (uint64_t n = 1; n <= ACCESSES || atomic_load(&rounds) < ROUNDS; n++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t gfn = seed >> 33 & (PAGES - 1), at = (seed >> 40 & (WORDS - 2)) + id;
        bool store = seed >> 62 & 1;
        word *page = reach(vcpu, thread, &tlb, gfn, store ? SLAT_WRITE : SLAT_READ);
        if (atomic_load(&page[at]) != stored[gfn][at])
            atomic_fetch_add(&corrupt, 1);
        if (store)
            atomic_store(&page[at], stored[gfn][at] = n);
        else
            stored[gfn][at] = atomic_load(&page[at]); /* count a corrupt word once */
    }
    must(slat_vcpu_leave(vcpu), "leave");
    must(slat_vcpu_free(vcpu), "free vcpu");
    must(slat_thread_free(thread), "free thread");
    atomic_fetch_sub(&running, 1);
    free(stored);
    return NULL;
}

/* ANCHOR: move */
/* Moves a page to another frame. The guest does not use the old frame during the copy, nor the new frame before its end. */
static void move_page(slat_thread *thread, uint64_t gfn, uint64_t to)
{
    slat_change *change;
    must(slat_invalidate_begin(vm, HVA + gfn * 4096, 4096, SLAT_MIGRATE, &change), "begin");
    must(slat_invalidate_apply(change, thread), "apply");
    uint64_t from = atomic_load(&frame_of[gfn]);
    for (int at = 0; at < WORDS; at++) {
        atomic_store(&memory[to][at], atomic_load(&memory[from][at]));
        atomic_store(&memory[from][at], UINT64_MAX); /* the frame is free: a vCPU that still uses it reads this */
    }
    atomic_store(&frame_of[gfn], to);
    must(slat_invalidate_end(change), "end");
}
/* ANCHOR_END: move */

/* ANCHOR: harvest */
/* Copies the pages written since the last harvest. In every third round the copy fails, and its pages must be dirty again. */
static uint64_t harvest(slat_thread *thread, int round)
{
    slat_harvest *taken;
    slat_dirty_word words[PAGES / 64];
    size_t count;
    must(slat_harvest_begin(vm, thread, 0, 0, &taken), "harvest");
    uint64_t pages = slat_harvest_pages(taken);
    if (round % 3 == 2) {
        must(slat_harvest_fail(taken), "fail");
        return 0;
    }
    must(slat_harvest_words(taken, 0, words, PAGES / 64, &count), "words");
    for (size_t n = 0; n < count; n++)
        for (uint64_t bit = 0; bit < 64; bit++)
            if (words[n].bits >> bit & 1)
                for (int at = 0; at < WORDS; at++) {
                    uint64_t gfn = words[n].gfn + bit;
                    copy[gfn][at] = atomic_load(&memory[atomic_load(&frame_of[gfn])][at]);
                }
    must(slat_harvest_commit(taken), "commit");
    return pages;
}
/* ANCHOR_END: harvest */

int main(int arguments, char **argument)
{
    no_flush = arguments > 1 && strcmp(argument[1], "--no-flush") == 0;
    slat_config config = {.size = sizeof config, .format = SLAT_EPT4, .vcpus = VCPUS};
    slat_host host = {.size = sizeof host, .resolve = resolve, .lookup = lookup};
    slat_slot_op ram[] = {
        {.kind = SLAT_SLOT_CREATE, .slot = {.id = 0, .bytes = PAGES * 4096, .hva = HVA}},
        {.kind = SLAT_SLOT_FLAGS, .slot = {.id = 0, .flags = SLAT_SLOT_LOG_DIRTY}},
    };
    slat_thread *thread;
    slat_stats stats;
    pthread_t vcpus[VCPUS];
    uint64_t harvested = 0, lost = 0, moves = 0;
    size_t failed;
    bool young;

    for (uint64_t gfn = 0; gfn < PAGES; gfn++)
        atomic_store(&frame_of[gfn], gfn);
    must(slat_thread_new(&thread), "thread");
    must(slat_vm_new(&config, &host, &vm), "vm");
    must(slat_slots_commit(vm, thread, 0, ram, 2, &failed), "memslots");
    for (uintptr_t id = 0; id < VCPUS; id++)
        if (pthread_create(&vcpus[id], NULL, guest, (void *)id))
            return 2;

    for (int round = 0; atomic_load(&running) != 0; round++) {
        for (uint64_t gfn = round % 4; gfn < PAGES; gfn += 4, moves++) {
            uint64_t from = atomic_load(&frame_of[gfn]); /* each page has two frames, used in turn */
            move_page(thread, gfn, from < PAGES ? gfn + PAGES : gfn);
        }
        harvested += harvest(thread, round);
        atomic_fetch_add(&rounds, 1);
    }
    must(slat_young(vm, thread, HVA, PAGES * 4096, SLAT_TEST_YOUNG, &young), "young");
    for (int id = 0; id < VCPUS; id++)
        pthread_join(vcpus[id], NULL);

    /* The vCPUs have stopped: after one more harvest the copy must equal the guest's memory, or a store was lost. */
    harvested += harvest(thread, 0);
    for (uint64_t gfn = 0; gfn < PAGES; gfn++)
        for (int at = 0; at < WORDS; at++)
            lost += copy[gfn][at] != atomic_load(&memory[atomic_load(&frame_of[gfn])][at]);
    must(slat_vm_stats(vm, &stats), "stats");
    must(slat_vm_free(vm), "free vm");
    must(slat_thread_free(thread), "free thread");
    printf("%d vCPUs: %llu faults, %llu flushes, %llu moves, %llu pages harvested; %llu words corrupt, %llu lost\n", VCPUS,
           (unsigned long long)(stats.mapped_faults + stats.permission_faults), (unsigned long long)stats.flushes,
           (unsigned long long)moves, (unsigned long long)harvested, (unsigned long long)corrupt, (unsigned long long)lost);
    return corrupt != 0 || lost != 0 || stats.flushes == 0 || harvested == 0;
}
