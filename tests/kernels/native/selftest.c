/* Every native kernel on fixed numbers without Python: prints a hash of the bits of each one's results, so that builds can be
 * compared where nothing but an emulator runs them. Built with the kernels' sources. */
#include <stdio.h>
#include <stdlib.h>

#include "ops.h"
#include "pool.h"
#include "simd.h"

int64_t hr_tiles_bytes(int format, int64_t N, int64_t K);
void hr_pack(int format, const uint8_t *rows, int64_t stride, int64_t N, int64_t K, int64_t at, uint8_t *out);
const char *hr_isa(void);

static uint64_t state = 1;
static uint32_t next(void) { return (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 33); }

static float *floats(int64_t count) { /* small numbers, many of them with few bits */
  float *x = malloc(sizeof(float) * (size_t)count);
  for (int64_t i = 0; i < count; i++) x[i] = (float)((int)(next() % 4001) - 2000) / 512.0f;
  return x;
}

static void tell(const char *name, const void *data, size_t bytes) {
  const uint8_t *p = data;
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 1099511628211u;
  printf("%s %016llx\n", name, (unsigned long long)hash);
}

static const struct { const char *name; int values, bytes, scales, at; } FORMATS[] = {
    {"Q4_0", 32, 18, 1, 0},    {"Q4_1", 32, 20, 2, 0},    {"Q5_0", 32, 22, 1, 0},    {"Q5_1", 32, 24, 2, 0},
    {"Q8_0", 32, 34, 1, 0},    {"MXFP4", 32, 17, 0, 0},   {"Q4_K", 256, 144, 2, 0},  {"Q5_K", 256, 176, 2, 0},
    {"Q6_K", 256, 210, 1, 208}};

static uint8_t *weight(int format, int64_t N, int64_t K) { /* random tiles */
  int64_t stride = K / FORMATS[format].values * FORMATS[format].bytes, blocks = K / FORMATS[format].values;
  uint8_t *raw = malloc((size_t)(N * stride)), *tiles = calloc(1, (size_t)hr_tiles_bytes(format, N, K));
  for (int64_t i = 0; i < N * stride; i++) raw[i] = (uint8_t)next();
  for (int64_t b = 0; b < N * blocks; b++) { /* sane scales: 2^-6 .. 2^-3 */
    if (format == MXFP4) raw[b * 17] = (uint8_t)(121 + next() % 4);
    for (int s = 0; s < FORMATS[format].scales; s++) {
      uint16_t half = (uint16_t)(0x2400 + next() % 0x0c00);
      memcpy(raw + b * FORMATS[format].bytes + FORMATS[format].at + 2 * s, &half, 2);
    }
  }
  hr_pack(format, raw, stride, N, K, 0, tiles);
  return tiles;
}

static void linear(int format, int64_t T) {
  enum { N = 37, K = 512 };
  uint8_t *tiles = weight(format, N, K);
  float *x = floats(T * K), *out = malloc(sizeof(float) * (size_t)(T * N));
  int8_t *q = malloc((size_t)(T * K));
  BlockScale *scales = malloc(sizeof(BlockScale) * (size_t)(T * K / 32));
  Op ops[2] = {{.kind = OP_QUANTIZE, .n = {T, K, K}, .p = {x, q, scales}},
               {.kind = OP_LINEAR, .n = {T, K, N, N, format}, .p = {q, scales, tiles, out, NULL}}};
  hr_run(ops, 2, 2);
  tell(FORMATS[format].name, out, sizeof(float) * (size_t)(T * N));
}

static void gate(void) {
  enum { T = 19, F = 96, K = 64 };
  float *x = floats(T * K);
  int8_t *q = malloc(T * K), *gated = malloc(T * F);
  BlockScale *scales = malloc(sizeof(BlockScale) * T * K / 32), *gated_scales = malloc(sizeof(BlockScale) * T * F / 32);
  Op ops[2] = {{.kind = OP_QUANTIZE, .n = {T, K, K}, .p = {x, q, scales}},
               {.kind = OP_LINEAR, .shape = BY_COLUMN, .n = {T, K, 2 * F, 0, Q5_1, 2},
                .p = {q, scales, weight(Q5_1, 2 * F, K), NULL, NULL, gated, gated_scales}}};
  hr_run(ops, 2, 2);
  tell("gate", gated, T * F);
  tell("gate scales", gated_scales, sizeof(BlockScale) * T * F / 32);
}

static void attention(int half) {
  enum { T = 21, H = 6, K = 2, D = 72, B = 16, BLOCKS = 8 };
  float *q = floats(T * H * D), *k = floats(T * K * D), *v = floats(T * K * D), *cos = floats(128 * 30), *sin = floats(128 * 30);
  uint8_t *cache[2] = {calloc(BLOCKS * B * K * D, 4), calloc(BLOCKS * B * K * D, 4)};
  int64_t positions[T], slots[T];
  int32_t tables[2][4] = {{3, 1, 6, 0}, {5, 2, 7, 4}}, start[3] = {0, 1, T}, context[3] = {1, 20, 0};
  for (int t = 0; t < T; t++) {
    positions[t] = t ? t - 1 : 0;
    slots[t] = tables[t > 0][positions[t] / B] * B + positions[t] % B;
  }
  float *out = malloc(sizeof(float) * T * H * D);
  Op ops[2] = {
      {.kind = OP_ROPE, .n = {T, H, K, D, 30, 30, B, H * D, D, K * D, D, K * D, D, B * K * D, D, B * D, 0, 1, 128, BLOCKS * B, half},
       .p = {q, k, v, cos, sin, positions, cache[0], cache[1], slots}},
      {.kind = OP_ATTENTION, .n = {T, 2, H, K, D, B, 4, H * D, D, B * K * D, D, B * D, 7, 0, BLOCKS, half}, .f = {0.125f, 0.0f},
       .p = {q, cache[0], cache[1], tables, start, context, NULL, out, NULL}}};
  hr_run(ops, 2, 2);
  tell(half ? "attention16" : "attention32", out, sizeof(float) * T * H * D);
}

static void rows(void) {
  enum { T = 5, E = 150 };
  float *x = floats(T * 2 * E), *residual = floats(T * E), *weight = floats(E), *out = malloc(sizeof(float) * T * E);
  Op norm = {.kind = OP_RMS_NORM, .n = {T, E, 1, 2 * E, 0}, .f = {1e-5f, 0.0f}, .p = {x, residual, weight, out}};
  hr_run(&norm, 1, 1);
  tell("rms_norm", out, sizeof(float) * T * E);
  Op act = {.kind = OP_ACTIVATION, .n = {T, E, 2 * E, 0}, .p = {x, out}};
  hr_run(&act, 1, 1);
  tell("silu", out, sizeof(float) * T * E);
  float temperature[T] = {0.0f, 1.0f, 0.7f, 1.0f, 2.0f}, top_p[T] = {1.0f, 1.0f, 1.0f, 0.8f, 1.0f}, min_p[T] = {0, 0, 0, 0, 0.1f};
  int32_t top_k[T] = {0, 0, 20, 0, 0};
  int64_t seeds[T] = {1, 2, 3, 4, 5}, places[T] = {9, 8, 7, 6, 5}, ids[T];
  Op draw = {.kind = OP_SAMPLE, .n = {T, 2 * E, 2 * E}, .p = {x, temperature, top_k, top_p, min_p, seeds, places, ids}};
  hr_run(&draw, 1, 1);
  tell("sample", ids, sizeof ids);
}

int main(void) {
  for (int format = 0; format < NUM_FORMATS; format++) linear(format, 1), linear(format, 19);
  attention(0), attention(1), rows(), gate();
  printf("%s\n", hr_isa());
  return 0;
}
