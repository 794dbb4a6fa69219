/* RMS norm of rows, alone or after adding to the residual. p: x, residual or NULL, weight, out. n: rows, E, inner,
 * stride of outer, stride of inner (a row is outer * inner + i). f: eps, offset. */
#include "ops.h"
#include "simd.h"

static int64_t items(const Op *op) { return op->n[0]; }

static void run(const Op *op, int64_t from, int64_t to) {
  int64_t E = op->n[1], inner = op->n[2], whole = E / LANES * LANES;
  const float *weight = op->p[2];
  vf offset = vf_set1(op->f[1]);
  for (int64_t row = from; row < to; row++) {
    const float *x = (const float *)op->p[0] + row / inner * op->n[3] + row % inner * op->n[4];
    float *out = (float *)op->p[3] + row * E, tail = 0.0f;
    vf squares = vf_zero();
    if (op->p[1]) {
      float *residual = (float *)op->p[1] + row * E;
      for (int64_t i = 0; i < whole; i += LANES) {
        vf sum = vf_add(vf_load(residual + i), vf_load(x + i));
        vf_store(residual + i, sum);
        squares = vf_fma(sum, sum, squares);
      }
      for (int64_t i = whole; i < E; i++) residual[i] += x[i], tail += residual[i] * residual[i];
      x = residual;
    } else {
      for (int64_t i = 0; i < whole; i += LANES) {
        vf v = vf_load(x + i);
        squares = vf_fma(v, v, squares);
      }
      for (int64_t i = whole; i < E; i++) tail += x[i] * x[i];
    }
    float inverse = 1.0f / sqrtf((vf_sum(squares) + tail) / (float)E + op->f[0]);
    for (int64_t i = 0; i < whole; i += LANES)
      vf_store(out + i, vf_mul(vf_mul(vf_load(x + i), vf_set1(inverse)), vf_add(vf_load(weight + i), offset)));
    for (int64_t i = whole; i < E; i++) out[i] = x[i] * inverse * (weight[i] + op->f[1]);
  }
}

const OpType hr_rms_norm = {items, run};
