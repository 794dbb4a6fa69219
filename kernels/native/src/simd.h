/* One vector of LANES floats, LANES int32 or 4 * LANES bytes, in the widest form that this build's instruction set has.
 * Kernels are written once against these names; the build compiles them once for each instruction set. */
#ifndef HR_SIMD_H
#define HR_SIMD_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float hr_half(uint16_t h) { /* IEEE half to float, subnormals included */
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
  float f;
  if (exponent == 0) {
    f = (float)mantissa * 0x1p-24f;
    memcpy(&bits, &f, 4);
    bits |= sign;
  } else if (exponent == 31) {
    bits = sign | 0x7f800000u | mantissa << 13;
  } else {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  }
  memcpy(&f, &bits, 4);
  return f;
}

INLINE uint16_t hr_to_half(float f) { /* float to IEEE half, ties to even */
  uint32_t bits, sign;
  memcpy(&bits, &f, 4);
  sign = bits >> 16 & 0x8000, bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00); /* NaN */
  if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* rounds to infinity */
  if (bits < 0x38800000u) { /* a subnormal: the sum leaves its bits at the end of the mantissa, rounded */
    float small;
    memcpy(&small, &bits, 4);
    small += 0.5f;
    memcpy(&bits, &small, 4);
    return (uint16_t)(sign | (bits - 0x3f000000u));
  }
  return (uint16_t)(sign | (bits - 0x38000000u + 0xfff + (bits >> 13 & 1)) >> 13);
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#define LANES 16
#ifdef __AMX_INT8__
#define HR_ISA "amx"
#else
#define HR_ISA "avx512vnni"
#endif
typedef __m512 vf;
typedef __m512i vi, vb;
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vf vf_set1(float a) { return _mm512_set1_ps(a); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
INLINE float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float vf_top(vf a) { return _mm512_reduce_max_ps(a); }
INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vf_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); } /* a * 2^n, n integral */
INLINE vf vf_half(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void vf_store_half(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
INLINE vf vf_u8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INLINE vf vf_i8(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INLINE vf vf_int(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vb vb_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE vb vb_set1(uint8_t a) { return _mm512_set1_epi8((char)a); }
INLINE vb vb_and(vb a, vb b) { return _mm512_and_si512(a, b); }
INLINE vb vb_or(vb a, vb b) { return _mm512_or_si512(a, b); }
/* Shifts move 16-bit pairs: mask afterwards. */
#define vb_shr(a, n) _mm512_srli_epi16(a, n)
#define vb_shl(a, n) _mm512_slli_epi16(a, n)
/* acc += unsigned bytes . signed bytes, four of each a lane; `x` holds four signed bytes that all lanes share */
INLINE vi vi_dot(vi acc, vb w, int32_t x) { return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x)); }
/* The same for weights stored as q + 128: what is returned is q . x + 128 * sum(x), or q . x where that is cheaper. */
#define HR_DOT8_BIASED 1
INLINE vi vi_dot8(vi acc, vb w, int32_t x) { return vi_dot(acc, w, x); }
/* Round to the nearest (ties to even) and store as bytes; returns the sum. */
INLINE int32_t vf_store_i8(int8_t *p, vf a) {
  __m512i n = _mm512_cvtps_epi32(a);
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(n));
  return _mm512_reduce_add_epi32(n);
}
INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE void vf_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define LANES 8
#ifdef __AVXVNNI__
#define HR_ISA "avx2vnni"
#else
#define HR_ISA "avx2"
#endif
typedef __m256 vf;
typedef __m256i vi, vb;
INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
INLINE vf vf_set1(float a) { return _mm256_set1_ps(a); }
INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE float vf_sum(vf a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE float vf_top(vf a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
INLINE vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf vf_scale2(vf a, vf n) {
  __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
}
INLINE vf vf_half(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE void vf_store_half(uint16_t *p, vf a) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
INLINE vf vf_u8(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
INLINE vf vf_i8(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
INLINE vf vf_int(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vb vb_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE vb vb_set1(uint8_t a) { return _mm256_set1_epi8((char)a); }
INLINE vb vb_and(vb a, vb b) { return _mm256_and_si256(a, b); }
INLINE vb vb_or(vb a, vb b) { return _mm256_or_si256(a, b); }
#define vb_shr(a, n) _mm256_srli_epi16(a, n)
#define vb_shl(a, n) _mm256_slli_epi16(a, n)
#ifdef __AVXVNNI__
INLINE vi vi_dot(vi acc, vb w, int32_t x) { return _mm256_dpbusd_avx_epi32(acc, w, _mm256_set1_epi32(x)); }
#define HR_DOT8_BIASED 1
INLINE vi vi_dot8(vi acc, vb w, int32_t x) { return vi_dot(acc, w, x); }
#else
/* maddubs saturates at 16 bits: safe for weights up to 127 (2 * 127 * 127 < 32768); 8-bit ones go by their magnitude. */
INLINE vi vi_dot(vi acc, vb w, int32_t x) {
  __m256i pairs = _mm256_maddubs_epi16(w, _mm256_set1_epi32(x));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#define HR_DOT8_BIASED 0
INLINE vi vi_dot8(vi acc, vb w, int32_t x) {
  __m256i q = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
  __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(_mm256_set1_epi32(x), q));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
INLINE int32_t vf_store_i8(int8_t *p, vf a) {
  __m256i n = _mm256_cvtps_epi32(a);
  int32_t all[8], sum = 0;
  _mm256_storeu_si256((__m256i *)all, n);
  for (int i = 0; i < 8; i++) p[i] = (int8_t)all[i], sum += all[i];
  return sum;
}
INLINE vf vf_load_n(const float *p, int n) {
  float all[8] = {0};
  memcpy(all, p, sizeof(float) * (size_t)n);
  return vf_load(all);
}
INLINE void vf_store_n(float *p, vf a, int n) {
  float all[8];
  vf_store(all, a);
  memcpy(p, all, sizeof(float) * (size_t)n);
}

#else /* plain C with the compiler's own vectors, which it turns into what the machine has; on ARM the dot product is named */
#define LANES 4
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define HR_ISA "neon"
#else
#define HR_ISA "generic"
#endif
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint8_t vb __attribute__((vector_size(16)));
typedef int16_t hr_i16x8 __attribute__((vector_size(16)));
typedef uint16_t hr_u16x8 __attribute__((vector_size(16)));
typedef uint32_t hr_u32x4 __attribute__((vector_size(16)));
typedef uint16_t hr_u16x4 __attribute__((vector_size(8)));
typedef uint8_t hr_u8x4 __attribute__((vector_size(4)));
typedef int8_t hr_i8x4 __attribute__((vector_size(4)));
#define EACH(n) for (int l = 0; l < (n); l++)
INLINE vf vf_load(const float *p) { vf r; memcpy(&r, p, sizeof r); return r; }
INLINE void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
INLINE vf vf_set1(float a) { return (vf){a, a, a, a}; }
INLINE vf vf_add(vf a, vf b) { return a + b; }
INLINE vf vf_sub(vf a, vf b) { return a - b; }
INLINE vf vf_mul(vf a, vf b) { return a * b; }
INLINE vf vf_div(vf a, vf b) { return a / b; }
INLINE vf vf_fma(vf a, vf b, vf c) { return c + a * b; }
INLINE vf hr_choose(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf vf_max(vf a, vf b) { return hr_choose(a > b, a, b); }
INLINE vf vf_min(vf a, vf b) { return hr_choose(a < b, a, b); }
INLINE vf vf_abs(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE float vf_sum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
INLINE float vf_top(vf a) { float t = a[0]; EACH(LANES) t = a[l] > t ? a[l] : t; return t; }
INLINE vf vf_round(vf a) { EACH(LANES) a[l] = rintf(a[l]); return a; }
INLINE vf vf_scale2(vf a, vf n) { return a * (vf)((__builtin_convertvector(n, vi) + 127) << 23); }
INLINE vf vf_half(const uint8_t *p) { /* the bits of hr_half without its branches */
  hr_u16x4 h;
  memcpy(&h, p, sizeof h);
  hr_u32x4 w = __builtin_convertvector(h, hr_u32x4), most = w & 0x7fff;
  hr_u32x4 f = (hr_u32x4)((vf)(most << 13) * 0x1p112f), endless = (hr_u32x4)(most > 0x7bff) & 0x7f800000;
  return (vf)(f | endless | (w & 0x8000) << 16);
}
INLINE void vf_store_half(uint16_t *p, vf a) { EACH(LANES) p[l] = hr_to_half(a[l]); }
INLINE vf vf_u8(const uint8_t *p) { hr_u8x4 r; memcpy(&r, p, sizeof r); return __builtin_convertvector(r, vf); }
INLINE vf vf_i8(const uint8_t *p) { hr_i8x4 r; memcpy(&r, p, sizeof r); return __builtin_convertvector(r, vf); }
INLINE vf vf_int(vi a) { return __builtin_convertvector(a, vf); }
INLINE vi vi_zero(void) { return (vi){0, 0, 0, 0}; }
INLINE vi vi_add(vi a, vi b) { return a + b; }
INLINE vb vb_load(const uint8_t *p) { vb r; memcpy(&r, p, sizeof r); return r; }
INLINE vb vb_set1(uint8_t a) { return a - (vb){0}; }
INLINE vb vb_and(vb a, vb b) { return a & b; }
INLINE vb vb_or(vb a, vb b) { return a | b; }
INLINE vb vb_shr(vb a, int n) { return a >> (uint8_t)n; }
INLINE vb vb_shl(vb a, int n) { return a << (uint8_t)n; }
#if defined(__ARM_FEATURE_DOTPROD)
INLINE vi hr_dot_signed(vi acc, int8x16_t w, int32_t x) {
  return (vi)vdotq_s32((int32x4_t)acc, w, vreinterpretq_s8_s32(vdupq_n_s32(x)));
}
INLINE vi vi_dot(vi acc, vb w, int32_t x) { return hr_dot_signed(acc, (int8x16_t)w, x); }
INLINE vi vi_dot8(vi acc, vb w, int32_t x) { return hr_dot_signed(acc, (int8x16_t)(w ^ 0x80), x); }
#else
/* Signed bytes, two products in 16 bits: 2 * 128 * 127 fits. Weights of `vi_dot` are below 128, so they have no sign. */
INLINE hr_i16x8 hr_even(vb bytes) { return (hr_i16x8)((hr_u16x8)bytes << 8) >> 8; }
INLINE hr_i16x8 hr_odd(vb bytes) { return (hr_i16x8)bytes >> 8; }
INLINE vi vi_dot(vi acc, vb w, int32_t x) {
  vb all = (vb)(vi){x, x, x, x};
  hr_i16x8 pairs = hr_even(w) * hr_even(all) + hr_odd(w) * hr_odd(all);
  return acc + ((vi)pairs >> 16) + ((vi)((hr_u32x4)pairs << 16) >> 16);
}
INLINE vi vi_dot8(vi acc, vb w, int32_t x) { return vi_dot(acc, w ^ 0x80, x); }
#endif
#define HR_DOT8_BIASED 0
INLINE int32_t vf_store_i8(int8_t *p, vf a) {
  int32_t sum = 0;
  EACH(LANES) {
    int32_t n = (int32_t)rintf(a[l]);
    p[l] = (int8_t)n;
    sum += n;
  }
  return sum;
}
INLINE vf vf_load_n(const float *p, int n) { vf r = vf_set1(0.0f); memcpy(&r, p, sizeof(float) * (size_t)n); return r; }
INLINE void vf_store_n(float *p, vf a, int n) { memcpy(p, &a, sizeof(float) * (size_t)n); }
#endif

INLINE vf vf_zero(void) { return vf_set1(0.0f); }

/* e^x to about 2 ulp; below -87 it is that of -87, next to nothing. */
INLINE vf vf_exp(vf x) {
  x = vf_min(vf_set1(88.0f), vf_max(vf_set1(-87.0f), x)); /* in this order NaN stays NaN */
  vf n = vf_round(vf_mul(x, vf_set1(1.44269504089f)));
  vf r = vf_fma(n, vf_set1(-0.693145751953125f), x);
  r = vf_fma(n, vf_set1(-1.42860677e-6f), r);
  vf p = vf_set1(1.9875691500e-4f);
  p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
  p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
  p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
  p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
  p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
  p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
  return vf_scale2(p, n);
}
#endif
