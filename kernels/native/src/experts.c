/* Who computes a token of a model with experts: the choice, the order of the tokens by expert, the sum of what came of it.
 * The products between are linear.c's. */
#include <math.h>

#include "ops.h"
#include "simd.h"

/* The likeliest experts of each row, by a softmax. p: logits, chosen (int32), shares. n: T, X, stride, C, whether the shares
 * of a row add up to 1. A row that is no numbers chooses the first experts, with shares that are no numbers either. */
static int64_t route_items(const Op *op) { return op->n[0]; }

static void route_row(const float *x, int64_t X, int64_t C, int32_t *chosen, float *shares) {
  float best = -INFINITY, sum = 0;
  for (int64_t e = 0; e < X; e++) best = x[e] > best ? x[e] : best;
  for (int64_t e = 0; e < X; e++) sum += expf(x[e] - best);
  for (int64_t c = 0; c < C; c++) {
    int64_t next = -1; /* the first of the largest that stand behind the last choice: smaller, or equal with a higher number */
    for (int64_t e = 0; e < X; e++) {
      int behind = !c || x[e] < x[chosen[c - 1]] || (x[e] == x[chosen[c - 1]] && e > chosen[c - 1]);
      if (behind && (next < 0 || x[e] > x[next])) next = e;
    }
    chosen[c] = (int32_t)(next < 0 ? c : next);
    shares[c] = expf(x[chosen[c]] - best) / sum;
  }
}

static void route_run(const Op *op, int64_t from, int64_t to) {
  int64_t X = op->n[1], C = op->n[3];
  for (int64_t t = from; t < to; t++) {
    float *shares = (float *)op->p[2] + t * C, sum = 0;
    route_row((const float *)op->p[0] + t * op->n[2], X, C, (int32_t *)op->p[1] + t * C, shares);
    for (int64_t c = 0; c < C; c++) sum += shares[c];
    for (int64_t c = 0; c < C && op->n[4]; c++) shares[c] /= sum;
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
