/* Rows of activations times some lanes of tiles (tiles.h), all inputs: the part of the linear layer that computes.
 *
 * Four inputs at a time of all rows and vectors, so that the sums of a tile, and nothing else for long, are in registers:
 * 8 rows x 2 vectors of 16 lanes read 10 operands for 16 products. Zen 5 takes two of either a cycle; with the scales of
 * each row and tile it comes to 369 of 407 G multiplications a second that this allows (4.4 GHz, one core, in cache). */
#ifndef HR_LINEAR_TILE_H
#define HR_LINEAR_TILE_H
#include "fp4.h"
#include "ops.h"
#include "simd.h"
#include "tiles.h"

#define ROWS 8                           /* at a time, or fewer */
#define VECTORS (LANES == 16 ? 2 : 1)    /* the most at a time */

typedef int32_t __attribute__((may_alias, aligned(1))) Four; /* activations, read where they lie by every lane */

/* Unpack inputs 8 j .. 8 j + 3 and 8 j + 4 .. 8 j + 7 of the lanes whose bytes begin at w. */
INLINE void unpack(int format, const uint8_t *w, int j, vb *p) {
  if (format == Q8_0) {
    p[0] = vb_load(w + 128 * j), p[1] = vb_load(w + 128 * j + 64);
    return;
  }
  const vb low = vb_set1(15);
  vb v = vb_load(w + 64 * j);
  p[0] = vb_and(v, low), p[1] = vb_and(vb_shr(v, 4), low);
  if (format == MXFP4) p[0] = vb_fp4(p[0]), p[1] = vb_fp4(p[1]);
  if (tile_high(format) == 64) {
    const vb bit = vb_set1(16);
    v = vb_load(w + 256);
#define HIGH(k) vb_and((k) < 4 ? vb_shl(v, (k) < 4 ? 4 - (k) : 0) : vb_shr(v, (k) < 4 ? 0 : (k) - 4), bit)
    p[0] = vb_or(p[0], HIGH(2 * j)), p[1] = vb_or(p[1], HIGH(2 * j + 1));
#undef HIGH
  } else if (tile_high(format) == 128) {
    const vb bits = vb_set1(48);
    v = vb_load(w + 256 + j / 2 * 64);
    p[0] = vb_or(p[0], vb_and(j % 2 ? v : vb_shl(v, 4), bits));
    p[1] = vb_or(p[1], vb_and(j % 2 ? vb_shr(v, 2) : vb_shl(v, 2), bits));
  }
}

typedef struct {
  vf scale, second; /* the minimum; Q6_K: the scale of the last 16 inputs */
} Scales;

/* What the integers of a tile's lanes `lane` .. are multiplied by. */
INLINE Scales scales_of(int format, const uint8_t *tile, const uint8_t *head, int lane) {
  const uint8_t *s = tile + tile_low(format) + tile_high(format);
  Scales t;
  if (format == Q6_K) {
    vf d = vf_half(head + 2 * lane);
    t.scale = vf_mul(d, vf_i8(s + lane));
    t.second = vf_mul(d, vf_i8(s + 16 + lane));
  } else if (is_k(format)) {
    t.scale = vf_mul(vf_half(head + 2 * lane), vf_u8(s + lane));
    t.second = vf_mul(vf_half(head + 32 + 2 * lane), vf_mul(vf_u8(s + 16 + lane), vf_set1(-1.0f)));
  } else if (format == MXFP4) {
    t.scale = vf_power(s + lane);
    t.second = vf_mul(t.scale, vf_set1(-12.0f));
  } else {
    t.scale = vf_half(s + 2 * lane);
    t.second = format == Q4_1 || format == Q5_1
                   ? vf_half(s + 32 + 2 * lane)
                   : vf_mul(t.scale, vf_set1(format == Q4_0 ? -8.0f : format == Q5_0 ? -16.0f : -128.0f));
  }
  return t;
}

/* Add what a tile's sums of products stand for; Q6_K, which has two scales, comes once for each half of the inputs. */
INLINE vf converted(int format, int half, const Scales *t, vi sum, const BlockScale *s, vf f) {
  if (format == Q6_K) {
    vf value = vf_fma(vf_int(sum), vf_set1(s->scale), vf_set1(s->offset[half]));
    return vf_fma(value, half ? t->second : t->scale, f);
  }
  f = vf_fma(vf_int(sum), vf_mul(t->scale, vf_set1(s->scale)), f);
  if (format != Q8_0 || HR_DOT8_BIASED) f = vf_fma(t->second, vf_set1(s->sum), f);
  return f;
}

/* f = rows x vectors * LANES outputs. Each vector's strip and first lane there; with each tile `step` bytes are asked for
 * from `next` on. */
INLINE void multiply(int format, int rows, int vectors, const uint8_t *const *strip, const int *lane, int64_t blocks,
                     const int8_t *q, const BlockScale *s, const uint8_t *next, int64_t step, vf (*f)[VECTORS]) {
  const int halves = format == Q6_K ? 2 : 1;
  int64_t at = 0, head = 0;
  for (int m = 0; m < rows; m++)
    for (int v = 0; v < vectors; v++) f[m][v] = vf_zero();
  for (int64_t b = 0; b < blocks; b++, at += tile_bytes(format), q += 32, s++, next += step) {
    if (is_k(format) && b % 8 == 0) head = at, at += group_head(format);
    for (int64_t line = 0; line < step; line += 64) __builtin_prefetch(next + line);
    Scales scales[VECTORS];
#pragma GCC unroll 2
    for (int half = 0; half < halves; half++) {
      vi sum[ROWS][VECTORS];
#pragma GCC unroll 8
      for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[m][v] = vi_zero();
#pragma GCC unroll 4
      for (int j = half * 2; j < (half + 1) * 4 / halves; j++) {
        vb p[VECTORS][2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) unpack(format, strip[v] + at + 4 * lane[v], j, p[v]);
#pragma GCC unroll 8
        for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
          for (int k = 0; k < 2; k++) {
            int32_t x = ((const Four *)(q + m * blocks * 32))[2 * j + k];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
              sum[m][v] = format == Q8_0 ? vi_dot8(sum[m][v], p[v][k], x) : vi_dot(sum[m][v], p[v][k], x);
          }
      }
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v++) {
        if (!half) scales[v] = scales_of(format, strip[v] + at, strip[v] + head, lane[v]);
#pragma GCC unroll 8
        for (int m = 0; m < rows; m++) f[m][v] = converted(format, half, &scales[v], sum[m][v], s + m * blocks, f[m][v]);
      }
    }
  }
}
#endif
