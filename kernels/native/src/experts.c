/* Who computes a token of a model with experts: the choice, the order of the tokens by expert, the sum of what came of it.
 * The products between are linear.c's. */
#include <math.h>

#include "ops.h"
#include "simd.h"

/* The experts of each row that a router scores highest. p: logits, chosen (int32), shares, what is added to scores that
 * decide (or nothing). n: T, X, stride, C, whether the shares of a row add up to 1, whether scores are sigmoids (else a
 * softmax), groups, how many of them are looked at, how many experts stand for a group (1 or 2). f: what shares are multiplied with. A row that is no numbers chooses the
 * first experts, with shares that are no numbers either. */
#define MAX_EXPERTS 4096 /* MAX_NATIVE of kernels/route.py */

static int64_t route_items(const Op *op) { return op->n[0]; }

/* How good each group is: its best expert, or its two best together. Experts outside of the best `kept` groups get out of the
 * choice. */
static void close_groups(float *key, int64_t X, int64_t groups, int64_t kept, int64_t leaders) {
  float good[MAX_EXPERTS];
  int64_t size = X / groups;
  for (int64_t g = 0; g < groups; g++) {
    float first = -INFINITY, second = -INFINITY;
    for (const float *k = key + g * size; k < key + (g + 1) * size; k++) {
      if (*k > first) second = first, first = *k;
      else if (*k > second) second = *k;
    }
    good[g] = leaders == 1 ? first : first + second;
  }
  for (int64_t g = 0; g < groups; g++) {
    int64_t before = 0; /* groups that are better, or as good with a lower number */
    for (int64_t h = 0; h < groups; h++) before += good[h] > good[g] || (good[h] == good[g] && h < g);
    for (int64_t e = g * size; e < (g + 1) * size && before >= kept; e++) key[e] = -INFINITY;
  }
}

static void route_row(const Op *op, const float *x, int32_t *chosen, float *shares) {
  int64_t X = op->n[1], C = op->n[3], sigmoid = op->n[5];
  const float *bias = op->p[3];
  float key[MAX_EXPERTS], best = -INFINITY, sum = 0;
  for (int64_t e = 0; e < X; e++) best = x[e] > best ? x[e] : best;
  for (int64_t e = 0; e < X && !sigmoid; e++) sum += expf(x[e] - best);
#define SCORE(e) (sigmoid ? 1 / (1 + expf(-x[e])) : expf(x[e] - best) / sum)
  for (int64_t e = 0; e < X; e++) { /* a softmax alone keeps the order of the logits */
    key[e] = bias ? SCORE(e) + bias[e] : sigmoid || op->n[6] > 1 ? SCORE(e) : x[e];
    if (key[e] != key[e]) key[e] = -1e30f;
  }
  if (op->n[6] > 1) close_groups(key, X, op->n[6], op->n[7], op->n[8]);
  for (int64_t c = 0; c < C; c++) {
    int64_t next = -1; /* the first of the largest that stand behind the last choice: smaller, or equal with a higher number */
    for (int64_t e = 0; e < X; e++) {
      int behind = !c || key[e] < key[chosen[c - 1]] || (key[e] == key[chosen[c - 1]] && e > chosen[c - 1]);
      if (behind && (next < 0 || key[e] > key[next])) next = e;
    }
    chosen[c] = (int32_t)next;
    shares[c] = SCORE(next);
  }
#undef SCORE
}

static void route_run(const Op *op, int64_t from, int64_t to) {
  int64_t C = op->n[3];
  for (int64_t t = from; t < to; t++) {
    float *shares = (float *)op->p[2] + t * C, sum = 0;
    route_row(op, (const float *)op->p[0] + t * op->n[2], (int32_t *)op->p[1] + t * C, shares);
    for (int64_t c = 0; c < C; c++) sum += shares[c];
    if (sum < 1e-20f) sum = 1e-20f;
    for (int64_t c = 0; c < C; c++) shares[c] = (op->n[4] ? shares[c] / sum : shares[c]) * op->f[0];
  }
}

/* p: chosen (int32 [T, C]), rows, places, begins. n: T, C, X. One item: it is little, and each place follows from those before. */
static int64_t order_items(const Op *op) { return op->n[2] > 0; }

static void order_run(const Op *op, int64_t from, int64_t to) {
  int64_t C = op->n[1], P = op->n[0] * C, X = op->n[2];
  const int32_t *chosen = op->p[0];
  int32_t *rows = op->p[1], *places = op->p[2], *begins = op->p[3];
  (void)from, (void)to;
  memset(begins, 0, (size_t)(X + 1) * sizeof *begins);
  for (int64_t i = 0; i < P; i++) begins[chosen[i] + 1]++;
  for (int64_t e = 0; e < X; e++) begins[e + 1] += begins[e];
  for (int64_t i = 0; i < P; i++) { /* the begin of an expert moves with those that it has got */
    places[i] = begins[chosen[i]]++;
    rows[places[i]] = (int32_t)(i / C);
  }
  memmove(begins + 1, begins, (size_t)X * sizeof *begins);
  begins[0] = 0;
}

/* p: parts [P, E], places (int32 [T, C]), shares, out. n: T, E, C. */
static int64_t sum_items(const Op *op) { return op->n[0]; }

static void sum_run(const Op *op, int64_t from, int64_t to) {
  int64_t E = op->n[1], C = op->n[2];
  for (int64_t t = from; t < to; t++) {
    const int32_t *places = (const int32_t *)op->p[1] + t * C;
    const float *shares = (const float *)op->p[2] + t * C;
    float *out = (float *)op->p[3] + t * E;
    for (int64_t i = 0; i < E; i += LANES) {
      int n = (int)(E - i < LANES ? E - i : LANES);
      vf total = vf_zero();
      for (int64_t c = 0; c < C; c++)
        total = vf_fma(vf_load_n((const float *)op->p[0] + places[c] * E + i, n), vf_set1(shares[c]), total);
      vf_store_n(out + i, total, n);
    }
  }
}

const OpType hr_route = {route_items, route_run};
const OpType hr_expert_order = {order_items, order_run};
const OpType hr_expert_sum = {sum_items, sum_run};
