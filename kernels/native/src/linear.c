/* Quantized linear layer: int8 activations times tiles of 16 outputs x 32 inputs, one vector lane for each output.
 * p: q, scales, tiles, out, bias or NULL. n: T, K, N, stride of out, format. An item is COLUMN_BLOCK outputs, all rows.
 *
 * With BY_COLUMN the outputs are a gate and what it gates, half and half, and an item is COLUMN_BLOCK columns of each: what
 * passes the gate is rounded for the next product at once, and no float leaves the cache. n[5]: the activation; p[5], p[6]
 * instead of p[3]: q and scales of [T, N / 2].
 *
 * With n[6] experts the tiles, and the biases, are those of so many weights, one after another, and p[7] (int32) tells with
 * which of the T rows each begins, and where the last one ends. An item is one expert's, of its own rows.
 *
 * Each row takes the same operations in the same order whatever rows stand beside it, so its bits do not depend on them. */
#include "linear_tile.h"
#include "pieces.h"

#define ROW_BLOCK 64 /* rows whose activations stay in the caches while columns pass */
#define AHEAD 16     /* tiles asked for before they are read, where they are read once */

typedef struct {
  int64_t K, N;
  const int8_t *q;
  const BlockScale *s;
  const uint8_t *tiles;
  const float *bias;
} Args;

INLINE const uint8_t *strip_of(int format, const Args *a, int64_t column) {
  return a->tiles + column / 16 * strip_bytes(format, a->K / 32);
}

/* Lanes of a result to `out`, as many as there are columns. */
INLINE void put(const Args *a, int64_t column, vf y, float *out) {
  int64_t width = a->N - column;
  if (width >= LANES) {
    vf_store(out, a->bias ? vf_add(y, vf_load(a->bias + column)) : y);
  } else if (width > 0) {
    vf_store_n(out, a->bias ? vf_add(y, vf_load_n(a->bias + column, (int)width)) : y, (int)width);
  }
}

/* Some rows of COLUMN_BLOCK columns, from row t on. What is asked for meanwhile is `step` bytes with each tile from `next`
 * on; without `next` it is what these columns take, in its order. */
INLINE void columns(int format, int rows, int vectors, const Args *a, int64_t first, int64_t t, float *out, int64_t stride,
                    const uint8_t *next, int64_t step) {
  const int64_t blocks = a->K / 32;
  for (int64_t c = first; c < first + COLUMN_BLOCK && c < a->N; c += vectors * LANES, out += vectors * LANES) {
    const uint8_t *strip[VECTORS];
    int lane[VECTORS];
    vf f[ROWS][VECTORS];
    for (int v = 0; v < vectors; v++) { /* a vector behind the last column repeats the first one */
      int64_t column = c + v * LANES < a->N ? c + v * LANES : c;
      strip[v] = strip_of(format, a, column), lane[v] = (int)(column % 16);
    }
    const uint8_t *ask = next ? next : strip[0] + AHEAD * tile_bytes(format);
    multiply(format, rows, vectors, strip, lane, blocks, a->q + t * a->K, a->s + t * blocks, ask,
             next ? step : lane[0] ? 0 : tile_bytes(format), f);
    for (int m = 0; m < rows; m++)
      for (int v = 0; v < vectors; v++) put(a, c + v * LANES, f[m][v], out + m * stride + v * LANES);
  }
}

#if defined(__AMX_INT8__)
#include "linear_amx.h"
#else
#define GROUP (ROW_BLOCK + 1) /* never */
#define amx_columns(format, a, first, from, to, out, stride) (from)
#define tiles_ready(format) ((void)0)
#define _tile_release() ((void)0)
#endif

/* Rows from .. to - 1 of COLUMN_BLOCK columns; `then` is the first of those that come next. Many rows pass the same tiles
 * several times: each time asks for its share of the next ones, as all at once would come too slowly. */
INLINE void all_rows(int format, const Args *a, int64_t first, int64_t then, int64_t from, int64_t to, float *out,
                     int64_t stride) {
  int64_t t = to - from >= GROUP ? amx_columns(format, a, first, from, to, out, stride) : from;
#define SOME(rows, vectors, next, step) \
  columns(format, rows, vectors, a, first, t, out + (t - from) * stride, stride, next, step), t += rows
  int64_t passes = (to - t) / ROWS, step = (COLUMN_BLOCK / 16 * tile_bytes(format) + passes - 1) / (passes ? passes : 1);
  const uint8_t *next = strip_of(format, a, then);
  for (; t + ROWS <= to; next += step * a->K / 32) SOME(ROWS, VECTORS, VECTORS > 1 ? next : NULL, step);
  if (t + 4 <= to) SOME(4, 1, NULL, 0);
  if (t + 2 <= to) SOME(2, 1, NULL, 0);
  if (t < to) SOME(1, 1, NULL, 0);
#undef SOME
}

typedef void Run(const Args *a, int64_t first, int64_t then, int64_t from, int64_t to, float *out, int64_t stride);
#define FORMAT(name)                                                                                              \
  static void run_##name(const Args *a, int64_t first, int64_t then, int64_t from, int64_t to, float *out, int64_t stride) { \
    all_rows(name, a, first, then, from, to, out, stride);                                                        \
  }
FORMAT(Q4_0) FORMAT(Q4_1) FORMAT(Q5_0) FORMAT(Q5_1) FORMAT(Q8_0) FORMAT(MXFP4) FORMAT(Q4_K) FORMAT(Q5_K) FORMAT(Q6_K)
static Run *const RUN[NUM_FORMATS] = {run_Q4_0,  run_Q4_1, run_Q5_0, run_Q5_1, run_Q8_0,
                                      run_MXFP4, run_Q4_K, run_Q5_K, run_Q6_K};

/* COLUMN_BLOCK columns of the gate and of what it gates, side by side. */
static void gated(const Op *op, const Args *a, int64_t item, int64_t from, int64_t to) {
  enum { WIDE = 2 * COLUMN_BLOCK };
  float both[ROW_BLOCK * WIDE] __attribute__((aligned(64)));
  Run *const product = RUN[op->n[4]];
  int64_t half = a->N / 2, rows = to - from, blocks = half / 32, gate = item * COLUMN_BLOCK, up = half + gate;
  product(a, gate, up, from, to, both, WIDE);
  product(a, up, gate + COLUMN_BLOCK, from, to, both + COLUMN_BLOCK, WIDE);
  hr_gate((int)op->n[5], both, WIDE, COLUMN_BLOCK, rows, both, WIDE);
  int8_t *q = (int8_t *)op->p[5] + from * half + gate;
  BlockScale *scales = (BlockScale *)op->p[6] + from * blocks + item;
  for (int64_t t = 0; t < rows; t++) hr_round(both + t * WIDE, q + t * half, scales + t * blocks, 1);
}

static int64_t items_of_weight(const Op *op) {
  int64_t columns = op->shape == BY_COLUMN ? op->n[2] / 2 : op->n[2];
  return (columns + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
}

static int64_t items(const Op *op) { return items_of_weight(op) * (op->n[6] ? op->n[6] : 1); }

/* One item of a weight, for rows from .. to - 1. */
static void one(const Op *op, const Args *a, int64_t item, int64_t from, int64_t to) {
  int64_t first = item * COLUMN_BLOCK, stride = op->n[3];
  if (op->shape == BY_COLUMN) gated(op, a, item, from, to);
  else RUN[op->n[4]](a, first, first + COLUMN_BLOCK, from, to, (float *)op->p[3] + from * stride + first, stride);
}

static void of_expert(const Op *op, Args a, int64_t item) {
  int64_t each = items_of_weight(op), expert = item / each;
  const int32_t *begins = op->p[7];
  a.tiles += expert * (a.N / 16) * strip_bytes((int)op->n[4], a.K / 32);
  if (a.bias) a.bias += expert * a.N;
  for (int64_t t = begins[expert]; t < begins[expert + 1]; t += ROW_BLOCK)
    one(op, &a, item % each, t, t + ROW_BLOCK < begins[expert + 1] ? t + ROW_BLOCK : begins[expert + 1]);
}

static void run(const Op *op, int64_t from, int64_t to) {
  Args a = {op->n[1], op->n[2], op->p[0], op->p[1], op->p[2], op->p[4]};
  int64_t T = op->n[0];
  int tiled = T >= GROUP;
  if (tiled) tiles_ready((int)op->n[4]);
  if (op->n[6]) {
    for (int64_t item = from; item < to; item++) of_expert(op, a, item);
  } else {
    for (int64_t t = 0; t < T; t += ROW_BLOCK)
      for (int64_t item = from; item < to; item++) one(op, &a, item, t, t + ROW_BLOCK < T ? t + ROW_BLOCK : T);
  }
  if (tiled) _tile_release();
}

const OpType hr_linear = {items, run};
