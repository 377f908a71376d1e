/* Sums of the magnitudes and of the squares of float32 numbers, sixteen of each. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "wide.h"

enum { LANES = 16, AHEAD = 4096 };

/* Sixteen sums of magnitudes and sixteen of squares. */
struct sums {
    double magnitudes[LANES], squares[LANES];
};

#ifdef WIDE
/* Add magnitudes and squares of sixteen elements to `m` and `s`, eight in each. The square of a float32 is exact in float64:
 * added without being rounded first, it is the same. */
WIDE static inline __attribute__((always_inline)) void add_lanes(__m512d m[2], __m512d s[2], const float *x)
{
    for (int half = 0; half < 2; half++) {
        const __m512d value = _mm512_cvtps_pd(_mm256_loadu_ps(x + half * LANES / 2));
        m[half] = _mm512_add_pd(m[half], _mm512_abs_pd(value));
        s[half] = _mm512_fmadd_pd(value, value, s[half]);
    }
}

/* Do as add_elements. */
WIDE static void add_elements_wide(struct sums *sums, const float *x, int64_t n, const float *beside)
{
    __m512d m[2], s[2];
    float rest[LANES] = {0};
    memcpy(m, sums->magnitudes, sizeof m);
    memcpy(s, sums->squares, sizeof s);
    for (; n >= LANES; n -= LANES, x += LANES, beside += LANES) {
        __builtin_prefetch(x + AHEAD);
        __builtin_prefetch(beside, 1);
        add_lanes(m, s, x);
    }
    memcpy(rest, x, n * sizeof *x);
    add_lanes(m, s, rest);
    memcpy(sums->magnitudes, m, sizeof m);
    memcpy(sums->squares, s, sizeof s);
}
#else
static void add_elements_wide(struct sums *sums, const float *x, int64_t n, const float *beside)
{
}
#endif

/* Do as add_elements, on other processors. */
FOR_EACH_PROCESSOR
static void add_elements_narrow(struct sums *sums, const float *x, int64_t n, const float *beside)
{
    struct sums so_far = *sums; /* memory of its own: the compiler knows that x is not changed */
    for (; n >= LANES; n -= LANES, x += LANES, beside += LANES) {
        __builtin_prefetch(x + AHEAD);
        __builtin_prefetch(beside, 1);
        for (int lane = 0; lane < LANES; lane++) {
            const double value = x[lane];
            so_far.magnitudes[lane] += fabs(value);
            so_far.squares[lane] += value * value;
        }
    }
    for (int lane = 0; lane < n; lane++) {
        const double value = x[lane];
        so_far.magnitudes[lane] += fabs(value);
        so_far.squares[lane] += value * value;
    }
    *sums = so_far;
}

/* Add magnitudes and squares of x[0..n): element i to the sums of number i % 16. Meanwhile fetch what is `beside`: each
 * addition waits for the one before, and memory could do more. */
static void add_elements(struct sums *sums, const float *x, int64_t n, const float *beside)
{
    (can_go_wide() ? add_elements_wide : add_elements_narrow)(sums, x, n, beside);
}
