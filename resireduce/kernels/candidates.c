/* Inner loops of selection.py for float32, the same results as its loops in NumPy, a piece at a time. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "crossing.h"
#include "decode.h"
#include "threads.h"

/* The k-th largest of some magnitudes, by their bits. */

enum { BINS = 256 };
typedef uint32_t __attribute__((may_alias)) number;

/* Write the least and the greatest of `count` numbers. */
FOR_EACH_PROCESSOR
static void bounds(const number *numbers, int64_t count, number *least, number *greatest)
{
    number low = numbers[0], high = numbers[0];
    for (int64_t i = 1; i < count; i++) {
        low = numbers[i] < low ? numbers[i] : low;
        high = numbers[i] > high ? numbers[i] : high;
    }
    *least = low;
    *greatest = high;
}

/* Return the k-th largest of `count` magnitudes, at least k, by their bits: these are in the order of the numbers. They
 * are counted in bins between the least and the greatest, and only those that may still be it are looked at again:
 * `magnitudes` are lost. Neighbours are counted apart, since mostly they are alike, and one addition to a count would wait
 * for the other. *passed is how many equal to it are not among the k largest. */
static float kth_largest(float *magnitudes, int64_t count, int64_t k, int64_t *passed)
{
    number *bits = (number *)magnitudes, low, high;
    for (bounds(bits, count, &low, &high); low < high; bounds(bits, count, &low, &high)) {
        int shift = 0;
        uint32_t counts[4][BINS] = {{0}};
        while ((high - low) >> shift >= BINS)
            shift++;
        for (int64_t i = 0; i < count; i++)
            counts[i & 3][(bits[i] - low) >> shift]++;
        int64_t of_bin = 0, left = 0;
        number bin = ((high - low) >> shift) + 1;
        do {
            bin--;
            k -= of_bin;
            of_bin = (int64_t)counts[0][bin] + counts[1][bin] + counts[2][bin] + counts[3][bin];
        } while (of_bin < k && bin > 0);
        for (int64_t i = 0; i < count; i++) {
            const number one = bits[i];
            bits[left] = one;
            left += (one - low) >> shift == bin;
        }
        count = left;
    }
    *passed = count - k;
    float magnitude;
    memcpy(&magnitude, &low, sizeof magnitude);
    return magnitude;
}

/* Elements of a float32 tensor that reach a border, found on the way as something is added to it. */

enum { BLOCK = 32, CHUNK = 1024, GROUP = 1 << 16, NO_ROOM = -1, NOT_FINITE = -2 };
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

#ifdef WIDE
/* Add to the elements from number `at` to before `end`, a chunk at most. Of each sixteen, write a bit for each that reaches
 * the border; return a bit for each of these numbers that is not 0. */
WIDE static uint64_t add_and_compare_wide(const struct search *search, int64_t at, int64_t end, uint16_t *hits)
{
    const __m512 border = _mm512_set1_ps(search->border);
    float *restrict x = search->x;
    const float *restrict added = search->added;
    uint64_t some = 0;
    for (uint64_t bit = 1; at < end; at += LANES_WIDE, bit <<= 1) {
        __m512 value = load_lanes(x + at, end - at);
        if (added) {
            value = _mm512_add_ps(value, load_lanes(added + at, end - at));
            store_lanes(x + at, end - at, value);
        }
        *hits = _mm512_mask_cmp_ps_mask(first_lanes(end - at), _mm512_abs_ps(value), border, _CMP_NLT_UQ);
        some |= *hits++ ? bit : 0;
    }
    return some;
}

/* Add to the elements from number `at` to before `end`, a chunk at most, and take those with a hit. No branch depends on an
 * element before all are read, so that the processor reads ahead. */
WIDE static int64_t look_wide(const struct search *search, int64_t at, int64_t end, int64_t count, int64_t stop)
{
    const __m512 largest = _mm512_set1_ps(FLT_MAX);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint16_t marks[CHUNK / LANES_WIDE];
    for (uint64_t some = add_and_compare_wide(search, at, end, marks); some && count >= 0; some &= some - 1) {
        const int which = __builtin_ctzll(some);
        const int64_t first = at + which * LANES_WIDE;
        if (stop - count < LANES_WIDE)
            return NO_ROOM;
        const __m512 magnitude = _mm512_abs_ps(_mm512_maskz_loadu_ps(marks[which], search->x + first));
        if (search->checks && _mm512_mask_cmp_ps_mask(marks[which], magnitude, largest, _CMP_NLE_UQ))
            return NOT_FINITE;
        const __mmask16 hits = _mm512_mask_cmp_ps_mask(marks[which], magnitude, magnitude, _CMP_ORD_Q);
        const __m512i places = _mm512_add_epi32(lanes, _mm512_set1_epi32((int32_t)first));
        _mm512_storeu_ps(search->magnitudes + count, _mm512_maskz_compress_ps(hits, magnitude));
        _mm512_storeu_si512(search->places + count, _mm512_maskz_compress_epi32(hits, places));
        count += __builtin_popcount(hits);
    }
    return count;
}
#else
static int64_t look_wide(const struct search *search, int64_t at, int64_t end, int64_t count, int64_t stop)
{
    return count;
}
#endif

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
    if (can_go_wide())
        return look_wide(search, at, end, count, stop);
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

/* Look at all elements. Return how many were found, or why there are none. */
static int64_t look_through(const struct search *search)
{
    in_threads(look, search, search->lanes, 1, search->lanes);
    int64_t total = 0;
    for (int64_t group = 0; group * GROUP < search->n; group++) {
        if (search->counts[group] < 0)
            return search->counts[group];
        total += search->counts[group];
    }
    return total;
}

static int lanes_of(int threads)
{
    return threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
}

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

/* Write magnitude and place of the elements of x[0..*left) whose magnitude reaches `border`, from
 * the last to the first, as long as there is `room`. Return how many; in *left remains how many were not looked at. */
FOR_EACH_PROCESSOR
static int64_t reaching(const float *x, int64_t *left, float border, int64_t room, float *magnitudes, int32_t *places)
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
                places[count++] = (int32_t)i;
            }
        }
        stop = start;
    }
    *left = 0;
    return count;
}

/* Do so: clang gives what is there for each processor another name. */
int64_t resireduce_reaching(const float *x, int64_t *left, float border, int64_t room, float *magnitudes, int32_t *places)
{
    return reaching(x, left, border, room, magnitudes, places);
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
