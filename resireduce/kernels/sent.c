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

/* What resireduce_add_sent is given. */
struct sent {
    float *x;
    int64_t n, start;
    const float *values;
    const int32_t *indices;
    int64_t count;
    float scale;
    int whole;
};

/* Add `scale` x values to their places in x[0..n), the elements from number `start` on of a tensor: of all `count`, if it
 * is `whole`, else of those that lie there. Return 1; 0, and nothing is done, if a place is none of x. */
int resireduce_add_sent(const struct sent *given)
{
    const int32_t *indices = given->indices;
    const int64_t start = given->start, end = start + given->n, count = given->count;
    const int64_t first = given->whole ? 0 : below(indices, count, start);
    const int64_t stop = given->whole ? count : below(indices, count, end);
    for (int64_t i = first; i < stop; i++)
        if (indices[i] < start || indices[i] >= end)
            return 0;
    for (int64_t i = first; i < stop; i++)
        given->x[indices[i] - start] += given->values[i] * given->scale;
    return 1;
}
