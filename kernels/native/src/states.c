/* What layers do with the states of sequences: a short causal convolution, the gated delta rule, the scan of Mamba 2, a gated
 * norm.
 * Sequences are told by slots, query starts and context lengths (int32); one whose context begins with the step begins with
 * zeros, and a slot below 0 is the last row, which is nobody's. Tokens follow one another: the same bits however a prompt is
 * cut. */
#include "ops.h"
#include "simd.h"

#define CHANNELS 256 /* of an item */
#define MAX_TAPS 8   /* MAX_NATIVE of kernels/causal_conv.py */
#define MAX_KEYS 512 /* MAX_NATIVE of kernels/gated_delta.py */
#define TILE 4       /* vectors of columns that are computed together: sums of two passes stay in registers */

typedef struct {
  int64_t row, first, tokens;
  int begins;
} Whose;

static Whose whose(const int32_t *slots, const int32_t *starts, const int32_t *contexts, int64_t s, int64_t last) {
  Whose w = {slots[s] < 0 ? last : slots[s], starts[s], starts[s + 1] - starts[s], 0};
  w.begins = slots[s] < 0 || contexts[s] <= w.tokens;
  return w;
}

INLINE vf load(const float *p, int n) { return n == LANES ? vf_load(p) : vf_load_n(p, n); }

INLINE void store(float *p, vf a, int n) {
  if (n == LANES) vf_store(p, a);
  else vf_store_n(p, a, n);
}

INLINE vf silu(vf x) { return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x)))); }

/* silu of a convolution of the last W inputs of each channel; with gates, which inputs and outputs are multiplied with, no
 * silu. p: x, weight [C, W], windows, slots, query starts, context lengths, out; bias, gates before and behind or NULL.
 * n: S, C, W, strides of x, of a slot's window, of its lines, the last row of windows, strides of the gates. */
static int64_t conv_items(const Op *op) { return op->n[0] * ((op->n[1] + CHANNELS - 1) / CHANNELS); }

static void conv_channels(const Op *op, int64_t sequence, int64_t begin, int64_t width) {
  int64_t C = op->n[1], W = op->n[2], line = op->n[5];
  Whose w = whose(op->p[3], op->p[4], op->p[5], sequence, op->n[6]);
  if (w.tokens < 1) return;
  /* `inputs` are the last W of them, that of place n at (n + W - 1) % W. */
  float inputs[MAX_TAPS][CHANNELS], taps[MAX_TAPS][CHANNELS], start[CHANNELS];
  const float *weight = (const float *)op->p[1] + begin * W;
  float *window = (float *)op->p[2] + w.row * op->n[4] + begin;
  for (int64_t t = 0; t < W - 1; t++) {
    if (w.begins) memset(inputs[t], 0, sizeof(float) * (size_t)width);
    else memcpy(inputs[t], window + t * line, sizeof(float) * (size_t)width);
  }
  for (int64_t t = 0; t < W; t++)
    for (int64_t c = 0; c < width; c++) taps[t][c] = weight[c * W + t];
  if (op->p[7]) memcpy(start, (const float *)op->p[7] + begin, sizeof(float) * (size_t)width);
  else memset(start, 0, sizeof(float) * (size_t)width);
  for (int64_t n = 0; n < w.tokens; n++) {
    const float *x = (const float *)op->p[0] + (w.first + n) * op->n[3] + begin;
    const float *before = op->p[8] ? (const float *)op->p[8] + (w.first + n) * op->n[7] + begin : NULL;
    const float *behind = op->p[9] ? (const float *)op->p[9] + (w.first + n) * op->n[8] + begin : NULL;
    float *out = (float *)op->p[6] + (w.first + n) * C + begin, *newest = inputs[(n + W - 1) % W];
    for (int64_t c = 0; c < width; c += LANES) {
      int count = width - c < LANES ? (int)(width - c) : LANES;
      vf now = load(x + c, count), sum = load(start + c, count);
      if (before) now = vf_mul(now, load(before + c, count));
      store(newest + c, now, count);
      for (int64_t t = 0; t < W; t++) sum = vf_fma(load(inputs[(n + t) % W] + c, count), load(taps[t] + c, count), sum);
      store(out + c, behind ? vf_mul(sum, load(behind + c, count)) : silu(sum), count);
    }
  }
  for (int64_t t = 0; t < W - 1; t++) memcpy(window + t * line, inputs[(w.tokens + t) % W], sizeof(float) * (size_t)width);
}

static void conv_run(const Op *op, int64_t from, int64_t to) {
  int64_t C = op->n[1], blocks = (C + CHANNELS - 1) / CHANNELS;
  for (int64_t item = from; item < to; item++) {
    int64_t begin = item % blocks * CHANNELS;
    conv_channels(op, item / blocks, begin, C - begin < CHANNELS ? C - begin : CHANNELS);
  }
}

const OpType hr_causal_conv = {conv_items, conv_run};

/* The gated delta rule of each value head. p: q, k, v, a, b, rate, bias, states, slots, query starts, context lengths, out.
 * n: S, V, K, Dk, Dv, strides of q, k, v, a, b, of a slot's states, the last row of states, whether key heads take turns.
 * f: scale, epsilon. */
static int64_t delta_items(const Op *op) { return op->n[0] * op->n[1]; }

/* Some columns of a state take in one token; `count` lanes of the vectors are columns. */
INLINE void delta_columns(float *state, int64_t Dk, int64_t Dv, const float *q, const float *k, const float *v, float *out,
                          float left, float beta, int vectors, int count) {
  vf fade = vf_set1(left), told[TILE], read[TILE];
  for (int j = 0; j < vectors; j++) told[j] = read[j] = vf_zero();
  for (int64_t i = 0; i < Dk; i++)
    for (int j = 0; j < vectors; j++) told[j] = vf_fma(vf_set1(k[i]), load(state + i * Dv + j * LANES, count), told[j]);
  for (int j = 0; j < vectors; j++)
    told[j] = vf_mul(vf_set1(beta), vf_sub(load(v + j * LANES, count), vf_mul(fade, told[j])));
  for (int64_t i = 0; i < Dk; i++)
    for (int j = 0; j < vectors; j++) {
      vf now = vf_fma(vf_set1(k[i]), told[j], vf_mul(fade, load(state + i * Dv + j * LANES, count)));
      store(state + i * Dv + j * LANES, now, count);
      read[j] = vf_fma(vf_set1(q[i]), now, read[j]);
    }
  for (int j = 0; j < vectors; j++) store(out + j * LANES, read[j], count);
}

static void unit(const float *x, float *to, int64_t D, float scale, float eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < D; i++) squares += x[i] * x[i];
  scale /= sqrtf(squares + eps);
  for (int64_t i = 0; i < D; i++) to[i] = x[i] * scale;
}

static void delta_head(const Op *op, int64_t sequence, int64_t head) {
  int64_t V = op->n[1], Dk = op->n[3], Dv = op->n[4], key = (op->n[12] ? head % op->n[2] : head / (V / op->n[2])) * Dk;
  Whose w = whose(op->p[8], op->p[9], op->p[10], sequence, op->n[11]);
  float *state = (float *)op->p[7] + w.row * op->n[10] + head * Dk * Dv, q[MAX_KEYS], k[MAX_KEYS];
  float rate = ((const float *)op->p[5])[head], bias = ((const float *)op->p[6])[head];
  if (w.begins && w.tokens > 0) memset(state, 0, sizeof(float) * (size_t)(Dk * Dv));
  for (int64_t t = w.first; t < w.first + w.tokens; t++) {
    unit((const float *)op->p[0] + t * op->n[5] + key, q, Dk, op->f[0], op->f[1]);
    unit((const float *)op->p[1] + t * op->n[6] + key, k, Dk, 1.0f, op->f[1]);
    const float *v = (const float *)op->p[2] + t * op->n[7] + head * Dv;
    float a = ((const float *)op->p[3])[t * op->n[8] + head] + bias, b = ((const float *)op->p[4])[t * op->n[9] + head];
    float left = expf(-rate * (a > 20.0f ? a : log1pf(expf(a)))), beta = 1.0f / (1.0f + expf(-b));
    float *out = (float *)op->p[11] + (t * V + head) * Dv;
    int64_t c = 0;
    for (; c + TILE * LANES <= Dv; c += TILE * LANES)
      delta_columns(state + c, Dk, Dv, q, k, v + c, out + c, left, beta, TILE, LANES);
    for (; c < Dv; c += LANES)
      delta_columns(state + c, Dk, Dv, q, k, v + c, out + c, left, beta, 1, Dv - c < LANES ? (int)(Dv - c) : LANES);
  }
}

static void delta_run(const Op *op, int64_t from, int64_t to) {
  for (int64_t item = from; item < to; item++) delta_head(op, item / op->n[1], item % op->n[1]);
}

const OpType hr_gated_delta = {delta_items, delta_run};

/* The selective scan of each head. p: x, b, c, dt, rate, bias, skip, states, slots, query starts, context lengths, out.
 * n: S, H, G, N, P, strides of x, b, c, dt, of a slot's states, the last row of states. */
static int64_t scan_items(const Op *op) { return op->n[0] * op->n[1]; }

/* Some columns of a state take in one token; `count` lanes of the vectors are columns. */
INLINE void scan_columns(float *state, int64_t N, int64_t P, const float *b, const float *c, const float *x, float *out,
                         float left, float dt, float skip, int vectors, int count) {
  vf fade = vf_set1(left), taken[TILE], read[TILE];
  for (int j = 0; j < vectors; j++) {
    vf input = load(x + j * LANES, count);
    taken[j] = vf_mul(vf_set1(dt), input);
    read[j] = vf_mul(vf_set1(skip), input);
  }
  for (int64_t i = 0; i < N; i++)
    for (int j = 0; j < vectors; j++) {
      float *place = state + i * P + j * LANES;
      vf now = vf_fma(vf_set1(b[i]), taken[j], vf_mul(fade, load(place, count)));
      store(place, now, count);
      read[j] = vf_fma(vf_set1(c[i]), now, read[j]);
    }
  for (int j = 0; j < vectors; j++) store(out + j * LANES, read[j], count);
}

static void scan_head(const Op *op, int64_t sequence, int64_t head) {
  int64_t H = op->n[1], N = op->n[3], P = op->n[4], group = head / (H / op->n[2]) * N;
  Whose w = whose(op->p[8], op->p[9], op->p[10], sequence, op->n[10]);
  float *state = (float *)op->p[7] + w.row * op->n[9] + head * N * P;
  float rate = ((const float *)op->p[4])[head], bias = ((const float *)op->p[5])[head], skip = ((const float *)op->p[6])[head];
  if (w.begins && w.tokens > 0) memset(state, 0, sizeof(float) * (size_t)(N * P));
  for (int64_t t = w.first; t < w.first + w.tokens; t++) {
    const float *x = (const float *)op->p[0] + t * op->n[5] + head * P, *b = (const float *)op->p[1] + t * op->n[6] + group;
    const float *c = (const float *)op->p[2] + t * op->n[7] + group;
    float dt = ((const float *)op->p[3])[t * op->n[8] + head] + bias, *out = (float *)op->p[11] + (t * H + head) * P;
    if (dt <= 20.0f) dt = log1pf(expf(dt));
    float left = expf(-rate * dt);
    int64_t p = 0;
    for (; p + TILE * LANES <= P; p += TILE * LANES)
      scan_columns(state + p, N, P, b, c, x + p, out + p, left, dt, skip, TILE, LANES);
    for (; p < P; p += LANES)
      scan_columns(state + p, N, P, b, c, x + p, out + p, left, dt, skip, 1, P - p < LANES ? (int)(P - p) : LANES);
  }
}

static void scan_run(const Op *op, int64_t from, int64_t to) {
  for (int64_t item = from; item < to; item++) scan_head(op, item / op->n[1], item % op->n[1]);
}

const OpType hr_selective_scan = {scan_items, scan_run};

/* RMS norm of heads times the silu of a gate, which may stand before the norm instead. p: x, gate, weight, out.
 * n: heads of all tokens, V, D, stride of gate, of weights between heads, whether the gate is before. f: eps. */
static int64_t norm_items(const Op *op) { return op->n[0]; }

static void norm_run(const Op *op, int64_t from, int64_t to) {
  int64_t V = op->n[1], D = op->n[2];
  for (int64_t row = from; row < to; row++) {
    const float *x = (const float *)op->p[0] + row * D, *gate = (const float *)op->p[1] + row / V * op->n[3] + row % V * D;
    const float *weight = (const float *)op->p[2] + row % V * op->n[4];
    float *out = (float *)op->p[3] + row * D;
    vf squares = vf_zero();
    for (int64_t i = 0; i < D; i += LANES) {
      int n = D - i < LANES ? (int)(D - i) : LANES;
      vf some = load(x + i, n);
      if (op->n[5]) some = vf_mul(some, silu(load(gate + i, n)));
      store(out + i, some, n);
      squares = vf_fma(some, some, squares);
    }
    vf inverse = vf_set1(1.0f / sqrtf(vf_sum(squares) / (float)D + op->f[0]));
    for (int64_t i = 0; i < D; i += LANES) {
      int n = D - i < LANES ? (int)(D - i) : LANES;
      vf made = vf_mul(vf_mul(load(out + i, n), inverse), load(weight + i, n));
      store(out + i, op->n[5] ? made : vf_mul(made, silu(load(gate + i, n))), n);
    }
  }
}

const OpType hr_gated_norm = {norm_items, norm_run};
