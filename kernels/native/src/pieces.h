/* What one operation lends to another. */
#ifndef HR_PIECES_H
#define HR_PIECES_H
#include "ops.h"

/* out = act(first F columns of x) * (next F columns), rows of x and of `out` so far apart; `out` may be x. (activation.c) */
void hr_gate(int act, const float *x, int64_t stride, int64_t F, int64_t rows, float *out, int64_t out_stride);

/* Round so many blocks of 32 floats to int8. (quantize.c) */
void hr_round(const float *x, int8_t *q, BlockScale *out, int64_t blocks);

/* Write row n of tiles with K inputs as floats times `factor`. (pack.c) */
void hr_unpack_row(int format, const uint8_t *tiles, int64_t K, int64_t n, float factor, float *out);
#endif
