/* Inner loops of candidates.py for float32, the same results as its loops in NumPy, a piece at a time. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kth_largest.h"
#include "search.h"

enum { NOT_DONE = -3, NEXT = 32 };

/* Write where the room of each lane begins. */
static void begin_lanes(const struct search *search, int64_t *next)
{
    for (int lane = 0; lane < search->lanes; lane++)
        next[lane] = search->room * lane / search->lanes;
}

/* Bring `total` values of all lanes into one order, from the last group's to the first's; `free` is room for as many. */
static void put_in_order(const struct search *search, number *values, int64_t total, number *free)
{
    int64_t next[MOST_THREADS];
    number *to = free + total;
    begin_lanes(search, next);
    for (int64_t group = 0; group * GROUP < search->n; group++) {
        const int lane = (int)(group % search->lanes);
        for (int i = 0; i < search->counts[group]; i++)
            *--to = values[next[lane]++];
    }
    memcpy(values, free, total * sizeof *values);
}

/* Add to x[0..n), if anything is `added`; then write magnitude and place of the elements that reach `border`, from the
 * last to the first: the same in any number of threads. `counts` has room for each group, `free` for `room` numbers.
 * Return how many; with the sums complete NO_ROOM, if there is not the room, and NOT_FINITE, if NaN or infinity was met
 * before and it `checks`: there is none, if it returns a number. */
int64_t resireduce_look(float *x, const float *added, int64_t n, float border, int threads, int64_t room, int checks,
                        float *magnitudes, int32_t *places, float *free, int32_t *counts)
{
    const struct search search = {.x = x, .added = added, .n = n, .border = border, .lanes = lanes_of(threads),
                                  .room = room, .checks = checks, .magnitudes = magnitudes, .places = places,
                                  .counts = counts};
    const int64_t total = look_through(&search);
    if (total > 0) {
        put_in_order(&search, (number *)magnitudes, total, (number *)free);
        put_in_order(&search, (number *)places, total, (number *)free);
    }
    return total;
}

/* Write magnitude and place (counted from `first`) of the elements of x[0..*left) whose magnitude reaches `border`, from
 * the last to the first, as long as there is `room`. Return how many; in *left remains how many were not looked at. */
FOR_EACH_PROCESSOR
static int64_t reaching(const float *x, int64_t *left, float border, int64_t first, int64_t room, float *magnitudes,
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

/* Do so: clang gives what is there for each processor another name. */
int64_t resireduce_reaching(const float *x, int64_t *left, float border, int64_t first, int64_t room, float *magnitudes,
                            int32_t *places)
{
    return reaching(x, left, border, first, room, magnitudes, places);
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

/* Return the `wanted`-th largest magnitude of each `step`-th element, with what is added to it; `sample` is room. */
static float sampled_border(const struct search *search, int64_t step, int64_t wanted, float *sample)
{
    const int64_t size = (search->n + step - 1) / step;
    const float *x = search->x;
    if (search->crossing)
        sample_sums(search->crossing, x, search->n, step, sample);
    else
        for (int64_t i = 0, at = 0; at < size; i += step, at++)
            sample[at] = x[i] + (search->added        ? search->added[i]
                                 : search->codes.bits ? decoded_at(&search->codes, i)
                                                      : 0);
    for (int64_t at = 0; at < size; at++)
        sample[at] = fabsf(sample[at]);
    int64_t passed;
    return kth_largest(sample, size, wanted, &passed);
}

/* Bring the magnitudes of the candidates that all lanes have found together. */
static void close_up(const struct search *search)
{
    int64_t next[MOST_THREADS], total = 0;
    begin_lanes(search, next);
    for (int lane = 0; lane < search->lanes; lane++) {
        int64_t count = 0;
        for (int64_t group = lane; group * GROUP < search->n; group += search->lanes)
            count += search->counts[group];
        memmove(search->magnitudes + total, search->magnitudes + next[lane], count * sizeof *search->magnitudes);
        total += count;
    }
}

/* Write values and places of the candidates above `least`, and of all at it but the first `passed`: k of them, from the
 * first to the last. Set them to 0 if it `takes` them. There is no branch on what is chosen: none could be foreseen. */
static void write_largest(const struct search *search, float least, int64_t passed, int64_t k, int takes, float *values,
                          int32_t *indices)
{
    int64_t next[MOST_THREADS], written = 0;
    number *bits = (number *)search->x;
    begin_lanes(search, next);
    for (int64_t group = 0; group * GROUP < search->n; group++) {
        const int32_t *places = search->places + next[group % search->lanes];
        next[group % search->lanes] += search->counts[group];
        for (int64_t i = 0; i < search->counts[group] && written < k; i++) {
            if (i + NEXT < search->counts[group])
                __builtin_prefetch(search->x + places[i + NEXT], 1);
            const int32_t place = indices[written] = places[i];
            const float value = values[written] = search->x[place], magnitude = fabsf(value);
            const int equal = magnitude == least, chosen = (magnitude > least) | (equal & (passed <= 0));
            passed -= equal;
            written += chosen;
            bits[place] &= (number)(chosen & takes) - 1;
        }
    }
}

/* What resireduce_largest is given. */
struct largest {
    float *x;
    const float *added; /* 0: nothing is */
    struct codes codes; /* of no bits: none are added */
    struct crossing crossing; /* without values: none is added */
    int64_t n, k, step, wanted, room;
    int threads, takes, checks;
    float *scratch; /* room for two numbers and a byte for each of `room` candidates, and for the sample */
    float *values;
    int32_t *indices;
};

/* Add to x[0..n) what is to be added; then write values and indices of the k largest magnitudes, from the first to the
 * last, and set these to 0 if it `takes` them. The `wanted`-th largest of each `step`-th element is a border. Return 1; with
 * the sums complete and nothing else 0, if fewer than k reach it, or more than there is room for, and NOT_FINITE, if NaN or
 * infinity was met before and it `checks`; NOT_DONE, if there is no such crossing. */
int resireduce_largest(const struct largest *given)
{
    const struct crossing *crossing = given->crossing.values ? &given->crossing : 0;
    const int64_t room = given->room;
    struct search search = {.x = given->x, .added = given->added, .codes = given->codes, .crossing = crossing,
                            .n = given->n, .lanes = lanes_of(given->threads), .room = room, .checks = given->checks,
                            .magnitudes = given->scratch, .places = (int32_t *)(given->scratch + room),
                            .counts = (int32_t *)(given->scratch + 2 * room)};
    if (crossing && !lies_in_matrix(crossing))
        return NOT_DONE;
    if (crossing)
        find_places(crossing);
    search.border = sampled_border(&search, given->step, given->wanted, given->scratch);
    const int64_t count = look_through(&search);
    if (count < given->k)
        return count == NOT_FINITE ? NOT_FINITE : 0;
    close_up(&search);
    int64_t passed;
    const float least = kth_largest(search.magnitudes, count, given->k, &passed);
    write_largest(&search, least, passed, given->k, given->takes, given->values, given->indices);
    return 1;
}
