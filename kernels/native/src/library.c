/* What a build can tell about itself and about the machine. */
#define _GNU_SOURCE
#include "ops.h"
#include "simd.h"
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifndef HR_SOURCES
#define HR_SOURCES ""
#endif

const char *hr_isa(void) { return HR_ISA; }
const char *hr_sources(void) { return HR_SOURCES; } /* what it was built from: Python must speak of the same records */
int64_t hr_op_bytes(void) { return sizeof(Op); }

#if defined(__x86_64__)
typedef struct {
  uint32_t a, b, c, d;
} Registers;

static Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r = {leaf, 0, subleaf, 0};
  __asm__ volatile("cpuid" : "+a"(r.a), "=b"(r.b), "+c"(r.c), "=d"(r.d));
  return r;
}

static int all(uint32_t found, uint32_t wanted) { return (found & wanted) == wanted; }
#endif
#define BIT(n) (1u << (n))

/* Bits of instruction sets that this machine runs: 1 AVX2 with FMA and F16C, 2 AVX-VNNI, 4 AVX-512 with VNNI, 8 AMX on
 * bytes, whose registers Linux must be asked for: a process has them from then on; 16 ARM's dot product of bytes, which
 * cores before the Cortex-A75 lack.
 * Asked of the processor itself: what __builtin_cpu_supports reads stays empty where the compiler's runtime is not
 * libgcc (Zig). Wide registers also need a system that saves them (XCR0). */
int hr_machine(void) {
  int found = 0;
#if defined(__x86_64__)
  Registers one = cpuid(1, 0);
  if (cpuid(0, 0).a < 7 || !all(one.c, BIT(12) | BIT(27) | BIT(28) | BIT(29))) return 0; /* FMA OSXSAVE AVX F16C */
  uint32_t saved, high;
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  Registers seven = cpuid(7, 0);
  if (!all(saved, 0x06) || !all(seven.b, BIT(5))) return 0; /* AVX2 */
  found = 1;
  if (seven.a >= 1 && all(cpuid(7, 1).a, BIT(4))) found |= 2;
  uint32_t wide = BIT(16) | BIT(17) | BIT(30) | BIT(31); /* AVX-512 F, DQ, BW, VL */
  if (all(saved, 0xe6) && all(seven.b, wide) && all(seven.c, BIT(11))) found |= 4;
#if defined(__linux__)
  if ((found & 4) && all(saved, 0x60000) && all(seven.d, BIT(24) | BIT(25)) && !syscall(SYS_arch_prctl, 0x1023, 18)) found |= 8;
#endif
#elif defined(__aarch64__) && defined(__linux__)
  if (getauxval(AT_HWCAP) & BIT(20)) found |= 16;
#elif defined(__aarch64__) && defined(__APPLE__)
  found |= 16; /* all of them */
#endif
  return found;
}
