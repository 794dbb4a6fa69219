/* MXFP4's numbers: 4-bit floats as bytes that can be summed, and the power of two that scales a block of them. */
#ifndef HR_FP4_H
#define HR_FP4_H
#include "simd.h"

/* 0, 0.5, 1, 1.5, 2, 3, 4, 6, then these negative: doubled, so that they are integers, and plus 12, so that none is below 0. */
static const uint8_t HR_FP4[16] __attribute__((aligned(16))) = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

INLINE float hr_power(uint8_t e) { /* 2^(e - 128), half of what the byte means; the two smallest are subnormal */
  uint32_t bits = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

/* `vb_fp4`: HR_FP4 of each byte, 0 .. 15. `vf_power`: hr_power of each byte, whose bits are the larger ones of two forms: those
 * of an exponent, and (e + 1) << 21, which is larger where the exponent would be below 1. */
#if LANES == 16
INLINE vb vb_fp4(vb a) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)HR_FP4)), a);
}
INLINE vf vf_power(const uint8_t *p) {
  __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
  __m512i small = _mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(1)), 21);
  return _mm512_castsi512_ps(_mm512_max_epi32(small, _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23)));
}
#elif LANES == 8
INLINE vb vb_fp4(vb a) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)HR_FP4)), a);
}
INLINE vf vf_power(const uint8_t *p) {
  __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
  __m256i small = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(1)), 21);
  return _mm256_castsi256_ps(_mm256_max_epi32(small, _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23)));
}
#else
#if defined(__ARM_FEATURE_DOTPROD)
INLINE vb vb_fp4(vb a) { return (vb)vqtbl1q_u8(vld1q_u8(HR_FP4), (uint8x16_t)a); }
#else /* no look-up of bytes: what three bits stand for, then the sign */
typedef int8_t hr_i8x16 __attribute__((vector_size(16)));
INLINE vb vb_fp4(vb a) {
  hr_i8x16 low = (hr_i8x16)(a & 7), negative = (hr_i8x16)a > 7;
  hr_i8x16 number = low - (low > 4) - (low > 5) - 3 * (low > 6);
  return (vb)((number ^ negative) - negative + 12);
}
#endif
INLINE vf vf_power(const uint8_t *p) {
  hr_u8x4 bytes;
  memcpy(&bytes, p, sizeof bytes);
  vi e = __builtin_convertvector(bytes, vi), small = (e + 1) << 21, large = (vi)((hr_u32x4)(e - 1) << 23);
  return hr_choose(large > small, (vf)large, (vf)small);
}
#endif
#endif
