/* GGML blocks -> tiles (tiles.h), and single rows of tiles -> floats. Plain C: it runs once, at load. */
#include "fp4.h"
#include "ops.h"
#include "pieces.h"
#include "simd.h"
#include "tiles.h"

static const struct { int values, bytes; } BLOCKS[NUM_FORMATS] = {
    {32, 18}, {32, 20}, {32, 22}, {32, 24}, {32, 34}, {32, 17}, {256, 144}, {256, 176}, {256, 210}};

/* What 32 inputs of one row are: integers (8-bit ones biased by 128), two scale bytes, two float16. */
typedef struct {
  uint8_t q[32], s[2];
  uint16_t d[2];
} Piece;

INLINE void nibbles(const uint8_t *from, uint8_t *q) {
  for (int i = 0; i < 16; i++) q[i] = from[i] & 15, q[i + 16] = from[i] >> 4;
}

INLINE void fifth_bits(const uint8_t *from, uint8_t *q) {
  for (int i = 0; i < 32; i++) q[i] |= (uint8_t)((from[i / 8] >> (i % 8) & 1) << 4);
}

/* The 6-bit scale and minimum of part k: low four plain, high four split over two places. */
INLINE void k_scales(const uint8_t *raw, int k, uint8_t *s) {
  if (k < 4) {
    s[0] = raw[k] & 63, s[1] = raw[k + 4] & 63;
  } else {
    s[0] = (uint8_t)((raw[k + 4] & 15) | (raw[k - 4] >> 6) << 4);
    s[1] = (uint8_t)(raw[k + 4] >> 4 | (raw[k] >> 6) << 4);
  }
}

INLINE void read_piece(int format, const uint8_t *row, int64_t b, Piece *p) {
  const uint8_t *w = row + b * 32 / BLOCKS[format].values * BLOCKS[format].bytes;
  int k = (int)(b % 8);
  memset(p, 0, sizeof *p);
  if (format <= Q8_0) memcpy(&p->d[0], w, 2);
  if (format == Q4_1 || format == Q5_1) memcpy(&p->d[1], w + 2, 2);
  switch (format) {
    case Q4_0: nibbles(w + 2, p->q); break;
    case Q4_1: nibbles(w + 4, p->q); break;
    case Q5_0: nibbles(w + 6, p->q), fifth_bits(w + 2, p->q); break;
    case Q5_1: nibbles(w + 8, p->q), fifth_bits(w + 4, p->q); break;
    case Q8_0: for (int i = 0; i < 32; i++) p->q[i] = w[2 + i] ^ 0x80; break;
    case MXFP4: nibbles(w + 1, p->q), p->s[0] = w[0]; break;
    case Q4_K: case Q5_K: {
      const uint8_t *low = w + (format == Q4_K ? 16 : 48) + k / 2 * 32;
      memcpy(p->d, w, 4);
      k_scales(w + 4, k, p->s);
      for (int i = 0; i < 32; i++) p->q[i] = k % 2 ? low[i] >> 4 : low[i] & 15;
      if (format == Q5_K) for (int i = 0; i < 32; i++) p->q[i] |= (uint8_t)((w[16 + i] >> k & 1) << 4);
      break;
    }
    default: { /* Q6_K */
      const uint8_t *low = w + k / 4 * 64 + k % 2 * 32, *high = w + 128 + k / 4 * 32;
      memcpy(p->d, w + 208, 2);
      p->s[0] = w[192 + 2 * k], p->s[1] = w[193 + 2 * k];
      for (int i = 0; i < 32; i++)
        p->q[i] = (uint8_t)((k % 4 < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * (k % 4)) & 3) << 4);
    }
  }
}

INLINE void write_piece(int format, uint8_t *strip, int64_t b, int r, const Piece *p) {
  uint8_t *w = strip + tile_at(format, b), *high = w + tile_low(format), *s = high + tile_high(format);
  uint32_t q[8]; /* four inputs at a time: their bytes never carry into one another */
  memcpy(q, p->q, 32);
  w += r * 4, high += r * 4;
  if (format == Q8_0) {
    for (int j = 0; j < 8; j++) memcpy(w + 64 * j, &q[j], 4);
  } else {
    for (int j = 0; j < 4; j++) {
      uint32_t both = (q[2 * j] & 0x0f0f0f0fu) | (q[2 * j + 1] & 0x0f0f0f0fu) << 4;
      memcpy(w + 64 * j, &both, 4);
    }
  }
  if (tile_high(format) == 64) {
    uint32_t bits = 0;
    for (int j = 0; j < 8; j++) bits |= (q[j] >> 4 & 0x01010101u) << j;
    memcpy(high, &bits, 4);
  }
  if (tile_high(format) == 128) {
    for (int a = 0; a < 2; a++) {
      uint32_t bits = 0;
      for (int j = 0; j < 4; j++) bits |= (q[4 * a + j] >> 4 & 0x03030303u) << 2 * j;
      memcpy(high + 64 * a, &bits, 4);
    }
  }
  if (is_k(format)) {
    uint8_t *head = strip + b / 8 * (8 * tile_bytes(format) + group_head(format));
    s[r] = p->s[0], s[16 + r] = p->s[1];
    memcpy(head + 2 * r, &p->d[0], 2);
    if (format != Q6_K) memcpy(head + 32 + 2 * r, &p->d[1], 2);
  } else if (format == MXFP4) {
    s[r] = p->s[0];
  } else {
    memcpy(s + 2 * r, &p->d[0], 2);
    if (tile_scales(format) == 64) memcpy(s + 32 + 2 * r, &p->d[1], 2);
  }
}

int64_t hr_tiles_bytes(int format, int64_t N, int64_t K) { return (N + 15) / 16 * strip_bytes(format, K / 32); }

INLINE void pack(int format, const uint8_t *rows, int64_t stride, int64_t N, int64_t K, int64_t at, uint8_t *out) {
  Piece p;
  for (int64_t n = 0; n < N; n++) {
    uint8_t *strip = out + (at + n) / 16 * strip_bytes(format, K / 32);
    for (int64_t b = 0; b < K / 32; b++) {
      read_piece(format, rows + n * stride, b, &p);
      write_piece(format, strip, b, (int)((at + n) % 16), &p);
    }
  }
}

/* Pack rows at .. at + N - 1 of a matrix of `out` (zeroed, strips of K inputs). Rows of blocks are `stride` bytes apart. */
void hr_pack(int format, const uint8_t *rows, int64_t stride, int64_t N, int64_t K, int64_t at, uint8_t *out) {
  switch (format) { /* one loop for each, in which the format is a constant */
#define CASE(name) case name: pack(name, rows, stride, N, K, at, out); break;
    CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q8_0) CASE(MXFP4) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
#undef CASE
  }
}

/* Write row n as floats, with ggml's own order of operations: scale * integer, then the minimum. */
void hr_unpack_row(int format, const uint8_t *tiles, int64_t K, int64_t n, float factor, float *out) {
  const uint8_t *strip = tiles + n / 16 * strip_bytes(format, K / 32);
  int r = (int)(n % 16);
  for (int64_t b = 0; b < K / 32; b++) {
    const uint8_t *w = strip + tile_at(format, b), *high = w + tile_low(format), *s = high + tile_high(format);
    const uint8_t *head = strip + b / 8 * (8 * tile_bytes(format) + group_head(format));
    uint16_t d[2] = {0, 0};
    float scale[2], minimum = 0.0f, bias = 0.0f;
    if (format != MXFP4) memcpy(&d[0], (is_k(format) ? head : s) + 2 * r, 2);
    scale[0] = scale[1] = hr_half(d[0]);
    if (format == MXFP4) {
      scale[0] = scale[1] = hr_power(s[r]), bias = 12.0f;
    } else if (format == Q6_K) {
      scale[1] = scale[0] * (float)(int8_t)s[16 + r], scale[0] *= (float)(int8_t)s[r], bias = 32.0f;
    } else if (is_k(format)) {
      memcpy(&d[1], head + 32 + 2 * r, 2);
      scale[0] = scale[1] = scale[0] * (float)s[r], minimum = -(hr_half(d[1]) * (float)s[16 + r]);
    } else if (tile_scales(format) == 64) {
      memcpy(&d[1], s + 32 + 2 * r, 2);
      minimum = hr_half(d[1]);
    } else {
      bias = format == Q4_0 ? 8.0f : format == Q5_0 ? 16.0f : 128.0f;
    }
    for (int i = 0; i < 32; i++) {
      int at = r * 4 + i % 4, j = i / 4, q;
      if (format == Q8_0) q = w[64 * j + at];
      else q = j % 2 ? w[64 * (j / 2) + at] >> 4 : w[64 * (j / 2) + at] & 15;
      if (format == MXFP4) q = HR_FP4[q];
      if (tile_high(format) == 64) q |= (high[at] >> j & 1) << 4;
      if (tile_high(format) == 128) q |= (high[64 * (j / 4) + at] >> 2 * (j % 4) & 3) << 4;
      float value = scale[i / 16] * ((float)q - bias) + minimum;
      out[b * 32 + i] = value * factor;
    }
  }
}
