/* How quantized weights lie in memory: tiles of 16 output rows x 32 inputs, repacked from GGML blocks without loss.
 *
 * A tile's bytes, in this order (byte r * 4 + c of a 64-byte line belongs to output row r):
 *   low     4 lines; low nibble of line j: input 8 j + c, high nibble: input 8 j + 4 + c
 *           (Q8_0: 8 lines of q + 128; line j holds inputs 4 j + c)
 *   high    5 bits: 1 line, bit k is bit 4 of input 4 k + c; 6 bits: 2 lines, bits 2 b and 2 b + 1 of line a belong to
 *           input 16 a + 4 b + c
 *   scales  float16 x 16 (Q4_0, Q5_0, Q8_0), twice (Q4_1, Q5_1: scale and minimum); MXFP4: exponents, uint8 x 16; K
 *           formats: uint8 x 16 scale, then minimum; Q6_K: int8 x 16 for the first 16 inputs, then the second
 * K formats put float16 x 16 d (and dmin, not Q6_K) before each eight tiles.
 */
#ifndef HR_TILES_H
#define HR_TILES_H
#include "ops.h"

static inline int tile_low(int format) { return format == Q8_0 ? 512 : 256; }
static inline int tile_high(int format) {
  return format == Q5_0 || format == Q5_1 || format == Q5_K ? 64 : format == Q6_K ? 128 : 0;
}
static inline int tile_scales(int format) { return format == Q4_1 || format == Q5_1 ? 64 : format == MXFP4 ? 16 : 32; }
static inline int tile_bytes(int format) { return tile_low(format) + tile_high(format) + tile_scales(format); }
static inline int is_k(int format) { return format >= Q4_K; }
static inline int group_head(int format) { return format == Q6_K ? 32 : is_k(format) ? 64 : 0; } /* before 8 tiles */
static inline int64_t strip_bytes(int format, int64_t blocks) { /* 16 rows, all inputs */
  return blocks * tile_bytes(format) + blocks / 8 * group_head(format);
}
static inline int64_t tile_at(int format, int64_t b) { /* of block b within its strip */
  return b * tile_bytes(format) + (is_k(format) ? (b / 8 + 1) * group_head(format) : 0);
}
#endif
