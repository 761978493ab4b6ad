/* Three races, each with a way to lose it. A host moves a page while the VMM uses it by its frame number (a held frame: a clock page, a
 * ring of descriptors). A pager brings pages while a vCPU gives up waiting for them. A vCPU stores to a frame while it is tracked.
 *
 *   cc -Ic -o races crates/c/examples/races.c -lslat -lpthread
 *
 * `races --stale` uses the frame without asking slat, `races --no-ready` does not report the pages that have come, `races --untold` makes
 * the tracked stores without slat. The program must find each mistake: exit status 1. */
#include <pthread.h>
#include <sched.h>
#include <slat.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096, MOVES = 200, REMOTE = 32, FRAMES = 2 };
static const uint64_t HVA = 0x40000000; /* page 0 is held, page 1 is tracked; the others are remote */
static _Atomic uint64_t memory[FRAMES], frame, moving = 1, counted, sum, told; /* memory: the held page's first word, by frame */
static _Atomic int asked[REMOTE], here[REMOTE], waiting; /* the vCPU waits for remote page 0 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t kicked = PTHREAD_COND_INITIALIZER;
static slat_vm *vm;
static bool stale, no_ready, untold;

static void must(slat_status status, const char *what)
{
    if (status != SLAT_OK) {
        fprintf(stderr, "%s: %s\n", what, slat_strerror(status));
        exit(2);
    }
}

static slat_status resolve(void *user, const slat_thread *thread, uint64_t hva, slat_access access, slat_page *page)
{
    (void)user, (void)thread, (void)access;
    uint64_t nth = (hva - HVA) / PAGE;
    if (nth >= 2 && !atomic_load(&here[nth - 2])) {
        atomic_store(&asked[nth - 2], 1);
        return SLAT_EINPROGRESS;
    }
    *page = (slat_page){.pfn = nth == 0 ? atomic_load(&frame) : 16 + nth, .flags = SLAT_PAGE_WRITE};
    return SLAT_OK;
}

static void kick(void *user, uint32_t vcpu)
{
    (void)user, (void)vcpu;
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&kicked);
    pthread_mutex_unlock(&lock);
}

static void flush_all(void *user) { (void)user; }
static void store(void *user, uint64_t hva) { (void)hva, atomic_fetch_add(&sum, *(uint64_t *)user); }

static void after(void *user, const slat_thread *thread, const slat_store *store)
{
    uint64_t word;
    (void)user, (void)thread;
    memcpy(&word, store->bytes, sizeof word);
    atomic_fetch_add(&told, word);
}

/* The VMM counts in the held page while the host moves it. Returns how often the page had another value than the VMM's last. */
static void *clock_page(void *argument)
{
    uint64_t last = 0, wrong = 0, pfn = 0;
    slat_thread *thread;
    slat_held *held;
    must(slat_thread_new(&thread), "thread");
    must(slat_hold(vm, thread, 0, 0, SLAT_WRITE, false, &held), "hold");
    while (atomic_load(&moving)) {
        slat_status valid = stale && last ? SLAT_OK : slat_held_use(held, thread, true, &pfn);
        if (valid == SLAT_ESTALE) { /* the host has taken the page back */
            must(slat_held_refresh(held, thread), "refresh");
            continue;
        }
        wrong += atomic_load(&memory[pfn]) != last;
        atomic_store(&memory[pfn], ++last);
        atomic_store(&counted, last);
        if (!stale || last == 1)
            must(slat_held_done(held), "done");
    }
    must(slat_release(held), "release");
    must(slat_thread_free(thread), "free thread");
    *(uint64_t *)argument = wrong;
    return NULL;
}

/* Brings each page as soon as the vCPU asks for it, but page 0 only once the vCPU waits, so that at least one wait needs its wake-up. */
static void *pager(void *argument)
{
    (void)argument;
    for (uint64_t brought = 0; brought < REMOTE; sched_yield())
        for (uint64_t nth = 0; nth < REMOTE; nth++)
            if (atomic_load(nth == 0 ? &waiting : &asked[nth]) && !atomic_exchange(&here[nth], 1)) {
                brought++;
                if (!no_ready)
                    must(slat_ready(vm, HVA + (nth + 2) * PAGE, NULL), "ready");
            }
    return NULL;
}

/* A vCPU that reads all remote pages, each as soon as it comes, and stores to the tracked page. Returns the number of lost wake-ups. */
static void *guest(void *argument)
{
    uint64_t lost = 0, token;
    slat_tlb tlb = {.flush_all = flush_all};
    slat_thread *thread;
    slat_vcpu *vcpu;
    slat_done done;
    must(slat_thread_new(&thread), "thread");
    must(slat_vcpu_new(vm, 0, &tlb, &vcpu), "vcpu");
    for (uint64_t nth = 0; nth < REMOTE && !lost; nth++) {
        uint64_t word = nth + 1;
        must(slat_vcpu_fault(vcpu, thread, PAGE, SLAT_WRITE, &done), "store");
        if (done == SLAT_WRITE_TRACKED && !untold)
            must(slat_emulate_store(vm, thread, 0, PAGE, &word, sizeof word, store, &word), "emulate");
        else
            store(&word, 0);
        must(slat_vcpu_fault(vcpu, thread, (nth + 2) * PAGE, SLAT_READ, &done), "load");
        if (done != SLAT_PENDING)
            continue;
        atomic_store(&waiting, 1);
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += 5;
        pthread_mutex_lock(&lock);
        while (slat_vcpu_take_ready(vcpu, &token) == SLAT_ENOENT && !lost)
            lost = pthread_cond_timedwait(&kicked, &lock, &end) != 0;
        pthread_mutex_unlock(&lock);
    }
    must(slat_vcpu_free(vcpu), "free vcpu");
    must(slat_thread_free(thread), "free thread");
    *(uint64_t *)argument = lost;
    return NULL;
}

int main(int arguments, char **argument)
{
    stale = arguments > 1 && strcmp(argument[1], "--stale") == 0;
    no_ready = arguments > 1 && strcmp(argument[1], "--no-ready") == 0;
    untold = arguments > 1 && strcmp(argument[1], "--untold") == 0;
    slat_config config = {.size = sizeof config, .format = SLAT_EPT4, .vcpus = 1};
    slat_host host = {.size = sizeof host, .resolve = resolve, .kick = kick};
    slat_slot_op ram = {.kind = SLAT_SLOT_CREATE, .slot = {.id = 0, .bytes = (REMOTE + 2) * PAGE, .hva = HVA}};
    slat_listener listener = {.after = after};
    slat_tracking *tracking;
    slat_thread *thread;
    slat_change *change;
    pthread_t threads[3];
    uint64_t wrong, lost;
    must(slat_thread_new(&thread), "thread");
    must(slat_vm_new(&config, &host, &vm), "vm");
    must(slat_slots_commit(vm, thread, 0, &ram, 1, NULL), "memslot");
    must(slat_track_writes(vm, thread, 0, PAGE, PAGE, &listener, &tracking), "track");
    if (pthread_create(&threads[0], NULL, clock_page, &wrong) || pthread_create(&threads[1], NULL, pager, NULL)
        || pthread_create(&threads[2], NULL, guest, &lost))
        return 2;
    for (uint64_t move = 0; move < MOVES; move++) {
        uint64_t from = atomic_load(&frame), to = (from + 1) % FRAMES, before = atomic_load(&counted);
        while (atomic_load(&counted) == before)
            sched_yield();
        must(slat_invalidate_begin(vm, HVA, PAGE, SLAT_MIGRATE, &change), "begin");
        must(slat_invalidate_apply(change, thread), "apply");
        atomic_store(&memory[to], atomic_exchange(&memory[from], UINT64_MAX));
        atomic_store(&frame, to);
        must(slat_invalidate_end(change), "end");
    }
    atomic_store(&moving, 0);
    pthread_join(threads[2], NULL);
    for (int nth = 0; nth < REMOTE; nth++)
        atomic_store(&asked[nth], 1); /* the vCPU may have given up: lets the pager end */
    atomic_store(&waiting, 1);
    pthread_join(threads[1], NULL);
    pthread_join(threads[0], NULL);
    must(slat_untrack_writes(tracking), "untrack");
    must(slat_vm_free(vm), "free vm");
    must(slat_thread_free(thread), "free thread");
    printf("%d moves: %llu wrong words; %llu waits lost; stored %llu, told %llu\n", MOVES, (unsigned long long)wrong,
           (unsigned long long)lost, (unsigned long long)sum, (unsigned long long)told);
    return wrong != 0 || lost != 0 || sum != told;
}
