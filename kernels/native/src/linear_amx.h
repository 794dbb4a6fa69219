/* The linear layer's rows in groups of 16 by Intel's tile unit (AMX), whose sums of bytes are the same integers; what turns
 * them into floats is done in the order of linear.c, so a row has the same bits by either way.
 *
 * Here a tile of weights is unpacked once for all rows. A product of 16 rows x 32 inputs x 16 outputs takes the unit 8 to 16
 * cycles, its conversion 32: the next product is issued before the last one is converted. */
#ifndef HR_LINEAR_AMX_H
#define HR_LINEAR_AMX_H

#define GROUP 16        /* rows of a product */
#define SOME_BLOCKS 32  /* unpacked at a time: 20 KB, beside which activations still fit the first cache */

typedef struct {
  uint8_t q[8][64];
  float scale[16], minimum[16];
} Unpacked;

/* Tiles 0 and 1: sums; 2: activations; 3: weights. */
static void tiles_ready(void) {
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shapes = {.palette = 1, .row_bytes = {64, 64, 32, 64}, .rows = {GROUP, GROUP, GROUP, 8}};
  _tile_loadconfig(&shapes);
}

INLINE void unpack_some(int format, const uint8_t *strip, int64_t first, int64_t count, Unpacked *to) {
  for (int64_t b = first; b < first + count; b++, to++) {
    Tile t;
    const uint8_t *w = strip + tile_at(format, b);
    unpack(format, w, strip + b / 8 * (8 * tile_bytes(format) + group_head(format)), 0, &t);
    for (int j = 0; j < 8; j++) _mm512_storeu_si512(to->q[j], t.p[j]);
    vf_store(to->scale, t.scale);
    if (format != Q8_0 || HR_DOT8_BIASED) vf_store(to->minimum, t.minimum);
  }
}

/* GCC does not know that the loads read memory: what lies there must have been written. */
#define MULTIPLY(tile, at)              \
  do {                                  \
    __asm__ volatile("" ::: "memory");  \
    _tile_zero(tile);                   \
    _tile_loadd(2, q + 32 * (at), K);   \
    _tile_loadd(3, u[at].q, 64);        \
    _tile_dpbsud(tile, 2, 3);           \
    _tile_stored(tile, sums[tile], 64); \
  } while (0)

INLINE void convert(const int32_t *sums, const Unpacked *u, const BlockScale *s, int64_t stride, vf *f) {
  const vf scale = vf_load(u->scale), minimum = vf_load(u->minimum);
#pragma GCC unroll 16
  for (int m = 0; m < GROUP; m++) {
    vf sum = vf_int(_mm512_loadu_si512(sums + 16 * m));
    f[m] = vf_fma(sum, vf_mul(scale, vf_set1(s[m * stride].scale)), f[m]);
    f[m] = vf_fma(minimum, vf_set1(s[m * stride].sum), f[m]);
  }
}

/* Add `count` blocks of inputs to the sums of 16 rows x 16 outputs. */
static void add_blocks(const Unpacked *u, int64_t count, const int8_t *q, int64_t K, const BlockScale *s, float *total) {
  int32_t sums[2][GROUP * 16] __attribute__((aligned(64)));
  vf f[GROUP];
#pragma GCC unroll 16
  for (int m = 0; m < GROUP; m++) f[m] = vf_load(total + 16 * m);
  MULTIPLY(0, 0);
  for (int64_t b = 0; b < count; b += 2) {
    if (b + 1 < count) MULTIPLY(1, b + 1);
    convert(sums[0], u + b, s + b, K / 32, f);
    if (b + 1 == count) break;
    if (b + 2 < count) MULTIPLY(0, b + 2);
    convert(sums[1], u + b + 1, s + b + 1, K / 32, f);
  }
#pragma GCC unroll 16
  for (int m = 0; m < GROUP; m++) vf_store(total + 16 * m, f[m]);
}

/* Compute one strip for rows from .. and return the first row that is left. */
INLINE int64_t amx_strip(int format, const Args *a, int64_t strip_at, int64_t from, int64_t to) {
  Unpacked u[SOME_BLOCKS] __attribute__((aligned(64)));
  float total[ROW_BLOCK * 16] __attribute__((aligned(64)));
  int64_t blocks = a->K / 32, rows = (to - from) / GROUP * GROUP, column = strip_at * 16, width = a->N - column;
  const uint8_t *strip = a->tiles + strip_at * strip_bytes(format, blocks);
  memset(total, 0, sizeof(float) * 16 * (size_t)rows);
  for (int64_t b = 0; b < blocks; b += SOME_BLOCKS) {
    int64_t count = blocks - b < SOME_BLOCKS ? blocks - b : SOME_BLOCKS;
    unpack_some(format, strip, b, count, u);
    for (int64_t t = 0; t < rows; t += GROUP)
      add_blocks(u, count, a->q + (from + t) * a->K + 32 * b, a->K, a->s + (from + t) * blocks + b, total + 16 * t);
  }
  for (int64_t t = 0; t < rows; t++) {
    vf y = vf_load(total + 16 * t);
    if (a->bias) y = vf_add(y, width >= 16 ? vf_load(a->bias + column) : vf_load_n(a->bias + column, (int)width));
    if (width >= 16) vf_store(a->out + (from + t) * a->stride + column, y);
    else vf_store_n(a->out + (from + t) * a->stride + column, y, (int)width);
  }
  return from + rows;
}
#endif
