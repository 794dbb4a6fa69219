/* Quantized linear layer: int8 activations times tiles of 16 outputs x 32 inputs, one vector lane for each output.
 * p: q, scales, tiles, out, bias or NULL. n: T, K, N, stride of out, format. An item is a strip of 16 outputs, all rows.
 *
 * With BY_COLUMN the outputs are a gate and what it gates, half and half, and an item is 32 columns of each: what passes
 * the gate is rounded for the next product at once, and no float leaves the cache. n[5]: the activation; p[5], p[6]
 * instead of p[3]: q and scales of [T, N / 2].
 *
 * Each row takes the same operations in the same order whatever rows stand beside it, so its bits do not depend on them. */
#include "ops.h"
#include "pieces.h"
#include "simd.h"
#include "tiles.h"

#define ROW_BLOCK 64 /* rows whose activations stay in the caches while strips pass */

typedef struct {
  vb p[8];
  vf scale, minimum, scale2;
} Tile;

/* Unpack lanes h * LANES .. of a tile: p[j] holds inputs 4 j .. 4 j + 3 of each lane's output. */
INLINE void unpack(int format, const uint8_t *w, const uint8_t *head, int h, Tile *t) {
  const vb low = vb_set1(15);
  const int line = h * 4 * LANES;
  if (format == Q8_0) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) t->p[j] = vb_load(w + 64 * j + line);
  } else {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      vb v = vb_load(w + 64 * j + line);
      t->p[2 * j] = vb_and(v, low);
      t->p[2 * j + 1] = vb_and(vb_shr(v, 4), low);
    }
  }
  if (tile_high(format) == 64) {
    const vb bit = vb_set1(16);
    vb v = vb_load(w + 256 + line);
#define HIGH(k) t->p[k] = vb_or(t->p[k], vb_and(k < 4 ? vb_shl(v, k < 4 ? 4 - k : 0) : vb_shr(v, k < 4 ? 0 : k - 4), bit));
    HIGH(0) HIGH(1) HIGH(2) HIGH(3) HIGH(4) HIGH(5) HIGH(6) HIGH(7)
#undef HIGH
  } else if (tile_high(format) == 128) {
    const vb bits = vb_set1(48);
#define HIGH(a) { vb v = vb_load(w + 256 + 64 * a + line); \
    t->p[4 * a] = vb_or(t->p[4 * a], vb_and(vb_shl(v, 4), bits)); \
    t->p[4 * a + 1] = vb_or(t->p[4 * a + 1], vb_and(vb_shl(v, 2), bits)); \
    t->p[4 * a + 2] = vb_or(t->p[4 * a + 2], vb_and(v, bits)); \
    t->p[4 * a + 3] = vb_or(t->p[4 * a + 3], vb_and(vb_shr(v, 2), bits)); }
    HIGH(0) HIGH(1)
#undef HIGH
  }
  const uint8_t *s = w + tile_low(format) + tile_high(format);
  if (format == Q6_K) {
    vf d = vf_half(head + 2 * h * LANES);
    t->scale = vf_mul(d, vf_i8(s + h * LANES));
    t->scale2 = vf_mul(d, vf_i8(s + 16 + h * LANES));
  } else if (is_k(format)) {
    t->scale = vf_mul(vf_half(head + 2 * h * LANES), vf_u8(s + h * LANES));
    t->minimum = vf_mul(vf_half(head + 32 + 2 * h * LANES), vf_mul(vf_u8(s + 16 + h * LANES), vf_set1(-1.0f)));
  } else {
    t->scale = vf_half(s + 2 * h * LANES);
    if (format == Q4_1 || format == Q5_1) t->minimum = vf_half(s + 32 + 2 * h * LANES);
    if (format == Q4_0) t->minimum = vf_mul(t->scale, vf_set1(-8.0f));
    if (format == Q5_0) t->minimum = vf_mul(t->scale, vf_set1(-16.0f));
    if (format == Q8_0 && HR_DOT8_BIASED) t->minimum = vf_mul(t->scale, vf_set1(-128.0f));
  }
}

INLINE vf accumulate(int format, const Tile *t, const int8_t *q, const BlockScale *s, vf f) {
  int32_t x[8];
  memcpy(x, q, 32);
  vi a = vi_zero(), b = vi_zero();
  if (format == Q6_K) { /* two scales: the halves are summed apart */
    for (int j = 0; j < 4; j++) a = vi_dot(a, t->p[j], x[j]), b = vi_dot(b, t->p[4 + j], x[4 + j]);
    vf first = vf_fma(vf_int(a), vf_set1(s->scale), vf_set1(s->offset[0]));
    vf second = vf_fma(vf_int(b), vf_set1(s->scale), vf_set1(s->offset[1]));
    return vf_fma(second, t->scale2, vf_fma(first, t->scale, f));
  }
  if (format == Q8_0)
    for (int j = 0; j < 8; j += 2) a = vi_dot8(a, t->p[j], x[j]), b = vi_dot8(b, t->p[j + 1], x[j + 1]);
  else
    for (int j = 0; j < 8; j += 2) a = vi_dot(a, t->p[j], x[j]), b = vi_dot(b, t->p[j + 1], x[j + 1]);
  f = vf_fma(vf_int(vi_add(a, b)), vf_mul(t->scale, vf_set1(s->scale)), f);
  if (format != Q8_0 || HR_DOT8_BIASED) f = vf_fma(t->minimum, vf_set1(s->sum), f);
  return f;
}

/* ROWS rows x LANES outputs, all inputs. */
INLINE void strip(int format, int rows, const uint8_t *w, int64_t blocks, int h, const int8_t *q, const BlockScale *s,
                  vf *f) {
  const int bytes = tile_bytes(format);
  const uint8_t *head = w;
  for (int m = 0; m < rows; m++) f[m] = vf_zero();
  for (int64_t b = 0; b < blocks; b++, w += bytes, q += 32, s++) {
    if (is_k(format) && b % 8 == 0) head = w, w += group_head(format);
    if (h == 0)
#pragma GCC unroll 9
      for (int line = 0; line < bytes; line += 64) __builtin_prefetch(w + 8 * bytes + line);
    Tile t;
    unpack(format, w, head, h, &t);
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++) f[m] = accumulate(format, &t, q + m * blocks * 32, s + m * blocks, f[m]);
  }
}

typedef struct {
  int64_t K, N;
  const int8_t *q;
  const BlockScale *s;
  const uint8_t *tiles;
  const float *bias;
} Args;

/* Some rows of a strip, from row t on, to `out`. */
INLINE void strips(int format, int rows, const Args *a, int64_t strip_at, int64_t t, float *out, int64_t stride) {
  int64_t blocks = a->K / 32;
  const uint8_t *w = a->tiles + strip_at * strip_bytes(format, blocks);
  for (int h = 0; h < 16 / LANES; h++, out += LANES) {
    int64_t column = strip_at * 16 + h * LANES, width = a->N - column;
    if (width <= 0) return;
    vf f[8];
    strip(format, rows, w, blocks, h, a->q + t * a->K, a->s + t * blocks, f);
    vf bias = !a->bias ? vf_zero() : width >= LANES ? vf_load(a->bias + column) : vf_load_n(a->bias + column, (int)width);
    for (int m = 0; m < rows; m++) {
      vf y = a->bias ? vf_add(f[m], bias) : f[m];
      if (width >= LANES) vf_store(out + m * stride, y);
      else vf_store_n(out + m * stride, y, (int)width);
    }
  }
}

#if defined(__AMX_INT8__)
#include "linear_amx.h"
#else
#define GROUP (ROW_BLOCK + 1) /* never */
#define amx_strip(format, a, strip_at, from, to, out, stride) (from)
#define tiles_ready(format) ((void)0)
#define _tile_release() ((void)0)
#endif

/* Rows from .. to - 1 of a strip, as many at a time as registers hold sums. */
#define FORMAT(name)                                                                                                   \
  static void run_##name(const Args *a, int64_t strip_at, int64_t from, int64_t to, float *out, int64_t stride) {      \
    int64_t t = to - from >= GROUP ? amx_strip(name, a, strip_at, from, to, out, stride) : from;                       \
    for (; t + 8 <= to; t += 8) strips(name, 8, a, strip_at, t, out + (t - from) * stride, stride);                    \
    if (t + 4 <= to) strips(name, 4, a, strip_at, t, out + (t - from) * stride, stride), t += 4;                       \
    if (t + 2 <= to) strips(name, 2, a, strip_at, t, out + (t - from) * stride, stride), t += 2;                       \
    if (t < to) strips(name, 1, a, strip_at, t, out + (t - from) * stride, stride);                                    \
  }
FORMAT(Q4_0) FORMAT(Q4_1) FORMAT(Q5_0) FORMAT(Q5_1) FORMAT(Q8_0) FORMAT(Q4_K) FORMAT(Q5_K) FORMAT(Q6_K)

typedef void Run(const Args *a, int64_t strip_at, int64_t from, int64_t to, float *out, int64_t stride);
static Run *const RUN[NUM_FORMATS] = {run_Q4_0, run_Q4_1, run_Q5_0, run_Q5_1, run_Q8_0, run_Q4_K, run_Q5_K, run_Q6_K};

/* 32 columns of the gate and of what it gates, side by side. */
static void gated(const Op *op, const Args *a, int64_t item, int64_t from, int64_t to) {
  enum { WIDE = 2 * COLUMN_BLOCK };
  float both[ROW_BLOCK * WIDE] __attribute__((aligned(64)));
  Run *const product = RUN[op->n[4]];
  int64_t half = a->N / 2, rows = to - from, blocks = half / 32;
  for (int i = 0; i < 2; i++) {
    product(a, 2 * item + i, from, to, both + 16 * i, WIDE);
    product(a, half / 16 + 2 * item + i, from, to, both + COLUMN_BLOCK + 16 * i, WIDE);
  }
  hr_gate((int)op->n[5], both, WIDE, COLUMN_BLOCK, rows, both, WIDE);
  int8_t *q = (int8_t *)op->p[5] + from * half + item * COLUMN_BLOCK;
  BlockScale *scales = (BlockScale *)op->p[6] + from * blocks + item;
  for (int64_t t = 0; t < rows; t++) hr_round(both + t * WIDE, q + t * half, scales + t * blocks, 1);
}

static int64_t items(const Op *op) { return op->shape == BY_COLUMN ? op->n[2] / (2 * COLUMN_BLOCK) : (op->n[2] + 15) / 16; }

static void run(const Op *op, int64_t from, int64_t to) {
  Args a = {op->n[1], op->n[2], op->p[0], op->p[1], op->p[2], op->p[4]};
  int64_t T = op->n[0], stride = op->n[3];
  int tiled = T >= GROUP;
  if (tiled) tiles_ready((int)op->n[4]);
  for (int64_t t = 0; t < T; t += ROW_BLOCK) {
    int64_t end = t + ROW_BLOCK < T ? t + ROW_BLOCK : T;
    for (int64_t item = from; item < to; item++) {
      if (op->shape == BY_COLUMN) gated(op, &a, item, t, end);
      else RUN[op->n[4]](&a, item, t, end, (float *)op->p[3] + t * stride + item * 16, stride);
    }
  }
  if (tiled) _tile_release();
}

const OpType hr_linear = {items, run};
