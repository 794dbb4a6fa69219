/* An operation as a record of plain numbers, so that Python prepares it once and a tape replays it as it lies.
 * The layout is mirrored in kernels/native/record.py; a test compares the sizes. */
#ifndef HR_OPS_H
#define HR_OPS_H
#include <stdint.h>

typedef struct {
  int32_t kind;
  int32_t shape;   /* how the work is cut into items */
  int32_t chained; /* runs on the items of the operation before it, without waiting for all of them */
  int32_t unused;
  int64_t n[24];
  float f[4];
  void *p[12];
} Op;

enum { BY_ROW, BY_HEAD, BY_COLUMN };
enum { OP_QUANTIZE, OP_LINEAR, OP_RMS_NORM, OP_ACTIVATION, OP_ROPE, OP_ATTENTION, OP_MERGE, OP_EMBEDDING,
       OP_SAMPLE, OP_FINITE, OP_ROUTE, OP_EXPERT_ORDER, OP_EXPERT_SUM, OP_LORA_SHRINK, OP_LORA_EXPAND,
       OP_CAUSAL_CONV, OP_GATED_DELTA, OP_GATED_NORM, OP_SELECTIVE_SCAN, NUM_OPS };

/* Weight formats; the tile layouts are told in tiles.h. */
enum { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, Q4_K, Q5_K, Q6_K, NUM_FORMATS };

/* One block of 32 activations: value = scale * q. `sum` is scale times the sum of all q. `offset`, what Q6_K's bias of 32
 * takes off each 16 products, is -32 * scale times the sum of these 16. */
typedef struct {
  float scale, sum, offset[2];
} BlockScale;

typedef struct {
  int64_t (*items)(const Op *op);                          /* how many independent items there are now */
  void (*run)(const Op *op, int64_t from, int64_t to);     /* computes items from .. to - 1 */
} OpType;
extern const OpType hr_quantize, hr_linear, hr_rms_norm, hr_activation, hr_rope, hr_attention, hr_merge, hr_embedding,
    hr_sample, hr_finite, hr_route, hr_expert_order, hr_expert_sum, hr_lora_shrink, hr_lora_expand, hr_causal_conv,
    hr_gated_delta, hr_gated_norm, hr_selective_scan;

#define COLUMN_BLOCK 32 /* columns of a linear layer that are computed together: two tiles; of a gate one block */
#endif
