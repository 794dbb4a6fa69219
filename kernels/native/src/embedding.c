/* Rows of a quantized embedding table. p: ids, tiles, out. n: T, V, E, format, 1 if ids are int64. f: scale.
 * An id outside 0 .. V - 1 gives zeros. */
#include <string.h>

#include "ops.h"
#include "pieces.h"

static int64_t items(const Op *op) { return op->n[0]; }

static void run(const Op *op, int64_t from, int64_t to) {
  int64_t V = op->n[1], E = op->n[2];
  for (int64_t t = from; t < to; t++) {
    int64_t id = op->n[4] ? ((const int64_t *)op->p[0])[t] : ((const int32_t *)op->p[0])[t];
    float *out = (float *)op->p[2] + t * E;
    if (id < 0 || id >= V) memset(out, 0, sizeof(float) * (size_t)E);
    else hr_unpack_row((int)op->n[3], op->p[1], E, id, op->f[0], out);
  }
}

const OpType hr_embedding = {items, run};
