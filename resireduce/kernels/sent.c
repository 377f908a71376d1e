/* Inner loop of sent.py: some elements are added to their places. */

#include <stdint.h>

/* What resireduce_add_sent is given. */
struct sent {
    float *x;
    int64_t n;
    const float *values;
    const int32_t *indices;
    int64_t count;
    float scale;
};

/* Add `scale` x each of `count` values to its place in x[0..n). Return 1; 0, and nothing is done, if an index is none of
 * x. */
int resireduce_add_sent(const struct sent *given)
{
    for (int64_t i = 0; i < given->count; i++)
        if (given->indices[i] < 0 || given->indices[i] >= given->n)
            return 0;
    for (int64_t i = 0; i < given->count; i++)
        given->x[given->indices[i]] += given->values[i] * given->scale;
    return 1;
}
