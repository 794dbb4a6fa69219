/* Rows of floats -> int8 in blocks of 32 with a scale each. Every block stands alone: a row's bits never depend on what
 * else is in the batch. p: x, q, scales, and which row of x each is (int32), or NULL: they come as they are. n: T, K, stride of x,
 * parts (BY_HEAD: a row is cut into so many items). */
#include "ops.h"
#include "pieces.h"
#include "simd.h"

#define NOTHING 0x1p-121f /* 127 divided by less may be no float: a block without anything larger is one of zeros */

void hr_round(const float *x, int8_t *q, BlockScale *out, int64_t blocks) {
  for (int64_t b = 0; b < blocks; b++, x += 32, q += 32) {
    vf top = vf_zero();
    for (int i = 0; i < 32; i += LANES) top = vf_max(top, vf_abs(vf_load(x + i)));
    float most = vf_top(top);
    /* A value that is no number must not turn into a plausible one: its block's scale becomes NaN. */
    vf poison = vf_zero();
    for (int i = 0; i < 32; i += LANES) poison = vf_fma(vf_load(x + i), vf_zero(), poison);
    float bad = vf_sum(poison);
    vf inverse = vf_set1(most >= NOTHING && bad == 0.0f ? 127.0f / most : 0.0f);
    int32_t half[2] = {0, 0};
    if (bad == 0.0f)
      for (int i = 0; i < 32; i += LANES) half[i / 16] += vf_store_i8(q + i, vf_mul(vf_load(x + i), inverse));
    else
      memset(q, 0, 32);
    float scale = most / 127.0f + bad;
    float bias = -32.0f * scale; /* a power of two: exact */
    out[b] = (BlockScale){scale, scale * (float)(half[0] + half[1]), {bias * (float)half[0], bias * (float)half[1]}};
  }
}

static int64_t items(const Op *op) { return op->shape == BY_HEAD ? op->n[0] * op->n[3] : op->n[0]; }

static void run(const Op *op, int64_t from, int64_t to) {
  const float *x = op->p[0];
  int8_t *q = op->p[1];
  BlockScale *scales = op->p[2];
  const int32_t *rows = op->p[3];
  int64_t K = op->n[1], stride = op->n[2], blocks = K / 32;
  int64_t parts = op->shape == BY_HEAD ? op->n[3] : 1, width = K / parts;
  for (int64_t item = from; item < to; item++) {
    int64_t t = item / parts, at = item % parts * width;
    hr_round(x + (rows ? rows[t] : t) * stride + at, q + t * K + at, scales + t * blocks + at / 32, width / 32);
  }
}

const OpType hr_quantize = {items, run};
