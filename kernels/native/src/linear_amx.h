/* The linear layer's rows in groups of 16 by Intel's tile unit (AMX), whose sums of bytes are the same integers; what turns
 * them into floats is done in the order of linear_tile.h, so a row has the same bits by either way.
 *
 * Weights are unpacked once for up to ROW_BLOCK rows, there once for 8. A product of 16 rows x 32 inputs (Q6_K: 16) x 16
 * outputs takes the unit 8 to 16 cycles, its conversion 32: the next product is issued before the last is converted. */
#ifndef HR_LINEAR_AMX_H
#define HR_LINEAR_AMX_H

#define GROUP 16        /* rows of a product */
#define SOME_BLOCKS 32  /* unpacked at a time: 20 KB, beside which activations still fit the first cache */

typedef struct {
  uint8_t q[8][64];
  float scale[16], second[16]; /* the minimum; Q6_K: the scale of the last 16 inputs */
} Unpacked;

static inline int products(int format) { return format == Q6_K ? 2 : 1; } /* for each block: it has that many scales */

/* Tiles 0 and 1: sums; 2: activations; 3: weights. */
static void tiles_ready(int format) {
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shapes = {.palette = 1, .row_bytes = {64, 64, 32, 64}, .rows = {GROUP, GROUP, GROUP, 8}};
  shapes.row_bytes[2] = (uint16_t)(32 / products(format));
  shapes.rows[3] = (uint8_t)(8 / products(format));
  _tile_loadconfig(&shapes);
}

INLINE void unpack_some(int format, const uint8_t *strip, int64_t first, int64_t count, Unpacked *to) {
  for (int64_t b = first; b < first + count; b++, to++) {
    const uint8_t *w = strip + tile_at(format, b);
    for (int j = 0; j < 4; j++) {
      vb p[2];
      unpack(format, w, j, p);
      _mm512_storeu_si512(to->q[2 * j], p[0]), _mm512_storeu_si512(to->q[2 * j + 1], p[1]);
    }
    Scales scales = scales_of(format, w, strip + b / 8 * (8 * tile_bytes(format) + group_head(format)), 0);
    vf_store(to->scale, scales.scale), vf_store(to->second, scales.second);
  }
}

/* GCC does not know that the loads read memory: what lies there must have been written. */
#define MULTIPLY(tile, n)                                     \
  do {                                                        \
    __asm__ volatile("" ::: "memory");                        \
    _tile_zero(tile);                                         \
    _tile_loadd(2, q + 32 / each * (n), K);                   \
    _tile_loadd(3, u[(n) / each].q[8 / each * ((n) % each)], 64); \
    _tile_dpbsud(tile, 2, 3);                                 \
    _tile_stored(tile, sums[tile], 64);                       \
  } while (0)

INLINE void convert(int each, int part, const int32_t *sums, const Unpacked *u, const BlockScale *s, int64_t stride, vf *f) {
  const vf scale = vf_load(part ? u->second : u->scale), minimum = vf_load(u->second);
#pragma GCC unroll 16
  for (int m = 0; m < GROUP; m++, s += stride) {
    vf sum = vf_int(_mm512_loadu_si512(sums + 16 * m));
    if (each == 2) {
      f[m] = vf_fma(vf_fma(sum, vf_set1(s->scale), vf_set1(s->offset[part])), scale, f[m]);
    } else {
      f[m] = vf_fma(sum, vf_mul(scale, vf_set1(s->scale)), f[m]);
      f[m] = vf_fma(minimum, vf_set1(s->sum), f[m]);
    }
  }
}

/* Add `count` products, `each` for a block of inputs, to the sums of 16 rows x 16 outputs. Meanwhile `step` bytes of what
 * is unpacked next are asked for with every two. */
INLINE void add_products(int each, const Unpacked *u, int64_t count, const int8_t *q, int64_t K, const BlockScale *s,
                         float *total, const uint8_t *next, int64_t step) {
  int32_t sums[2][GROUP * 16] __attribute__((aligned(64)));
  vf f[GROUP];
#pragma GCC unroll 16
  for (int m = 0; m < GROUP; m++) f[m] = vf_load(total + 16 * m);
  MULTIPLY(0, 0);
  for (int64_t n = 0; n < count; n += 2, next += step) {
    for (int64_t line = 0; line < step; line += 64) __builtin_prefetch(next + line);
    if (n + 1 < count) MULTIPLY(1, n + 1);
    convert(each, 0, sums[0], u + n / each, s + n / each, K / 32, f);
    if (n + 1 == count) break;
    if (n + 2 < count) MULTIPLY(0, n + 2);
    convert(each, each - 1, sums[1], u + (n + 1) / each, s + (n + 1) / each, K / 32, f);
  }
#pragma GCC unroll 16
  for (int m = 0; m < GROUP; m++) vf_store(total + 16 * m, f[m]);
}

typedef void Add(const Unpacked *u, int64_t blocks, const int8_t *q, int64_t K, const BlockScale *s, float *total,
                 const uint8_t *next, int64_t bytes);

/* Two functions serve all formats: each takes the compiler a second. */
static void add_blocks(const Unpacked *u, int64_t blocks, const int8_t *q, int64_t K, const BlockScale *s, float *total,
                       const uint8_t *next, int64_t bytes) {
  add_products(1, u, blocks, q, K, s, total, next, 2 * bytes);
}

static void add_halves(const Unpacked *u, int64_t blocks, const int8_t *q, int64_t K, const BlockScale *s, float *total,
                       const uint8_t *next, int64_t bytes) {
  add_products(2, u, 2 * blocks, q, K, s, total, next, bytes);
}

/* Compute one strip for `rows` rows, whole groups of them. */
INLINE void amx_strip(int format, const Args *a, int64_t column, int64_t from, int64_t rows, float *out, int64_t stride) {
  Unpacked u[SOME_BLOCKS] __attribute__((aligned(64)));
  float total[ROW_BLOCK * 16] __attribute__((aligned(64)));
  int64_t blocks = a->K / 32;
  const uint8_t *strip = strip_of(format, a, column);
  Add *const add = format == Q6_K ? add_halves : add_blocks;
  memset(total, 0, sizeof(float) * 16 * (size_t)rows);
  for (int64_t b = 0; b < blocks; b += SOME_BLOCKS) {
    int64_t count = blocks - b < SOME_BLOCKS ? blocks - b : SOME_BLOCKS;
    unpack_some(format, strip, b, count, u);
    const uint8_t *next = strip + tile_at(format, b + count); /* behind the last block: the next strip */
    for (int64_t t = 0; t < rows; t += GROUP)
      add(u, count, a->q + (from + t) * a->K + 32 * b, a->K, a->s + (from + t) * blocks + b, total + 16 * t, next,
          t ? 0 : tile_bytes(format));
  }
  for (int64_t t = 0; t < rows; t++) put(a, column, vf_load(total + 16 * t), out + t * stride);
}

/* Compute COLUMN_BLOCK columns for rows from .. to - 1 and return the first row that is left. */
INLINE int64_t amx_columns(int format, const Args *a, int64_t first, int64_t from, int64_t to, float *out, int64_t stride) {
  int64_t rows = (to - from) / GROUP * GROUP;
  for (int64_t column = first; column < first + COLUMN_BLOCK && column < a->N; column += 16)
    amx_strip(format, a, column, from, rows, out + column - first, stride);
  return from + rows;
}
#endif
