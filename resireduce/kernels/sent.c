/* Inner loop of sent.py: some elements are added to their places. */

#include <stdint.h>

/* Return how many of `count` ascending indices are less than `bound`. */
static int64_t below(const int32_t *indices, int64_t count, int64_t bound)
{
    int64_t first = 0;
    while (first < count) {
        const int64_t middle = first + (count - first) / 2;
        if (indices[middle] < bound)
            first = middle + 1;
        else
            count = middle;
    }
    return first;
}

/* Add `scale` x values to their places in x[0..n), the elements from number `start` on of a tensor: of all `count`, if it
 * is `whole`, else of those that lie there. Return 1; 0, and nothing is done, if a place is none of x. */
int resireduce_add_sent(float *x, int64_t n, int64_t start, const float *values, const int32_t *indices, int64_t count,
                        float scale, int whole)
{
    const int64_t first = whole ? 0 : below(indices, count, start), stop = whole ? count : below(indices, count, start + n);
    for (int64_t i = first; i < stop; i++)
        if (indices[i] < start || indices[i] >= start + n)
            return 0;
    for (int64_t i = first; i < stop; i++)
        x[indices[i] - start] += values[i] * scale;
    return 1;
}
