/* What the files of this folder share: a loop over elements in several threads at once, torch's own, and looks at numbers. */

#pragma once

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { MOST_THREADS = 64 };

/* What goes through the elements start..stop of a task. */
typedef void part_of(const void *task, int64_t start, int64_t stop);

/* Go through the elements 0..n in `threads` shares, each of elements that lie together and begin with a multiple of
 * `unit`: in torch's threads, this one among them; or in this one alone. */
void resireduce_in_threads(part_of *run, const void *task, int64_t n, int64_t unit, int threads);

/* Return the largest of `count` magnitudes; NaN is larger than infinity, as magnitudes are in the order of their bits. */
INLINE float largest_of(const float *x, int64_t count)
{
    int32_t top = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    float magnitude;
    memcpy(&magnitude, &top, sizeof magnitude);
    return magnitude;
}

/* Return whether `count` numbers ascend, and are 0 or more and below the limit. */
INLINE int ascend(const int32_t *numbers, int64_t count, int64_t limit)
{
    for (int64_t i = 0; i < count; i++)
        if (numbers[i] <= (i ? numbers[i - 1] : -1) || numbers[i] >= limit)
            return 0;
    return 1;
}
