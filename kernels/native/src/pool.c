/* A phase is an operation and those chained to it. Threads claim pieces of the current phase's items, large ones first.
 *
 * A phase ends when its items are done, not when all threads have come: a thread that the system has taken away holds up
 * the others only while it holds items. Waiting is a short spin, then sleep. If waiting costs too much (a core is taken by
 * somebody else), runs go on with one thread for a while, then try again. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define MAX_THREADS 64
#define MAX_PHASES 4096
#define SPINS 2000         /* about 20 us: longer than a phase's own imbalance, shorter than a step's Python part */
#define ALONE_RUNS 48      /* runs on one thread after waiting proved too dear */
#define DEAR_SHARE 0.4     /* of a run's time spent waiting */

static const OpType *const TYPES[NUM_OPS] = {&hr_quantize, &hr_linear,    &hr_rms_norm, &hr_activation,
                                             &hr_rope,     &hr_attention, &hr_merge,    &hr_embedding};

typedef struct {
  int32_t first, last;
  int64_t items;
} Phase;

static struct {
  const Op *ops;
  int num_phases, threads;
  Phase phases[MAX_PHASES];
} job;
/* High half: number of the run, low half: what it counts. The run's number keeps a thread that comes late from another
 * run's work. */
static _Atomic uint64_t current;            /* phase */
static _Atomic uint64_t next[MAX_PHASES];   /* first unclaimed item */
static _Atomic int64_t done[MAX_PHASES];
static _Atomic uint32_t bell, sleepers;     /* changes with every phase; who waits on it */
static int num_workers, alone;
static uint32_t run_number;
static double waited;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void sleep_on(uint32_t seen) {
#if defined(__linux__)
  atomic_fetch_add(&sleepers, 1);
  syscall(SYS_futex, &bell, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
  atomic_fetch_sub(&sleepers, 1);
#else
  struct timespec pause = {0, 50000};
  (void)seen;
  nanosleep(&pause, NULL);
#endif
}

static void ring(void) {
  atomic_fetch_add(&bell, 1);
#if defined(__linux__)
  if (atomic_load(&sleepers)) syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
#endif
}

/* Wait until `current` is no longer `seen`. */
static void wait_for_change(uint64_t seen) {
  for (int i = 0; i < SPINS; i++) {
    if (atomic_load_explicit(&current, memory_order_acquire) != seen) return;
    relax();
  }
  while (1) {
    uint32_t heard = atomic_load(&bell);
    if (atomic_load(&current) != seen) return;
    sleep_on(heard);
  }
}

static void run_phase(const Phase *phase, int64_t from, int64_t to) {
  for (int32_t op = phase->first; op < phase->last; op++) TYPES[job.ops[op].kind]->run(&job.ops[op], from, to);
}

/* Open the first phase from `phase` on that has items; those whose shape left nothing to do are passed. */
static void open_phase(uint32_t run, int phase) {
  for (; phase < job.num_phases; phase++) {
    job.phases[phase].items = TYPES[job.ops[job.phases[phase].first].kind]->items(&job.ops[job.phases[phase].first]);
    if (job.phases[phase].items > 0) break;
  }
  atomic_store_explicit(&current, (uint64_t)run << 32 | (uint32_t)phase, memory_order_seq_cst);
  ring();
}

/* Claim and compute until nothing of this phase is left to claim. */
static void help(uint64_t seen) {
  uint32_t run = (uint32_t)(seen >> 32), phase = (uint32_t)seen;
  while (1) {
    uint64_t at = atomic_load(&next[phase]);
    if ((uint32_t)(at >> 32) != run || atomic_load(&current) != seen) return;
    int64_t items = job.phases[phase].items, from = (int64_t)(uint32_t)at;
    if (from >= items) return;
    int64_t take = (items - from) / (2 * job.threads);
    take = take < 1 ? 1 : take;
    if (!atomic_compare_exchange_weak(&next[phase], &at, at + (uint64_t)take)) continue;
    run_phase(&job.phases[phase], from, from + take);
    if (atomic_fetch_add(&done[phase], take) + take == items) open_phase(run, (int)phase + 1);
  }
}

static void *work(void *number) {
  uint64_t seen = 0;
  while (1) {
    wait_for_change(seen);
    seen = atomic_load(&current);
    uint32_t run = (uint32_t)(seen >> 32);
    /* Reads of `job` may be of a later run than `seen`; then no claim succeeds. */
    if ((int)(uint32_t)seen < job.num_phases && (int)(intptr_t)number < job.threads && run) help(seen);
  }
  return NULL;
}

static void forget_workers(void) { num_workers = 0; } /* threads do not survive a fork */

static void ensure_workers(int wanted) {
  static int watching;
  if (!watching) pthread_atfork(NULL, NULL, forget_workers), watching = 1;
  while (num_workers + 1 < wanted) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 4 << 20);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, work, (void *)(intptr_t)(num_workers + 1));
    pthread_attr_destroy(&attributes);
    if (failed) return;
    num_workers++;
  }
}

static void run_alone(void) {
  for (int phase = 0; phase < job.num_phases; phase++) {
    const Phase *p = &job.phases[phase];
    int64_t items = TYPES[job.ops[p->first].kind]->items(&job.ops[p->first]);
    if (items > 0) run_phase(p, 0, items);
  }
}

static void run_together(void) {
  double begin = now();
  uint32_t run = ++run_number ? run_number : ++run_number;
  waited = 0;
  for (int phase = 0; phase < job.num_phases; phase++) {
    atomic_store_explicit(&done[phase], 0, memory_order_relaxed);
    atomic_store_explicit(&next[phase], (uint64_t)run << 32, memory_order_relaxed);
  }
  open_phase(run, 0);
  while (1) {
    uint64_t seen = atomic_load(&current);
    if ((int)(uint32_t)seen >= job.num_phases) break;
    help(seen);
    if (atomic_load(&current) != seen) continue;
    double from = now();
    wait_for_change(seen);
    waited += now() - from;
  }
  if (waited > DEAR_SHARE * (now() - begin) && waited > 5e-4) alone = ALONE_RUNS;
}

static void run_some(const Op *ops, int64_t count, int threads) {
  job.ops = ops;
  job.num_phases = 0;
  for (int32_t at = 0; at < count; at++) {
    if (at && ops[at].chained) job.phases[job.num_phases - 1].last = at + 1;
    else job.phases[job.num_phases++] = (Phase){at, at + 1, 0};
  }
  ensure_workers(threads);
  job.threads = threads < num_workers + 1 ? threads : num_workers + 1;
  if (alone > 0) alone--, job.threads = 1;
  if (job.threads > 1) run_together();
  else run_alone();
}

void hr_run(const Op *ops, int64_t count, int threads) {
  threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
  pthread_mutex_lock(&starting);
  while (count > 0) { /* a list longer than the counters goes in pieces; no chain is cut */
    int64_t part = count < MAX_PHASES ? count : MAX_PHASES;
    while (part < count && part > 1 && ops[part].chained) part--;
    run_some(ops, part, threads);
    ops += part, count -= part;
  }
  pthread_mutex_unlock(&starting);
}

int hr_threads_now(void) { return alone > 0 ? 1 : num_workers + 1; }
