/* Paged attention of a mixed batch: an item is one KV head and a few queries of one sequence.
 *
 * p: q, k cache, v cache, block tables, query start, context lens, sinks or NULL, out, partial results.
 * n: T, S, H, K, D, B, stride of tables, strides of q (t, h), cache (n, b, h), window, splits, blocks in the cache,
 * 1 if the cache is float16.
 * f: scale, softcap. BY_HEAD: every sequence has one query, item = row * K + head.
 *
 * Keys are taken in tiles of 64 at fixed positions and in splits of SPLIT keys that are merged in their order, whether one
 * item takes all splits or (splits > 0, decodes of long contexts) each is an item of its own: a query's bits depend
 * neither on the batch nor on how its prompt was cut into steps. */
#include "attention_tile.h"

#define SPLIT 512
#define MAX_FLOATS 8192 /* of the accumulators of an item: 32 KB, which stay in the first cache */

typedef struct {
  const Op *op;
  const int32_t *table;
  int64_t G;
  Heads heads;
} View;

/* Where keys base + lo .. base + hi - 1 begin; block by block, as dividing for each would cost as much as the scores. */
static void find(const View *v, int64_t base, int64_t lo, int64_t hi, int64_t *at) {
  const int64_t *n = v->op->n;
  int64_t B = n[5], place = (base + lo) / B, within = (base + lo) % B;
  for (int64_t i = lo; i < hi; place++, within = 0) {
    int64_t block = v->table[place];
    if (block < 0 || block >= n[14]) block = 0; /* ids of blocks that nobody holds may be anything */
    for (; within < B && i < hi; within++, i++) at[i] = block * n[9] + within * n[10];
  }
}

/* Runs KEYS keys before what is computed, through all items of a piece, and says where they lie. Memory is asked for key by
 * key, as bursts come at half its rate (12 instead of 25 GB/s on Zen 5), and across items, as contexts are short. */
typedef struct {
  const Op *op;
  const int32_t *table;
  int64_t item, last, place, within, left; /* keys of the item that have not been named */
  const char *k, *v;                       /* of the item's head */
} Ahead;

static void next_item(Ahead *a);

/* Write down the places of the next keys at lo .. hi - 1; behind the last item they are anywhere. */
static void name_next(Ahead *a, int64_t lo, int64_t hi, const char **k, const char **v) {
  const int64_t *n = a->op->n;
  int64_t size = n[15] ? 2 : 4, B = n[5];
  for (int64_t i = lo; i < hi;) {
    while (!a->left && a->item < a->last) next_item(a);
    if (!a->left) {
      for (; i < hi; i++) k[i] = a->k, v[i] = a->v;
      return;
    }
    int64_t block = a->table[a->place];
    if (block < 0 || block >= n[14]) block = 0;
    int64_t at = (block * n[9] + a->within * n[10]) * size, step = n[10] * size;
    int64_t count = hi - i < a->left ? hi - i : a->left;
    if (count >= B - a->within) count = B - a->within, a->place++, a->within = 0;
    else a->within += count;
    a->left -= count;
    for (int64_t end = i + count; i < end; i++, at += step) k[i] = a->k + at, v[i] = a->v + at;
  }
}

/* `count` queries (rows of G heads each), the first at `position`, over the keys of one split. */
static void attend(const View *view, const float *q, int64_t position, int64_t begin, int64_t end, State *s,
                   Ahead *ahead) {
  const Op *op = view->op;
  const Heads *h = &view->heads;
  int64_t window = op->n[12], at[KEYS];
  const char *k[KEYS], *v[KEYS];
  float p[MAX_ROWS * KEYS];
  for (int64_t base = begin / KEYS * KEYS; base < end; base += KEYS) {
    int64_t lo = begin > base ? begin - base : 0, hi = end - base < KEYS ? end - base : KEYS;
    find(view, base, lo, hi, at);
    name_next(ahead, lo, hi, k, v);
    scores(h, q, at, lo, hi, k, p);
    for (int64_t r = 0; r < h->rows; r++) {
      int64_t here = position + r / view->G, last = here + 1 - base, first = window ? here - window + 1 - base : 0;
      int64_t to = last < hi ? last : hi, from = first > lo ? first : lo;
      if (to < 0) to = 0;
      if (from > to) from = to;
      soften(op->f[1], p + r * KEYS, from, to, lo, hi, s, (int)r, h->padded);
    }
    values(h, p, at, lo, hi, v, s->acc);
  }
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

/* The keys that an item takes, all that its queries may see or those of its split: begin .. end - 1. */
static void reach(const Op *op, const Item *it, int64_t *begin, int64_t *end) {
  const int32_t *start = op->p[4];
  int64_t context = ((const int32_t *)op->p[5])[it->s], n = start[it->s + 1] - start[it->s];
  int64_t position = context - n + it->first, window = op->n[12];
  *end = position + it->count, *begin = window && position - window + 1 > 0 ? position - window + 1 : 0;
  if (context <= 0) *begin = *end = 0;
  if (it->split < 0) return;
  int64_t split = *begin / SPLIT + it->split;
  if (split * SPLIT > *begin) *begin = split * SPLIT;
  if ((split + 1) * SPLIT < *end) *end = (split + 1) * SPLIT;
}

static void next_item(Ahead *a) {
  const Op *op = a->op;
  Item it;
  if (!locate(op, a->item++, &it)) return;
  int64_t begin, end, size = op->n[15] ? 2 : 4, of_head = it.head * op->n[11] * size;
  reach(op, &it, &begin, &end);
  a->table = (const int32_t *)op->p[3] + it.s * op->n[6];
  a->k = (const char *)op->p[1] + of_head, a->v = (const char *)op->p[2] + of_head;
  a->place = begin / op->n[5], a->within = begin % op->n[5], a->left = end > begin ? end - begin : 0;
}

static void one(const Op *op, const Item *it, Ahead *ahead) {
  int64_t H = op->n[2], K = op->n[3], D = op->n[4], G = H / K, padded = padded_width(op), rows = it->count * G;
  const int32_t *start = op->p[4];
  int64_t row = start[it->s] + it->first, context = ((const int32_t *)op->p[5])[it->s];
  int64_t position = context - (start[it->s + 1] - start[it->s]) + it->first, begin, end;
  int64_t size = op->n[15] ? 2 : 4, of_head = it->head * op->n[11] * size;
  View view = {op, (const int32_t *)op->p[3] + it->s * op->n[6], G,
               {D, padded, rows, (const char *)op->p[1] + of_head, (const char *)op->p[2] + of_head, (int)op->n[15]}};
  float acc[2][MAX_FLOATS], q[MAX_FLOATS]; /* rows * padded <= MAX_FLOATS: the caller checked one query's */
  State part = {.acc = acc[0]}, all = {.acc = acc[1]};
  for (int64_t r = 0; r < rows; r++) {
    const float *from = (const float *)op->p[0] + (row + r / G) * op->n[7] + (it->head * G + r % G) * op->n[8];
    for (int64_t d = 0; d < padded; d++) q[r * padded + d] = d < D ? from[d] * op->f[0] : 0.0f;
  }
  reach(op, it, &begin, &end);
  int64_t first = begin / SPLIT, last = end > begin ? (end - 1) / SPLIT : first;
  clear(&all, rows, padded);
  for (int64_t split = first; split <= last; split++) {
    int64_t from = split * SPLIT > begin ? split * SPLIT : begin, to = (split + 1) * SPLIT < end ? (split + 1) * SPLIT : end;
    clear(&part, rows, padded);
    if (from < to) attend(&view, q, position, from, to, &part, ahead);
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
  Ahead ahead = {.op = op, .item = from, .last = to};
  const char *k[KEYS], *v[KEYS];
  name_next(&ahead, 0, KEYS, k, v);
  int64_t bytes = op->n[4] * (op->n[15] ? 2 : 4);
  for (int i = 0; i < KEYS; i++) ask(k[i], bytes), ask(v[i], bytes);
  for (int64_t item = from; item < to; item++)
    if (locate(op, item, &it)) one(op, &it, &ahead);
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
