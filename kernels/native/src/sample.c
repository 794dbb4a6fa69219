/* Draw a token for each row: temperature, top-k, top-p, min-p, then the best of logit + Gumbel noise (kernels/sample.py).
 * p: logits, temperature, top k, top p, min p, seeds, positions, out (int64). n: rows, V, stride. NaN counts as -inf.
 *
 * Few tokens of a row can win. Without filters a token's noise is below -log(u), so one that cannot pass the best so far
 * is left out before any logarithm; with filters only the tokens near the best one are sorted, more if these do not do. */
#include <math.h>
#include <stdlib.h>

#include "ops.h"
#include "simd.h"

#define PIECE 1024      /* tokens looked at together */
#define NEAR 8.0f       /* first guess of how far below the best one the filters look, in units of temperature */
#define LN_2 0.6931471805599453f

typedef struct {
  float x;
  int32_t id;
} Candidate;

typedef struct {
  const float *x;
  int64_t V, k;
  float best, inverse, p, min_p;
  uint64_t key;
} Row;

static uint64_t mix64(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

INLINE uint32_t mix32(uint32_t h) {
  h = (h ^ h >> 16) * 0x7FEB352Du;
  h = (h ^ h >> 15) * 0x846CA68Bu;
  return h ^ h >> 16;
}

INLINE float uniform(uint64_t key, uint32_t id) {
  uint32_t h = mix32(mix32(id * 0x9E3779B1u + (uint32_t)key) ^ (uint32_t)(key >> 32));
  return (float)h * 0x1p-32f + 0x1p-33f;
}

static float gumbel(float u) {
  float series = u * (1 + u * (1.0f / 2 + u * (1.0f / 3 + u * (1.0f / 4 + u * (1.0f / 5 + u * (1.0f / 6))))));
  float one = 1 - u < 0x1p-25f ? 0x1p-25f : 1 - u, exponential = u < 0x1p-4f ? series : log2f(one) * -LN_2;
  return log2f(exponential) * -LN_2;
}

/* The best logit and the first place that has it. */
static int64_t best_of(const float *x, int64_t V, float *best) {
  float top = -INFINITY;
  int64_t piece = 0;
  for (int64_t at = 0; at < V; at += PIECE) {
    int64_t n = V - at < PIECE ? V - at : PIECE, i = 0;
    vf most = vf_set1(-INFINITY);
    for (; i + LANES <= n; i += LANES) most = vf_max(vf_load(x + at + i), most); /* NaN gives the second */
    float here = vf_top(most);
    for (; i < n; i++) here = x[at + i] > here ? x[at + i] : here;
    if (here > top) top = here, piece = at;
  }
  *best = top;
  for (int64_t i = piece; i < V; i++)
    if (x[i] == top) return i;
  return 0;
}

/* Whether one of n tokens may pass `bar`: noise is below -log(u), so its u is below e^(scaled logit - bar). Fills u. */
static int may_pass(const Row *r, int64_t at, int64_t n, float bar, float *u) {
  for (int64_t i = 0; i < n; i++) u[i] = uniform(r->key, (uint32_t)(at + i));
  int64_t i = 0;
  vf some = vf_set1(-1.0f);
  for (; i + LANES <= n; i += LANES) {
    vf limit = vf_exp(vf_sub(vf_mul(vf_load(r->x + at + i), vf_set1(r->inverse)), vf_set1(bar)));
    some = vf_max(vf_sub(vf_mul(limit, vf_set1(1.001f)), vf_load(u + i)), some);
  }
  return vf_top(some) >= 0.0f || i < n;
}

static int64_t draw_any(const Row *r) {
  float bar = -INFINITY, u[PIECE];
  int64_t chosen = 0;
  for (int64_t at = 0; at < r->V; at += PIECE) {
    int64_t n = r->V - at < PIECE ? r->V - at : PIECE;
    if (!may_pass(r, at, n, bar, u)) continue;
    for (int64_t i = 0; i < n; i++) {
      float x = r->x[at + i] * r->inverse;
      if (!(x > -INFINITY) || x - bar < -23.0f) continue; /* no noise reaches 23; NaN is out too */
      if (bar > -INFINITY && u[i] > 1.001f * expf(x - bar)) continue;
      float noisy = x + gumbel(u[i]);
      if (noisy > bar) bar = noisy, chosen = at + i;
    }
  }
  return chosen;
}

static int by_logit(const void *a, const void *b) {
  const Candidate *one = a, *other = b;
  if (one->x != other->x) return one->x < other->x ? 1 : -1;
  return one->id < other->id ? -1 : 1;
}

static int64_t gather(const Row *r, float reach, Candidate *found) {
  float from = r->best - reach / r->inverse;
  int64_t count = 0;
  for (int64_t at = 0; at < r->V; at += LANES) {
    int64_t n = r->V - at < LANES ? r->V - at : LANES;
    if (n == LANES && !(vf_top(vf_max(vf_load(r->x + at), vf_set1(-INFINITY))) >= from)) continue;
    for (int64_t i = at; i < at + n; i++)
      if (r->x[i] >= from && r->x[i] > -INFINITY) found[count++] = (Candidate){r->x[i], (int32_t)i};
  }
  qsort(found, (size_t)count, sizeof *found, by_logit);
  return count;
}

/* Sum of the weights of all tokens, the best one's being 1. */
static double mass_of_all(const Row *r) {
  double total = 0;
  for (int64_t at = 0; at < r->V; at += PIECE) {
    int64_t n = r->V - at < PIECE ? r->V - at : PIECE, i = 0;
    vf sum = vf_zero();
    for (; i + LANES <= n; i += LANES) { /* of NaN the lower bound is taken, next to nothing as for -inf */
      vf x = vf_max(vf_load(r->x + at + i), vf_set1(r->best - 100.0f / r->inverse));
      sum = vf_add(sum, vf_exp(vf_mul(vf_sub(x, vf_set1(r->best)), vf_set1(r->inverse))));
    }
    total += vf_sum(sum);
    for (; i < n; i++)
      if (r->x[at + i] > -INFINITY) total += expf((r->x[at + i] - r->best) * r->inverse);
  }
  return total;
}

/* Draw from what the filters keep of the sorted candidates; -1 if they might keep more than these. */
static int64_t draw_of(const Row *r, const Candidate *c, int64_t count, double total, int all) {
  int64_t within = count;
  if (r->k < r->V) {
    if (!all && count < r->k) return -1;
    total = 0;
    if (r->k < count)
      for (within = r->k; within < count && c[within].x == c[r->k - 1].x;) within++;
    for (int64_t i = 0; i < within; i++) total += expf((c[i].x - r->best) * r->inverse);
    all = 1;
  }
  double before = 0, same = 0; /* mass strictly above the current logit; of those equal to it so far */
  float most = -INFINITY, lowest = logf(r->min_p);
  int64_t chosen = c[0].id;
  for (int64_t i = 0; i < within; i++) {
    float scaled = (c[i].x - r->best) * r->inverse;
    if (i && c[i].x != c[i - 1].x) before += same, same = 0;
    same += expf(scaled);
    if ((i && r->p < 1.0f && before > 0 && before >= (double)r->p * total) || scaled < lowest) return chosen;
    float noisy = c[i].x * r->inverse + gumbel(uniform(r->key, (uint32_t)c[i].id));
    if (noisy > most) most = noisy, chosen = c[i].id;
  }
  if (all || (r->p < 1.0f && before + same >= (double)r->p * total)) return chosen;
  return -1;
}

static int64_t draw_filtered(const Row *r) {
  Candidate *found = malloc(sizeof *found * (size_t)r->V);
  if (!found) abort();
  double total = r->p < 1.0f && r->k >= r->V ? mass_of_all(r) : 0;
  int64_t chosen = -1;
  for (float reach = NEAR; chosen < 0; reach *= 4) {
    int all = reach > 4 * 4 * 4 * NEAR;
    int64_t count = gather(r, all ? INFINITY : reach, found);
    chosen = draw_of(r, found, count, total, all || count == r->V);
  }
  free(found);
  return chosen;
}

static int64_t items(const Op *op) { return op->n[0]; }

static void run(const Op *op, int64_t from, int64_t to) {
  const float *temperature = op->p[1], *top_p = op->p[3], *min_p = op->p[4];
  const int32_t *top_k = op->p[2];
  const uint64_t *seeds = op->p[5], *positions = op->p[6], golden = 0x9E3779B97F4A7C15u;
  for (int64_t s = from; s < to; s++) {
    Row r = {.x = (const float *)op->p[0] + s * op->n[2], .V = op->n[1], .k = top_k[s], .p = top_p[s], .min_p = min_p[s]};
    int64_t chosen = best_of(r.x, r.V, &r.best);
    if (temperature[s] > 0.0f && isfinite(r.best)) {
      r.inverse = 1.0f / temperature[s];
      r.key = mix64(mix64(seeds[s] + golden) + positions[s] * golden);
      if (r.k <= 0 || r.k > r.V) r.k = r.V;
      chosen = r.k < r.V || r.p < 1.0f || r.min_p > 0.0f ? draw_filtered(&r) : draw_any(&r);
    }
    ((int64_t *)op->p[7])[s] = chosen;
  }
}

const OpType hr_sample = {items, run};

/* Whether all of a row are finite. p: x, out (bytes). n: rows, width, stride. */
static void run_finite(const Op *op, int64_t from, int64_t to) {
  for (int64_t s = from; s < to; s++) {
    const float *x = (const float *)op->p[0] + s * op->n[2];
    vf poison[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * LANES <= op->n[1]; i += 4 * LANES)
      for (int j = 0; j < 4; j++) poison[j] = vf_fma(vf_load(x + i + j * LANES), vf_zero(), poison[j]);
    float bad = vf_sum(vf_add(vf_add(poison[0], poison[1]), vf_add(poison[2], poison[3])));
    for (; i < op->n[1]; i++) bad += x[i] * 0.0f;
    ((uint8_t *)op->p[1])[s] = bad == 0.0f;
  }
}

const OpType hr_finite = {items, run_finite};
