/* Paged attention of a mixed batch: an item is one KV head and a few queries of one sequence.
 *
 * p: q, k cache, v cache, block tables, query start, context lens, sinks or NULL, out, partial results.
 * n: T, S, H, K, D, B, stride of tables, strides of q (t, h), cache (n, b, h), window, splits, blocks in the cache.
 * f: scale, softcap. BY_HEAD: every sequence has one query, item = row * K + head.
 *
 * Keys are taken in tiles of 64 at fixed positions and in splits of SPLIT keys that are merged in their order, whether one
 * item takes all splits or (splits > 0, decodes of long contexts) each is an item of its own: a query's bits depend
 * neither on the batch nor on how its prompt was cut into steps. */
#include "ops.h"
#include "simd.h"

#define KEYS 64
#define SPLIT 512
#define MAX_D 512
#define MAX_FLOATS 8192 /* of the accumulators of an item: 32 KB, which stay in the first cache */
#define MAX_ROWS 64
#define LOW -1.0e30f

typedef struct {
  const Op *op;
  int64_t G, D, B;
  const int32_t *table;
  const float *k, *v; /* of this head */
} View;

static int64_t offset_of(const View *v, int64_t key) {
  int64_t block = v->table[key / v->B];
  if (block < 0 || block >= v->op->n[14]) block = 0; /* ids of blocks that nobody holds may be anything */
  return block * v->op->n[9] + key % v->B * v->op->n[10];
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
  for (int i = 0; i < LANES; i++) r.v[i] = vf_sum(part[i]);
  return r;
#endif
}

/* Scores of one query (padded to whole vectors) and LANES keys, of which lo .. hi - 1 exist. */
INLINE vf some_scores(const View *view, const float *q, const int64_t *at, int64_t lo, int64_t hi) {
  int64_t D = view->D, whole = D / LANES * LANES;
  vf part[LANES];
  for (int i = 0; i < LANES; i++) {
    part[i] = vf_zero();
    if (i < lo || i >= hi) continue;
    const float *k = view->k + at[i];
    for (int64_t d = 0; d < whole; d += LANES) part[i] = vf_fma(vf_load(q + d), vf_load(k + d), part[i]);
    if (whole < D) part[i] = vf_fma(vf_load(q + whole), vf_load_n(k + whole, (int)(D - whole)), part[i]);
  }
  return sums(part);
}

/* The same for LANES keys that all exist and a head of `wide` whole vectors. */
INLINE vf whole_scores(const View *view, const float *q, const int64_t *at, int wide) {
  vf part[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    const float *k = view->k + at[i];
    part[i] = vf_zero();
#pragma GCC unroll 8
    for (int d = 0; d < wide; d++) part[i] = vf_fma(vf_load(q + d * LANES), vf_load(k + d * LANES), part[i]);
  }
  return sums(part);
}

static void scores(const View *view, const float *q, const int64_t *at, int64_t lo, int64_t hi, float *to) {
  int64_t D = view->D;
  for (int64_t key = lo / LANES * LANES; key < hi; key += LANES) {
    vf s;
    if (key < lo || key + LANES > hi || D % LANES) s = some_scores(view, q, at + key, lo - key, hi - key);
    else if (D == 64) s = whole_scores(view, q, at + key, 64 / LANES);
    else if (D == 128) s = whole_scores(view, q, at + key, 128 / LANES);
    else s = some_scores(view, q, at + key, lo - key, hi - key);
    vf_store(to + key, s);
  }
}

/* Ask for the lines of a tile's keys or values early: heads lie apart, which no hardware prefetcher follows. */
INLINE void fetch(const float *from, const int64_t *at, int64_t lo, int64_t hi, int64_t D) {
  for (int64_t i = lo; i < hi; i++)
    for (int64_t d = 0; d < D; d += 16) __builtin_prefetch(from + at[i] + d);
}

/* acc[0 .. rows) += weights . values, 4 vectors of dimensions at a time */
INLINE void values(const View *view, int rows, const float *p, const int64_t *at, int64_t lo, int64_t hi, float *acc,
                   int64_t padded) {
  int64_t D = view->D;
  for (int64_t d = 0; d < D; d += 4 * LANES) {
    vf a[4][4];
    int64_t left = D - d;
    for (int r = 0; r < rows; r++)
      for (int j = 0; j < 4; j++) a[r][j] = j * LANES < left ? vf_load(acc + r * padded + d + j * LANES) : vf_zero();
    if (left >= 4 * LANES) {
      for (int64_t key = lo; key < hi; key++) {
        const float *v = view->v + at[key] + d;
        vf x[4] = {vf_load(v), vf_load(v + LANES), vf_load(v + 2 * LANES), vf_load(v + 3 * LANES)};
        for (int r = 0; r < rows; r++) {
          vf weight = vf_set1(p[r * KEYS + key]);
          for (int j = 0; j < 4; j++) a[r][j] = vf_fma(weight, x[j], a[r][j]);
        }
      }
    } else {
      for (int64_t key = lo; key < hi; key++) {
        const float *v = view->v + at[key] + d;
        for (int j = 0; j * LANES < left; j++) {
          int64_t n = left - j * LANES;
          vf x = n >= LANES ? vf_load(v + j * LANES) : vf_load_n(v + j * LANES, (int)n);
          for (int r = 0; r < rows; r++) a[r][j] = vf_fma(vf_set1(p[r * KEYS + key]), x, a[r][j]);
        }
      }
    }
    for (int r = 0; r < rows; r++)
      for (int j = 0; j < 4; j++)
        if (j * LANES < left) vf_store(acc + r * padded + d + j * LANES, a[r][j]);
  }
}

typedef struct {
  float top[MAX_ROWS], total[MAX_ROWS];
  float *acc;
} State;

/* Fold a tile's scores into the running softmax: scores become weights, the accumulator is scaled to the new maximum. */
static void soften(const Op *op, float *p, int64_t visible_lo, int64_t visible_hi, int64_t lo, int64_t hi, State *s, int r,
                   int64_t padded) {
  int64_t from = lo / LANES * LANES, to = (hi + LANES - 1) / LANES * LANES;
  int all = visible_lo == 0 && visible_hi == KEYS;
  if (op->f[1] > 0.0f)
    for (int64_t i = visible_lo; i < visible_hi; i++) p[i] = op->f[1] * tanhf(p[i] / op->f[1]);
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

/* Queries first .. first + count - 1 of sequence s (rows of G heads each) over the keys of one split. */
static void attend(const View *view, const float *q, int64_t position, int64_t count, int64_t begin, int64_t end, State *s,
                   int64_t padded) {
  const Op *op = view->op;
  int64_t G = view->G, rows = count * G, window = op->n[12];
  float p[MAX_ROWS * KEYS];
  int64_t at[KEYS];
  for (int64_t base = begin / KEYS * KEYS; base < end; base += KEYS) {
    int64_t lo = begin > base ? begin - base : 0, hi = end - base < KEYS ? end - base : KEYS;
    for (int64_t i = lo; i < hi; i++) at[i] = offset_of(view, base + i);
    fetch(view->k, at, lo, hi, view->D);
    fetch(view->v, at, lo, hi, view->D);
    for (int64_t r = 0; r < rows; r++) {
      scores(view, q + r * padded, at, lo, hi, p + r * KEYS);
      int64_t here = position + r / G, last = here + 1 - base, first = window ? here - window + 1 - base : 0;
      int64_t to = last < hi ? last : hi, from = first > lo ? first : lo;
      if (to < 0) to = 0;
      if (from > to) from = to;
      soften(op, p + r * KEYS, from, to, lo, hi, s, (int)r, padded);
    }
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) values(view, 4, p + r * KEYS, at, lo, hi, s->acc + r * padded, padded);
    if (rows - r == 3) values(view, 3, p + r * KEYS, at, lo, hi, s->acc + r * padded, padded);
    if (rows - r == 2) values(view, 2, p + r * KEYS, at, lo, hi, s->acc + r * padded, padded);
    if (rows - r == 1) values(view, 1, p + r * KEYS, at, lo, hi, s->acc + r * padded, padded);
  }
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

static int64_t padded_width(const Op *op) { return (op->n[4] + LANES - 1) / LANES * LANES; }

static int64_t rows_at_once(const Op *op) { /* queries an item may hold */
  int64_t G = op->n[2] / op->n[3], fit = MAX_FLOATS / padded_width(op);
  fit = fit > MAX_ROWS ? MAX_ROWS : fit;
  return fit / G > 0 ? fit / G : 1;
}

static void write_row(const Op *op, int64_t t, int64_t head, State *s, int r, int64_t padded) {
  int64_t D = op->n[4];
  float *to = (float *)op->p[7] + (t * op->n[2] + head) * D;
  float total = s->total[r], factor = 1.0f;
  if (op->p[6]) { /* a sink takes part in the sum and carries no value */
    float sink = ((const float *)op->p[6])[head], both[LANES];
    if (sink > s->top[r]) {
      vf_store(both, vf_exp(vf_set1(s->top[r] - sink)));
      factor = both[0];
      total = total * factor + 1.0f;
    } else {
      vf_store(both, vf_exp(vf_set1(sink - s->top[r])));
      total += both[0];
    }
  }
  float scale = total > 0.0f || total != total ? factor / total : 0.0f;
  const float *from = s->acc + r * padded;
  for (int64_t d = 0; d < D; d++) to[d] = from[d] * scale;
}

typedef struct { int64_t s, first, count, head, split; } Item;

/* Which sequence, queries, head and split an item stands for; returns 0 for none. */
static int locate(const Op *op, int64_t item, Item *it) {
  int64_t K = op->n[3], splits = op->n[13], at_once = rows_at_once(op);
  const int32_t *start = op->p[4];
  if (splits) {
    *it = (Item){item / (K * splits), 0, 1, item / splits % K, item % splits};
    return 1;
  }
  if (op->shape == BY_HEAD) {
    *it = (Item){item / K, 0, 1, item % K, -1};
    return 1;
  }
  for (int64_t s = 0; s < op->n[1]; s++) {
    int64_t n = start[s + 1] - start[s], tiles = (n + at_once - 1) / at_once * K;
    if (item < tiles) {
      int64_t tile = tiles / K - 1 - item / K; /* the longest first */
      int64_t first = tile * at_once, count = n - first < at_once ? n - first : at_once;
      *it = (Item){s, first, count, item % K, -1};
      return 1;
    }
    item -= tiles;
  }
  return 0;
}

static int64_t items(const Op *op) {
  const int32_t *start = op->p[4];
  int64_t K = op->n[3], at_once = rows_at_once(op), count = 0;
  if (op->n[13]) return op->n[1] * K * op->n[13];
  if (op->shape == BY_HEAD) return op->n[1] * K;
  for (int64_t s = 0; s < op->n[1]; s++) count += (start[s + 1] - start[s] + at_once - 1) / at_once * K;
  return count;
}

static void one(const Op *op, const Item *it) {
  int64_t H = op->n[2], K = op->n[3], D = op->n[4], G = H / K, padded = padded_width(op), rows = it->count * G;
  const int32_t *start = op->p[4];
  int64_t row = start[it->s] + it->first, context = ((const int32_t *)op->p[5])[it->s];
  int64_t n = start[it->s + 1] - start[it->s], position = context - n + it->first, window = op->n[12];
  View view = {op, G, D, op->n[5], (const int32_t *)op->p[3] + it->s * op->n[6],
               (const float *)op->p[1] + it->head * op->n[11], (const float *)op->p[2] + it->head * op->n[11]};
  float acc[2][MAX_FLOATS], q[MAX_FLOATS]; /* rows * padded <= MAX_FLOATS: the caller checked one query's */
  State part = {.acc = acc[0]}, all = {.acc = acc[1]};
  for (int64_t r = 0; r < rows; r++) {
    const float *from = (const float *)op->p[0] + (row + r / G) * op->n[7] + (it->head * G + r % G) * op->n[8];
    for (int64_t d = 0; d < padded; d++) q[r * padded + d] = d < D ? from[d] * op->f[0] : 0.0f;
  }
  int64_t end = position + it->count, begin = window && position - window + 1 > 0 ? position - window + 1 : 0;
  if (context <= 0) begin = end = 0;
  int64_t first = begin / SPLIT, last = end > begin ? (end - 1) / SPLIT : first;
  if (it->split >= 0) first = last = first + it->split;
  clear(&all, rows, padded);
  for (int64_t split = first; split <= last; split++) {
    int64_t from = split * SPLIT > begin ? split * SPLIT : begin, to = (split + 1) * SPLIT < end ? (split + 1) * SPLIT : end;
    clear(&part, rows, padded);
    if (from < to) attend(&view, q, position, it->count, from, to, &part, padded);
    if (it->split >= 0) {
      float *result = (float *)op->p[8] + ((it->s * op->n[13] + it->split) * H + it->head * G) * (padded + 2);
      for (int64_t r = 0; r < rows; r++, result += padded + 2) {
        result[0] = part.top[r], result[1] = part.total[r];
        memcpy(result + 2, part.acc + r * padded, sizeof(float) * (size_t)padded);
      }
    } else {
      for (int64_t r = 0; r < rows; r++) merge(&all, (int)r, part.top[r], part.total[r], part.acc + r * padded, padded);
    }
  }
  if (it->split < 0)
    for (int64_t r = 0; r < rows; r++) write_row(op, row + r / G, it->head * G + r % G, &all, (int)r, padded);
}

static void run(const Op *op, int64_t from, int64_t to) {
  Item it;
  for (int64_t item = from; item < to; item++)
    if (locate(op, item, &it)) one(op, &it);
}

const OpType hr_attention = {items, run};

/* The same record again: merge the splits of each row. Splits behind a row's context hold nothing and change nothing. */
static int64_t merge_items(const Op *op) { return op->n[1] * op->n[2]; }

static void merge_run(const Op *op, int64_t from, int64_t to) {
  int64_t H = op->n[2], splits = op->n[13], padded = padded_width(op);
  const int32_t *start = op->p[4];
  for (int64_t item = from; item < to; item++) {
    float acc[MAX_D + LANES];
    State all = {.acc = acc};
    int64_t s = item / H, head = item % H;
    clear(&all, 1, padded);
    for (int64_t split = 0; split < splits; split++) {
      const float *part = (const float *)op->p[8] + ((s * splits + split) * H + head) * (padded + 2);
      if (part[1] != 0.0f) merge(&all, 0, part[0], part[1], part + 2, padded);
    }
    write_row(op, start[s], head, &all, 0, padded);
  }
}

const OpType hr_merge = {merge_items, merge_run};
