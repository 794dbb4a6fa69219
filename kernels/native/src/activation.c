/* act(gate) * up for rows [gate | up]. p: x, out. n: T, F, stride of x, act (SiLU, GELU, GELU by tanh, clamped). */
#include "ops.h"
#include "pieces.h"
#include "simd.h"

INLINE vf sigmoid(vf x) { return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }

#define LIMIT 7.0f /* of what is clamped; in this order NaN stays NaN */

INLINE vf gate_of(int act, vf x) {
  if (act == 0) return vf_mul(x, sigmoid(x));
  if (act == 3) {
    x = vf_min(vf_set1(LIMIT), x);
    return vf_mul(x, sigmoid(vf_mul(x, vf_set1(1.702f))));
  }
  if (act == 2) { /* 0.5 (1 + tanh u) = sigmoid(2 u) */
    vf cube = vf_mul(vf_mul(x, x), vf_mul(x, vf_set1(0.044715f)));
    return vf_mul(x, sigmoid(vf_mul(vf_add(x, cube), vf_set1(1.5957691216057308f))));
  }
  float all[LANES];
  vf_store(all, x);
  for (int i = 0; i < LANES; i++) all[i] = 0.5f * all[i] * (1.0f + erff(all[i] * 0.70710678118654752f));
  return vf_load(all);
}

INLINE vf both_of(int act, vf gate, vf up) {
  if (act == 3) up = vf_add(vf_max(vf_set1(-LIMIT), vf_min(vf_set1(LIMIT), up)), vf_set1(1.0f));
  return vf_mul(gate_of(act, gate), up);
}

INLINE void row(int act, const float *gate, const float *up, float *out, int64_t width) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) vf_store(out + i, both_of(act, vf_load(gate + i), vf_load(up + i)));
  if (i < width) {
    int n = (int)(width - i);
    vf_store_n(out + i, both_of(act, vf_load_n(gate + i, n), vf_load_n(up + i, n)), n);
  }
}

void hr_gate(int act, const float *x, int64_t stride, int64_t F, int64_t rows, float *out, int64_t out_stride) {
#define EACH_ROW(act) for (int64_t t = 0; t < rows; t++) row(act, x + t * stride, x + t * stride + F, out + t * out_stride, F)
  if (act == 0) EACH_ROW(0);
  else if (act == 1) EACH_ROW(1);
  else if (act == 2) EACH_ROW(2);
  else EACH_ROW(3);
#undef EACH_ROW
}

static int64_t items(const Op *op) { return op->n[0]; }

static void run(const Op *op, int64_t from, int64_t to) {
  int64_t F = op->n[1], stride = op->n[2];
  hr_gate((int)op->n[3], (const float *)op->p[0] + from * stride, stride, F, to - from, (float *)op->p[1] + from * F, F);
}

const OpType hr_activation = {items, run};
