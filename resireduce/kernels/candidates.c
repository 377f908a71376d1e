/* Inner loops of candidates.py for float32, the same results as its loops in NumPy, a piece at a time. */

#include <math.h>
#include <stdint.h>

enum { BLOCK = 32 };

/* Write magnitude and place (counted from `first`) of the elements of x[0..*left) whose magnitude reaches `border`, from
 * the last to the first, as long as there is `room`. Return how many; in *left remains how many were not looked at. */
FOR_EACH_PROCESSOR
int64_t resireduce_reaching(const float *x, int64_t *left, float border, int64_t first, int64_t room, float *magnitudes,
                            int32_t *places)
{
    int64_t count = 0;
    for (int64_t stop = *left; stop > 0;) {
        const int64_t start = (stop - 1) / BLOCK * BLOCK;
        int any = 0;
        if (stop - start == BLOCK)
            for (int i = 0; i < BLOCK; i++)
                any |= fabsf(x[start + i]) >= border;
        else
            any = 1;
        for (int64_t i = stop - 1; any && i >= start; i--) {
            const float magnitude = fabsf(x[i]);
            if (magnitude >= border) {
                if (count == room) {
                    *left = i + 1;
                    return count;
                }
                magnitudes[count] = magnitude;
                places[count++] = (int32_t)(first + i);
            }
        }
        stop = start;
    }
    *left = 0;
    return count;
}

/* Keep, in their order, those of `count` candidates that are above `border`, and of those that are at it the first, until
 * there are `k`. Return how many are kept: k, if at least so many reach the border. */
int64_t resireduce_keep(float *magnitudes, int32_t *places, int64_t count, int64_t k, float border)
{
    int64_t above = 0, kept = 0;
    for (int64_t i = 0; i < count; i++)
        above += magnitudes[i] > border;
    int64_t equal = k - above;
    for (int64_t i = 0; i < count; i++) {
        const float magnitude = magnitudes[i];
        const int at = magnitude == border && equal > 0;
        equal -= at;
        magnitudes[kept] = magnitude;
        places[kept] = places[i];
        kept += at | (magnitude > border);
    }
    return kept;
}
