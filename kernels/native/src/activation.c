/* act(gate) * up for rows [gate | up]. p: x, out. n: T, F, stride of x, act (SiLU, GELU, GELU by tanh). */
#include "ops.h"
#include "simd.h"

INLINE vf sigmoid(vf x) { return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }

INLINE vf gate_of(int act, vf x) {
  if (act == 0) return vf_mul(x, sigmoid(x));
  if (act == 2) { /* 0.5 (1 + tanh u) = sigmoid(2 u) */
    vf cube = vf_mul(vf_mul(x, x), vf_mul(x, vf_set1(0.044715f)));
    return vf_mul(x, sigmoid(vf_mul(vf_add(x, cube), vf_set1(1.5957691216057308f))));
  }
  float all[LANES];
  vf_store(all, x);
  for (int i = 0; i < LANES; i++) all[i] = 0.5f * all[i] * (1.0f + erff(all[i] * 0.70710678118654752f));
  return vf_load(all);
}

static void piece(int act, const float *gate, const float *up, float *out, int64_t width) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) vf_store(out + i, vf_mul(gate_of(act, vf_load(gate + i)), vf_load(up + i)));
  if (i < width) {
    int n = (int)(width - i);
    vf_store_n(out + i, vf_mul(gate_of(act, vf_load_n(gate + i, n)), vf_load_n(up + i, n)), n);
  }
}

static int64_t items(const Op *op) { return op->shape == BY_COLUMN ? op->n[1] / COLUMN_BLOCK : op->n[0]; }

static void run(const Op *op, int64_t from, int64_t to) {
  const float *x = op->p[0];
  float *out = op->p[1];
  int64_t T = op->n[0], F = op->n[1], stride = op->n[2];
  int act = (int)op->n[3];
  for (int64_t item = from; item < to; item++) {
    if (op->shape == BY_COLUMN) {
      int64_t c = item * COLUMN_BLOCK;
      for (int64_t t = 0; t < T; t++) piece(act, x + t * stride + c, x + t * stride + F + c, out + t * F + c, COLUMN_BLOCK);
    } else {
      piece(act, x + item * stride, x + item * stride + F, out + item * F, F);
    }
  }
}

const OpType hr_activation = {items, run};
