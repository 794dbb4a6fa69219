/* One tile of KEYS keys: scores of an item's rows, the running softmax, the sum of values. With each key and each value the
 * lines of another one, `ahead`, are asked for.
 *
 * Keys and values are float32 or float16; all arithmetic is float32. Float16 is widened where it is used, in registers for a few
 * rows and once, into memory, for many. Widening is exact, so both ways give the same bits. */
#ifndef HR_ATTENTION_TILE_H
#define HR_ATTENTION_TILE_H
#include "ops.h"
#include "simd.h"

#define KEYS 64
#define MAX_D 576 /* a latent of 512 and what carries its position */
#define MAX_ROWS 64
#define LOW -1.0e30f
#define CHUNK (4 * LANES)                 /* dimensions of values taken at a time */
#define FEW (LANES == 16 ? 4 : 2)         /* rows whose sums of a chunk fit the registers */

typedef struct {
  int64_t D, padded, rows;
  const void *k, *v; /* of this head */
  int half;          /* float16 */
} Heads;

INLINE vf element(int half, const void *base, int64_t at, int64_t n) { /* n >= LANES: a whole vector */
  if (n >= LANES) return half ? vf_half((const uint8_t *)base + 2 * at) : vf_load((const float *)base + at);
  if (!half) return vf_load_n((const float *)base + at, (int)n);
  uint16_t some[LANES] = {0};
  memcpy(some, (const uint16_t *)base + at, sizeof(uint16_t) * (size_t)n);
  return vf_half((const uint8_t *)some);
}

/* Ask for what is read later: a few lines between other work, as many at once would wait for one another. */
INLINE void ask(const char *line, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(line + b);
}

/* Lane i of the result is the sum of part[i]: pairs of vectors are added after exchanging halves. */
INLINE vf sums(const vf *part) {
#if LANES == 16
  __m512 a[16];
  for (int i = 0; i < 8; i++) {
    vf x = part[i % 4 + i / 4 * 8], y = part[i % 4 + i / 4 * 8 + 4];
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  for (int i = 0; i < 4; i++)
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
  /* 128-bit lanes of a[i] now hold: part i, i + 4, i + 8, i + 12 */
  for (int i = 0; i < 2; i++) a[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[i], a[i + 2]), _mm512_unpackhi_ps(a[i], a[i + 2]));
  a[0] = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
  return a[0];
#elif LANES == 8
  __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(part[0], part[1]), _mm256_hadd_ps(part[2], part[3]));
  __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(part[4], part[5]), _mm256_hadd_ps(part[6], part[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
#else
  vf r;
  for (int i = 0; i < LANES; i++) r[i] = vf_sum(part[i]);
  return r;
#endif
}

/* Scores of all rows and LANES keys, each `wide` whole vectors. */
INLINE void products(int64_t rows, const float *q, const float *const *k, int64_t wide, float *to) {
  for (int64_t r = 0; r < rows; r++, q += wide * LANES, to += KEYS) {
    vf part[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
      part[i] = vf_zero();
#pragma GCC unroll 8
      for (int64_t d = 0; d < wide; d++) part[i] = vf_fma(vf_load(q + d * LANES), vf_load(k[i] + d * LANES), part[i]);
    }
    vf_store(to, sums(part));
  }
}

/* Scores of a few rows and LANES float16 keys. */
INLINE void few_products(int rows, const float *q, const void *k, const int64_t *at, int64_t wide,
                         const char *const *ahead, float *to) {
  vf part[FEW][LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    ask(ahead[i], wide * LANES * 2);
    for (int r = 0; r < rows; r++) part[r][i] = vf_zero();
#pragma GCC unroll 8
    for (int64_t d = 0; d < wide; d++) {
      vf x = element(1, k, at[i] + d * LANES, LANES);
      for (int r = 0; r < rows; r++) part[r][i] = vf_fma(vf_load(q + (r * wide + d) * LANES), x, part[r][i]);
    }
  }
  for (int r = 0; r < rows; r++) vf_store(to + r * KEYS, sums(part[r]));
}

static void few_scores(int rows, const float *q, const void *k, const int64_t *at, int64_t wide, const char *const *ahead,
                       float *to) {
#define SOME(n)                                                                             \
  if (n <= FEW && rows == n) {                                                              \
    if (wide == 64 / LANES) few_products(n, q, k, at, 64 / LANES, ahead, to);            \
    else few_products(n, q, k, at, wide, ahead, to);                                     \
  }
  SOME(1) SOME(2) SOME(3) SOME(4)
#undef SOME
}

static void scores(const Heads *h, const float *q, const int64_t *at, int64_t lo, int64_t hi, const char *const *ahead,
                   float *to) {
  static const float nothing[MAX_D];
  float wide[LANES][MAX_D];
  int direct = !h->half && h->D % LANES == 0, few = h->half && h->rows <= FEW && h->D % LANES == 0;
  for (int64_t key = lo / LANES * LANES; key < hi; key += LANES) {
    if (few && key >= lo && key + LANES <= hi) {
      few_scores((int)h->rows, q, h->k, at + key, h->D / LANES, ahead + key, to + key);
      continue;
    }
    const float *k[LANES];
    for (int64_t i = 0; i < LANES; i++) {
      int64_t n = key + i;
      k[i] = n < lo || n >= hi ? nothing : direct ? (const float *)h->k + at[n] : wide[i];
      if (k[i] != nothing) ask(ahead[n], h->D * (h->half ? 2 : 4));
      if (k[i] == wide[i])
        for (int64_t d = 0; d < h->D; d += LANES)
          vf_store(wide[i] + d, h->half ? element(1, h->k, at[n] + d, h->D - d) : element(0, h->k, at[n] + d, h->D - d));
    }
    if (h->padded == 64) products(h->rows, q, k, 64 / LANES, to + key);
    else if (h->padded == 128) products(h->rows, q, k, 128 / LANES, to + key);
    else products(h->rows, q, k, h->padded / LANES, to + key);
  }
}

/* acc[0 .. rows) += weights . values, a chunk of dimensions of which `vectors` exist */
INLINE void add_values(int half, int rows, const float *p, const void *v, const int64_t *at, int64_t lo, int64_t hi,
                       float *acc, int64_t padded, int vectors, const char *const *ahead) {
  vf a[4][4];
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < 4; j++) a[r][j] = j < vectors ? vf_load(acc + r * padded + j * LANES) : vf_zero();
  for (int64_t key = lo; key < hi; key++) {
    if (ahead) ask(ahead[key], CHUNK * 2);
    vf x[4];
    for (int j = 0; j < 4; j++) x[j] = element(half, v, at[key] + j * LANES, LANES);
    for (int r = 0; r < rows; r++) {
      vf weight = vf_set1(p[r * KEYS + key]);
      for (int j = 0; j < 4; j++) a[r][j] = vf_fma(weight, x[j], a[r][j]);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < vectors; j++) vf_store(acc + r * padded + j * LANES, a[r][j]);
}

static void add_rows(int half, int64_t rows, const float *p, const void *v, const int64_t *at, int64_t lo, int64_t hi,
                     float *acc, int64_t padded, int vectors, const char *const *ahead) {
#define SOME(n) (half ? add_values(1, n, p, v, at, lo, hi, acc, padded, vectors, ahead) \
                      : add_values(0, n, p, v, at, lo, hi, acc, padded, vectors, 0))
  for (; rows >= FEW; rows -= FEW, p += FEW * KEYS, acc += FEW * padded) SOME(FEW);
  if (rows == 3) SOME(3);
  if (rows == 2) SOME(2);
  if (rows == 1) SOME(1);
#undef SOME
}

static void values(const Heads *h, const float *p, const int64_t *at, int64_t lo, int64_t hi, const char *const *ahead,
                   float *acc) {
  float wide[KEYS * CHUNK];
  int64_t places[KEYS];
  for (int64_t d = 0; d < h->D; d += CHUNK) {
    int64_t left = h->D - d;
    const void *v = h->half ? (const void *)((const uint16_t *)h->v + d) : (const void *)((const float *)h->v + d);
    if (left >= CHUNK && (!h->half || h->rows <= FEW)) {
      add_rows(h->half, h->rows, p, v, at, lo, hi, acc + d, h->padded, 4, ahead);
      continue;
    }
    for (int64_t key = lo; key < hi; key++) {
      places[key] = key * CHUNK;
      ask(ahead[key] + d * (h->half ? 2 : 4), (left < CHUNK ? left : CHUNK) * (h->half ? 2 : 4));
      for (int64_t j = 0; j < CHUNK; j += LANES) {
        int64_t n = left - j;
        vf x = n <= 0 ? vf_zero() : h->half ? element(1, v, at[key] + j, n) : element(0, v, at[key] + j, n);
        vf_store(wide + key * CHUNK + j, x);
      }
    }
    int vectors = left >= CHUNK ? 4 : (int)((left + LANES - 1) / LANES);
    add_rows(0, h->rows, p, wide, places, lo, hi, acc + d, h->padded, vectors, 0);
  }
}

typedef struct {
  float top[MAX_ROWS], total[MAX_ROWS];
  float *acc;
} State;

/* Fold a tile's scores into the running softmax: scores become weights, the accumulator is scaled to the new maximum. */
static void soften(float softcap, float *p, int64_t visible_lo, int64_t visible_hi, int64_t lo, int64_t hi, State *s,
                   int r, int64_t padded) {
  int64_t from = lo / LANES * LANES, to = (hi + LANES - 1) / LANES * LANES;
  int all = visible_lo == 0 && visible_hi == KEYS;
  if (softcap > 0.0f)
    for (int64_t i = visible_lo; i < visible_hi; i++) p[i] = softcap * tanhf(p[i] / softcap);
  if (!all)
    for (int64_t i = from; i < to; i++)
      if (i < visible_lo || i >= visible_hi) p[i] = LOW;
  vf most = vf_set1(s->top[r]);
  for (int64_t i = from; i < to; i += LANES) most = vf_max(vf_load(p + i), most);
  float top = vf_top(most);
  if (top > s->top[r]) {
    vf decay = vf_exp(vf_set1(s->top[r] - top));
    float one[LANES];
    vf_store(one, decay);
    s->total[r] *= one[0];
    for (int64_t d = 0; d < padded; d += LANES) vf_store(s->acc + r * padded + d, vf_mul(vf_load(s->acc + r * padded + d), decay));
    s->top[r] = top;
  }
  vf sum = vf_zero();
  for (int64_t i = from; i < to; i += LANES) {
    vf weight = vf_exp(vf_sub(vf_load(p + i), vf_set1(top)));
    vf_store(p + i, weight);
  }
  /* Sums of whole tiles, so that the order of addition does not depend on where the item's keys begin. */
  if (!all)
    for (int64_t i = 0; i < KEYS; i++)
      if (i < visible_lo || i >= visible_hi) p[i] = 0.0f;
  for (int64_t i = 0; i < KEYS; i += LANES) sum = vf_add(sum, vf_load(p + i));
  s->total[r] += vf_sum(sum);
}

/* Add one split's result to the running one; both forms of the split come through here. */
static void merge(State *all, int r, float top, float total, const float *acc, int64_t padded) {
  float most = top > all->top[r] ? top : all->top[r], factors[LANES];
  vf old = vf_exp(vf_set1(all->top[r] - most)), new = vf_exp(vf_set1(top - most));
  vf_store(factors, old);
  float a = factors[0];
  vf_store(factors, new);
  all->total[r] = all->total[r] * a + total * factors[0];
  all->top[r] = most;
  for (int64_t d = 0; d < padded; d += LANES) {
    float *to = all->acc + r * padded + d;
    vf_store(to, vf_fma(vf_load(to), old, vf_mul(vf_load(acc + d), new)));
  }
}

static void clear(State *s, int64_t rows, int64_t padded) {
  for (int64_t r = 0; r < rows; r++) s->top[r] = LOW, s->total[r] = 0.0f;
  memset(s->acc, 0, sizeof(float) * (size_t)(rows * padded));
}
#endif
