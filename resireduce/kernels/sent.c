/* Inner loop of packed_largest.py: some elements are added to their places. */

#include <stdint.h>
#include <string.h>

/* What one rank sent of one tensor. */
struct sent {
    float *x;
    int64_t n;
    const float *values;
    const int32_t *indices;
    int64_t count;
    float scale;
    int zeroes; /* whether x is set to zeros before */
};

/* For each of `count` such structures, add `scale` x each value to its place in x[0..n). Return 1; 0, and nothing is done,
 * if an index is none of its x. */
int resireduce_add_sent_each(const struct sent *each, int64_t count)
{
    for (const struct sent *given = each; given < each + count; given++)
        for (int64_t i = 0; i < given->count; i++)
            if (given->indices[i] < 0 || given->indices[i] >= given->n)
                return 0;
    for (const struct sent *given = each; given < each + count; given++) {
        if (given->zeroes)
            memset(given->x, 0, given->n * sizeof *given->x);
        for (int64_t i = 0; i < given->count; i++)
            given->x[given->indices[i]] += given->values[i] * given->scale;
    }
    return 1;
}
