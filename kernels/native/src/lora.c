/* Low-rank additions behind a product: rows shrink to the rank of their adapter, then expand into the product's output.
 * Rows without an adapter are left alone. */
#include "ops.h"
#include "simd.h"

#define RANKS 8      /* of an item of the first: so that one row has work for several threads */
#define OUTPUTS 256  /* of an item of the second */

static inline int64_t blocks(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* p: x, down [L, PR, I], index (int32 [T]; 0: none), low [T, PR]. n: T, I, PR, stride of x. */
static int64_t shrink_items(const Op *op) { return op->n[0] * blocks(op->n[2], RANKS); }

static void shrink_run(const Op *op, int64_t from, int64_t to) {
  int64_t I = op->n[1], PR = op->n[2], num = blocks(PR, RANKS);
  for (int64_t item = from; item < to; item++) {
    int64_t t = item / num, begin = item % num * RANKS, end = begin + RANKS < PR ? begin + RANKS : PR;
    int32_t adapter = ((const int32_t *)op->p[2])[t];
    if (!adapter) continue;
    const float *x = (const float *)op->p[0] + t * op->n[3];
    const float *down = (const float *)op->p[1] + (adapter - 1) * PR * I;
    float *low = (float *)op->p[3] + t * PR;
    for (int64_t r = begin; r < end; r++) {
      const float *row = down + r * I;
      vf one = vf_zero(), two = vf_zero();
      int64_t i = 0;
      for (; i + 2 * LANES <= I; i += 2 * LANES) {
        one = vf_fma(vf_load(row + i), vf_load(x + i), one);
        two = vf_fma(vf_load(row + i + LANES), vf_load(x + i + LANES), two);
      }
      for (; i < I; i += LANES) {
        int n = (int)(I - i < LANES ? I - i : LANES);
        one = vf_fma(vf_load_n(row + i, n), vf_load_n(x + i, n), one);
      }
      low[r] = vf_sum(vf_add(one, two));
    }
  }
}

/* p: low [T, PR], up [L, R, O], index, out. n: T, O, R, P, stride of out, and where each of the P parts ends. f: scale. */
static int64_t expand_items(const Op *op) { return op->n[0] * blocks(op->n[1], OUTPUTS); }

static void expand_run(const Op *op, int64_t from, int64_t to) {
  int64_t O = op->n[1], R = op->n[2], P = op->n[3], num = blocks(O, OUTPUTS);
  for (int64_t item = from; item < to; item++) {
    int64_t t = item / num, first = item % num * OUTPUTS, last = first + OUTPUTS < O ? first + OUTPUTS : O;
    int32_t adapter = ((const int32_t *)op->p[2])[t];
    if (!adapter) continue;
    const float *up = (const float *)op->p[1] + (adapter - 1) * R * O;
    float *out = (float *)op->p[3] + t * op->n[4];
    int64_t begin = 0;
    for (int64_t part = 0; part < P; part++) {
      const float *low = (const float *)op->p[0] + (t * P + part) * R;
      int64_t end = op->n[5 + part], until = end < last ? end : last;
      for (int64_t i = begin > first ? begin : first; i < until; i += LANES) {
        int n = (int)(until - i < LANES ? until - i : LANES);
        vf total = vf_zero();
        for (int64_t r = 0; r < R; r++) total = vf_fma(vf_load_n(up + r * O + i, n), vf_set1(low[r]), total);
        vf_store_n(out + i, vf_fma(total, vf_set1(op->f[0]), vf_load_n(out + i, n)), n);
      }
      begin = end;
    }
  }
}

const OpType hr_lora_shrink = {shrink_items, shrink_run};
const OpType hr_lora_expand = {expand_items, expand_run};
