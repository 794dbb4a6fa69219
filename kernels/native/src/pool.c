/* A phase is an operation and those chained to it. Threads claim pieces of the current phase's items, large ones first.
 *
 * A phase ends when its items are done, not when all threads have come: a thread that the system has taken away holds up
 * the others only while it holds items. Waiting is a short spin, then sleep. When waiting takes much of the time (a core is
 * taken by somebody else) a run is tried on one thread; what costs less goes on, and the other is tried again now and then. */
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
#define STEP_PHASES 32     /* so many are a whole step: nothing comes soon behind it, and others want the core */
#define DEAR_SHARE 0.3     /* of all threads' time spent waiting: reason to try with one */
#define FIRST_TRIAL 8      /* runs on one thread before several are tried again; doubles with each failure */
#define LAST_TRIAL 256
#define SMALL_WORK 1500000 /* multiplications of bytes: about 15 us, not worth another thread's attention */

static const OpType *const TYPES[NUM_OPS] = {&hr_quantize, &hr_linear,    &hr_rms_norm, &hr_activation,
                                             &hr_rope,     &hr_attention, &hr_merge,    &hr_embedding,
                                             &hr_sample,   &hr_finite,    &hr_route,    &hr_expert_order,
                                             &hr_expert_sum, &hr_lora_shrink, &hr_lora_expand,
                                             &hr_causal_conv, &hr_gated_delta, &hr_gated_norm,
                                             &hr_selective_scan};

typedef struct {
  int32_t first, last;
  _Atomic int64_t items;
} Phase;

/* What is atomic here is also read by a thread that comes late, in the middle of its change for another run. */
static struct {
  const Op *ops;
  _Atomic int num_phases, threads;
  Phase phases[MAX_PHASES];
} job;
#define NUM_PHASES atomic_load_explicit(&job.num_phases, memory_order_relaxed)
#define THREADS atomic_load_explicit(&job.threads, memory_order_relaxed)
/* High half: number of the run, low half: what it counts. The run's number keeps a thread that comes late from another
 * run's work. */
static _Atomic uint64_t current;            /* phase */
static _Atomic uint64_t next[MAX_PHASES];   /* first unclaimed item */
static _Atomic int64_t done[MAX_PHASES];
static _Atomic uint32_t bell, sleepers;     /* changes with every phase; who waits on it */
static int num_workers;
static uint32_t run_number;
static _Atomic int64_t waited_ns;

/* What runs of about one size cost per unit of work on several threads and on one. Index: log2 of the work. */
static struct {
  double together, alone;
  int single, countdown, trial;
} choices[64];
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
  int num_phases = NUM_PHASES, step_is_over = num_phases >= STEP_PHASES && (int)(uint32_t)seen >= num_phases;
  for (int i = 0; i < (step_is_over ? 1 : SPINS); i++) {
    if (atomic_load_explicit(&current, memory_order_acquire) != seen) return;
    relax();
  }
  double from = now();
  while (1) {
    uint32_t heard = atomic_load(&bell);
    if (atomic_load(&current) != seen) break;
    sleep_on(heard);
  }
  if (seen && (int)(uint32_t)seen < NUM_PHASES) atomic_fetch_add(&waited_ns, (int64_t)(1e9 * (now() - from)));
}

static void run_phase(const Phase *phase, int64_t from, int64_t to) {
  for (int32_t op = phase->first; op < phase->last; op++) TYPES[job.ops[op].kind]->run(&job.ops[op], from, to);
}

/* Open the first phase from `phase` on that has items; those whose shape left nothing to do are passed. */
static void open_phase(uint32_t run, int phase) {
  for (; phase < NUM_PHASES; phase++) {
    const Op *op = &job.ops[job.phases[phase].first];
    int64_t items = TYPES[op->kind]->items(op);
    /* Release: who comes late and reads these also finds that `next` is another run's by now. */
    atomic_store_explicit(&job.phases[phase].items, items, memory_order_release);
    if (items > 0) break;
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
    int64_t items = atomic_load_explicit(&job.phases[phase].items, memory_order_acquire), from = (int64_t)(uint32_t)at;
    if (from >= items) return;
    int64_t take = (items - from) / (2 * THREADS);
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
    if ((int)(uint32_t)seen < NUM_PHASES && (int)(intptr_t)number < THREADS && run) help(seen);
  }
  return NULL;
}

/* A fork waits for the end of a run: its child has none of the threads that would end it, nor one to unlock `starting`. */
static void before_fork(void) { pthread_mutex_lock(&starting); }
static void after_fork(void) { pthread_mutex_unlock(&starting); }
static void in_child(void) {
  num_workers = 0;
  atomic_store(&sleepers, 0);
  pthread_mutex_unlock(&starting);
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

static void ensure_workers(int wanted) {
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
  int num_phases = NUM_PHASES;
  for (int phase = 0; phase < num_phases; phase++) {
    const Phase *p = &job.phases[phase];
    int64_t items = TYPES[job.ops[p->first].kind]->items(&job.ops[p->first]);
    if (items > 0) run_phase(p, 0, items);
  }
}

static void run_together(void) {
  uint32_t run = ++run_number ? run_number : ++run_number;
  int num_phases = NUM_PHASES;
  atomic_store(&waited_ns, 0);
  for (int phase = 0; phase < num_phases; phase++) {
    atomic_store_explicit(&done[phase], 0, memory_order_relaxed);
    atomic_store_explicit(&next[phase], (uint64_t)run << 32, memory_order_relaxed);
  }
  open_phase(run, 0);
  while (1) {
    uint64_t seen = atomic_load(&current);
    if ((int)(uint32_t)seen >= num_phases) break;
    help(seen);
    if (atomic_load(&current) != seen) continue;
    wait_for_change(seen);
  }
}

/* An estimate in multiplications of bytes; it only has to compare runs of about the same kind. */
static double work_of(const Op *op) {
  const int64_t *n = op->n;
  switch (op->kind) {
    case OP_LINEAR: return (double)n[0] * (double)n[1] * (double)n[2];
    case OP_ATTENTION: {
      const int32_t *start = op->p[4], *context = op->p[5];
      double keys = 0;
      for (int64_t s = 0; s < n[1]; s++) keys += (double)(start[s + 1] - start[s]) * context[s];
      return 16.0 * keys * (double)(n[2] * n[4]);
    }
    case OP_ROPE: return 16.0 * (double)(n[0] * (n[1] + 2 * n[2]) * n[3]);
    case OP_LORA_SHRINK: case OP_LORA_EXPAND: return 4.0 * (double)(n[0] * n[1] * n[2]);
    case OP_MERGE: case OP_EXPERT_ORDER: return 0;
    case OP_EMBEDDING: return 64.0 * (double)(n[0] * n[2]);
    default: return 16.0 * (double)(n[0] * n[1]);
  }
}

static double blend(double old, double cost) { return old > 0 ? 0.7 * old + 0.3 * cost : cost; }

/* Run the job on as many threads as have proved best for runs of this size. */
static void run_best(double work) {
  int size = 0, threads = THREADS;
  while (size < 63 && work > (double)(1ll << size)) size++;
  int trial = choices[size].single && --choices[size].countdown <= 0;
  int alone = choices[size].single && !trial;
  double begin = now();
  if (alone) run_alone();
  else run_together();
  double cost = (now() - begin) / work;
  if (alone) {
    choices[size].alone = blend(choices[size].alone, cost);
    return;
  }
  if (trial) {
    choices[size].together = cost;
    choices[size].single = cost > choices[size].alone;
    choices[size].trial = choices[size].trial * 2 > LAST_TRIAL ? LAST_TRIAL : choices[size].trial * 2;
    choices[size].countdown = choices[size].trial;
    return;
  }
  choices[size].together = blend(choices[size].together, cost);
  if ((double)atomic_load(&waited_ns) > DEAR_SHARE * 1e9 * cost * work * threads) {
    /* If one thread turns out to be slower after all, the next trial is soon. */
    choices[size].single = 1;
    choices[size].trial = choices[size].countdown = FIRST_TRIAL;
  }
}

static void run_some(const Op *ops, int64_t count, int threads) {
  int num_phases = 0;
  job.ops = ops;
  for (int32_t at = 0; at < count; at++) {
    if (!at || !ops[at].chained) job.phases[num_phases++].first = at;
    job.phases[num_phases - 1].last = at + 1;
  }
  atomic_store_explicit(&job.num_phases, num_phases, memory_order_relaxed);
  ensure_workers(threads);
  double work = 1;
  for (int64_t at = 0; at < count; at++) work += work_of(&ops[at]);
  threads = threads < num_workers + 1 ? threads : num_workers + 1;
  atomic_store_explicit(&job.threads, threads, memory_order_relaxed);
  if (threads > 1 && work > SMALL_WORK) run_best(work);
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
