/* Rotate queries in place, and write rotated keys and plain values to their slots of the paged cache.
 * p: q, k, v, cos, sin, positions, k cache, v cache, slots. Without cos nothing is rotated (a plain store).
 * n: T, H, K, D, pairs, stride of tables, B, strides of q (t, h), k (t, h), v (t, h), cache (n, b, h), interleaved,
 * 1 if positions are int64, tokens in the tables, slots in the cache, 1 if the cache is float16. A slot below 0 is skipped. */
#include "ops.h"
#include "simd.h"

#define MAX_D 512 /* of a float16 cache; the caller checks */

static void rotate(const float *x, float *to, const float *cos, const float *sin, int64_t pairs, int64_t D, int adjacent) {
  if (adjacent) {
    for (int64_t i = 0; i < pairs; i++) {
      float a = x[2 * i], b = x[2 * i + 1];
      to[2 * i] = a * cos[i] - b * sin[i], to[2 * i + 1] = b * cos[i] + a * sin[i];
    }
  } else {
    int64_t i = 0;
    for (; i + LANES <= pairs; i += LANES) {
      vf a = vf_load(x + i), b = vf_load(x + pairs + i), c = vf_load(cos + i), s = vf_load(sin + i);
      vf_store(to + i, vf_sub(vf_mul(a, c), vf_mul(b, s)));
      vf_store(to + pairs + i, vf_add(vf_mul(b, c), vf_mul(a, s)));
    }
    for (; i < pairs; i++) {
      float a = x[i], b = x[pairs + i];
      to[i] = a * cos[i] - b * sin[i], to[pairs + i] = b * cos[i] + a * sin[i];
    }
  }
  if (to != x) memcpy(to + 2 * pairs, x + 2 * pairs, sizeof(float) * (size_t)(D - 2 * pairs));
}

static void narrow(const float *from, uint16_t *to, int64_t D) {
  int64_t d = 0;
  for (; d + LANES <= D; d += LANES) vf_store_half(to + d, vf_load(from + d));
  if (d < D) {
    uint16_t some[LANES];
    vf_store_half(some, vf_load_n(from + d, (int)(D - d)));
    memcpy(to + d, some, sizeof(uint16_t) * (size_t)(D - d));
  }
}

static int64_t items(const Op *op) { return op->shape == BY_HEAD ? op->n[0] * op->n[2] : op->n[0]; }

static void one(const Op *op, int64_t t, int64_t h) { /* a KV head and the queries of its group */
  int64_t H = op->n[1], K = op->n[2], D = op->n[3], pairs = op->n[4], B = op->n[6], G = H / K;
  const float *cos = op->p[3], *sin = op->p[4];
  float *q = (float *)op->p[0] + t * op->n[7];
  const float *k = (const float *)op->p[1] + t * op->n[9] + h * op->n[10];
  const float *v = (const float *)op->p[2] + t * op->n[11] + h * op->n[12];
  int64_t slot = ((const int64_t *)op->p[8])[t];
  int adjacent = (int)op->n[16];
  if (cos) {
    int64_t at = op->n[17] ? ((const int64_t *)op->p[5])[t] : ((const int32_t *)op->p[5])[t];
    at = at < 0 ? 0 : at >= op->n[18] ? op->n[18] - 1 : at;
    cos += at * op->n[5], sin += at * op->n[5];
    for (int64_t g = h * G; g < (h + 1) * G; g++) rotate(q + g * op->n[8], q + g * op->n[8], cos, sin, pairs, D, adjacent);
  }
  if (slot < 0 || slot >= op->n[19]) return;
  int64_t to = slot / B * op->n[13] + slot % B * op->n[14] + h * op->n[15];
  if (op->n[20]) {
    float turned[MAX_D];
    if (cos) rotate(k, turned, cos, sin, pairs, D, adjacent), k = turned;
    narrow(k, (uint16_t *)op->p[6] + to, D);
    narrow(v, (uint16_t *)op->p[7] + to, D);
    return;
  }
  float *keys = (float *)op->p[6] + to;
  if (cos) rotate(k, keys, cos, sin, pairs, D, adjacent);
  else memcpy(keys, k, sizeof(float) * (size_t)D);
  memcpy((float *)op->p[7] + to, v, sizeof(float) * (size_t)D);
}

static void run(const Op *op, int64_t from, int64_t to) {
  int64_t K = op->n[2];
  for (int64_t item = from; item < to; item++) {
    if (op->shape == BY_HEAD) one(op, item / K, item % K);
    else for (int64_t h = 0; h < K; h++) one(op, item, h);
  }
}

const OpType hr_rope = {items, run};
