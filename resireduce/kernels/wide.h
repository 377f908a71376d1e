/* Sixteen float32 numbers at a time, where the processor can. */

#pragma once

#include <stdint.h>

enum { LANES_WIDE = 16 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(RESIREDUCE_NARROW)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,popcnt")))

static inline int can_go_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("popcnt");
}

/* The first `count` of sixteen; all, if there are more. */
static inline __attribute__((always_inline)) __mmask16 first_lanes(int64_t count)
{
    return count < LANES_WIDE ? (__mmask16)((1u << count) - 1) : 0xffff;
}

/* Read the first `count` of sixteen numbers, and zeros for the others. Reading and writing all is done without a mask: from
 * memory that is in no cache, it is up to three times as fast. */
WIDE static inline __attribute__((always_inline)) __m512 load_lanes(const float *from, int64_t count)
{
    return count < LANES_WIDE ? _mm512_maskz_loadu_ps(first_lanes(count), from) : _mm512_loadu_ps(from);
}

/* Write the first `count` of sixteen numbers. */
WIDE static inline __attribute__((always_inline)) void store_lanes(float *to, int64_t count, __m512 numbers)
{
    if (count < LANES_WIDE)
        _mm512_mask_storeu_ps(to, first_lanes(count), numbers);
    else
        _mm512_storeu_ps(to, numbers);
}
#else
static inline int can_go_wide(void)
{
    return 0;
}
#endif
