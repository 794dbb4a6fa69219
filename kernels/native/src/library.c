/* What a build can tell about itself and about the machine. */
#include "ops.h"
#include "simd.h"

const char *hr_isa(void) { return HR_ISA; }
int64_t hr_op_bytes(void) { return sizeof(Op); }

/* Bits of instruction sets that this machine runs: 1 AVX2 with FMA and F16C, 2 AVX-VNNI, 4 AVX-512 with VNNI. */
int hr_machine(void) {
  int found = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found |= 1;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    found |= 4;
  unsigned a = 7, b, c = 1, d;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  if ((found & 1) && (a >> 4 & 1)) found |= 2;
#endif
  return found;
}
