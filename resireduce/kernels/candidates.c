/* Inner loops of candidates.py for float32, the same results as its loops in NumPy, a piece at a time. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "crossing.h"
#include "decode.h"
#include "threads.h"

enum { BLOCK = 32, CHUNK = 1024, GROUP = 1 << 16, NO_ROOM = -1, NOT_FINITE = -2, NOT_DONE = -3 };
typedef uint32_t __attribute__((may_alias)) number;

struct search {
    float *x;
    const float *added; /* to x on the way; 0: nothing is */
    struct codes codes; /* what is added as well */
    const struct crossing *crossing; /* and this; 0: nothing is */
    int64_t n;
    float border;
    int lanes; /* lane l has the groups l, l + lanes, ... and as large a part of the room as the others */
    int64_t room;
    int checks; /* whether it ends at NaN and infinity; else NaN is passed over */
    float *magnitudes;
    int32_t *places;
    int32_t *counts; /* of candidates in each group, or why there are none */
};

/* Add to `count` elements of x from number `at` on; set hits[i] to 1 for those that then reach the border, and for NaN,
 * to 0 for others. */
static inline __attribute__((always_inline)) void add_and_compare(const struct search *search, int64_t at,
                                                                  int64_t count, int adds, uint8_t *restrict hits)
{
    float *restrict x = search->x + at;
    const float *restrict added = adds ? search->added + at : 0;
    const float border = search->border;
    for (int64_t i = 0; i < count; i++) {
        const float value = adds ? x[i] + added[i] : x[i];
        if (adds)
            x[i] = value;
        hits[i] = !(fabsf(value) < border);
    }
}

/* Write magnitude and place of the elements with a hit, of the chunk from number `at` on, behind `count` others, as
 * long as these are fewer than `stop`. Return how many there are then; NO_ROOM or NOT_FINITE, if it was given up. */
static inline __attribute__((always_inline)) int64_t take(const struct search *search, int64_t at, const uint8_t *hits,
                                                          int64_t count, int64_t stop)
{
    for (int64_t block = at; block < at + CHUNK; block += BLOCK, hits += BLOCK) {
        uint64_t eights[BLOCK / 8];
        memcpy(eights, hits, sizeof eights);
        if (!(eights[0] | eights[1] | eights[2] | eights[3]))
            continue;
        if (stop - count < BLOCK)
            return NO_ROOM;
        for (int e = 0; e < BLOCK / 8; e++) /* a product of ones in eight bytes has them as eight bits on top */
            for (uint32_t left = eights[e] * 0x0102040810204080u >> 56; left; left &= left - 1) {
                const int64_t i = block + 8 * e + __builtin_ctz(left);
                const float magnitude = fabsf(search->x[i]);
                if (search->checks && !(magnitude <= FLT_MAX))
                    return NOT_FINITE;
                search->magnitudes[count] = magnitude;
                search->places[count] = (int32_t)i;
                count += magnitude == magnitude;
            }
    }
    return count;
}

/* Go through elements from number `at` on, a chunk at most, behind `count` candidates; return as `take`. */
static inline __attribute__((always_inline)) int64_t look_at_chunk(const struct search *search, int64_t at,
                                                                   int64_t count, int64_t stop)
{
    uint8_t hits[CHUNK];
    const int64_t end = search->n - at < CHUNK ? search->n : at + CHUNK;
    if (search->codes.bits)
        add_decoded(&search->codes, at, end, search->x + at);
    if (search->crossing) {
        for (int64_t i = at + CHUNK; i < at + 2 * CHUNK; i += 64 / sizeof(float))
            __builtin_prefetch(search->x + i, 1); /* rows in turn with others: the processor does not foresee them */
        add_crossing(search->crossing, at, end, search->x + at);
    }
    if (search->n - at < CHUNK) {
        memset(hits, 0, sizeof hits);
        add_and_compare(search, at, search->n - at, search->added != 0, hits);
    } else if (search->added) {
        add_and_compare(search, at, CHUNK, 1, hits);
    } else {
        add_and_compare(search, at, CHUNK, 0, hits);
    }
    return count < 0 ? count : take(search, at, hits, count, stop);
}

FOR_EACH_PROCESSOR
static void look(const void *task, int64_t lane, int64_t stop)
{
    const struct search *search = task;
    int64_t count = search->room * lane / search->lanes;
    const int64_t end = search->room * stop / search->lanes;
    for (int64_t group = lane; group * GROUP < search->n; group += search->lanes) {
        const int64_t before = count;
        for (int64_t at = group * GROUP; at < search->n && at < (group + 1) * GROUP; at += CHUNK)
            count = look_at_chunk(search, at, count, end);
        search->counts[group] = (int32_t)(count < 0 ? count : count - before);
    }
}

/* Bring `total` values of all lanes into one order, from the last group's to the first's; `free` is room for as many. */
static void put_in_order(const struct search *search, number *values, int64_t total, number *free)
{
    int64_t next[MOST_THREADS];
    number *to = free + total;
    for (int lane = 0; lane < search->lanes; lane++)
        next[lane] = search->room * lane / search->lanes;
    for (int64_t group = 0; group * GROUP < search->n; group++) {
        const int lane = (int)(group % search->lanes);
        for (int i = 0; i < search->counts[group]; i++)
            *--to = values[next[lane]++];
    }
    memcpy(values, free, total * sizeof *values);
}

/* Look at all elements; bring what was found into one order. Return how many, or why there are none. */
static int64_t look_through(const struct search *search, float *free)
{
    in_threads(look, search, search->lanes, 1, search->lanes);
    int64_t total = 0;
    for (int64_t group = 0; group * GROUP < search->n; group++) {
        if (search->counts[group] < 0)
            return search->counts[group];
        total += search->counts[group];
    }
    put_in_order(search, (number *)search->magnitudes, total, (number *)free);
    put_in_order(search, (number *)search->places, total, (number *)free);
    return total;
}

static int lanes_of(int threads)
{
    return threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
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
    return look_through(&search, free);
}

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

/* Return the k-th largest of `count` magnitudes, at least k, by their bits: these are in the order of the numbers. Only
 * those that may still be it are looked at again: `magnitudes` are lost. Neighbours are counted apart, since mostly they
 * are alike, and one addition to a count would wait for the other. */
static float kth_largest(float *magnitudes, int64_t count, int64_t k)
{
    static const int shifts[] = {23, 15, 7, 0};
    number *bits = (number *)magnitudes, found = 0;
    for (int digit = 0; digit < 4; digit++) {
        const int shift = shifts[digit];
        int64_t counts[4][256] = {{0}}, of_bin = 0, left = 0;
        for (int64_t i = 0; i < count; i++)
            counts[i & 3][bits[i] >> shift & 255]++;
        int bin = 256;
        do {
            bin--;
            k -= of_bin;
            of_bin = counts[0][bin] + counts[1][bin] + counts[2][bin] + counts[3][bin];
        } while (of_bin < k && bin > 0);
        for (int64_t i = 0; i < count; i++) {
            const number one = bits[i];
            bits[left] = one;
            left += (int)(one >> shift & 255) == bin;
        }
        count = left;
        found |= (number)bin << shift;
    }
    float magnitude;
    memcpy(&magnitude, &found, sizeof magnitude);
    return magnitude;
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
    return kth_largest(sample, size, wanted);
}

/* Add to x[0..n), if anything is `added`, or codes (of no bits: none are), or a crossing (0: none is); then write values
 * and indices of the k largest magnitudes, from the first to the last, and set these to 0 if it `takes` them. The
 * `wanted`-th largest of each `step`-th element is a border. Return 1; with the sums complete and nothing else 0, if fewer
 * than k reach it, or more than there is room for, and NOT_FINITE, if NaN or infinity was met before and it `checks`;
 * NOT_DONE, if there is no such crossing. `scratch` has room for three numbers and a byte for each of `room` candidates,
 * and for a number for each element of the sample. */
int resireduce_largest(float *x, const float *added, const uint8_t *codes, const float *scales, int bits,
                       const struct crossing *crossing, int64_t n, int64_t k, int64_t step, int64_t wanted,
                       int64_t room, int threads, int takes, int checks, float *scratch, float *values,
                       int32_t *indices)
{
    struct search search = {.x = x, .added = added, .codes = {codes, scales, bits}, .crossing = crossing, .n = n,
                            .lanes = lanes_of(threads), .room = room, .checks = checks, .magnitudes = scratch,
                            .places = (int32_t *)(scratch + room), .counts = (int32_t *)(scratch + 3 * room)};
    float *free = scratch + 2 * room;
    if (crossing && !lies_in_matrix(crossing))
        return NOT_DONE;
    if (crossing)
        find_places(crossing);
    search.border = sampled_border(&search, step, wanted, scratch);
    const int64_t count = look_through(&search, free);
    if (count < k)
        return count == NOT_FINITE ? NOT_FINITE : 0;
    memcpy(free, search.magnitudes, count * sizeof *free);
    resireduce_keep(search.magnitudes, search.places, count, k, kth_largest(free, count, k));
    for (int64_t i = 0; i < k; i++) {
        const int32_t place = indices[i] = search.places[k - 1 - i];
        values[i] = x[place];
        if (takes)
            x[place] = 0;
    }
    return 1;
}
