/* Threads of our own that work through a list of operations together. */
#ifndef HR_POOL_H
#define HR_POOL_H
#include "ops.h"

/* Run `count` operations in order on up to `threads` threads, the caller among them. */
void hr_run(const Op *ops, int64_t count, int threads);
#endif
