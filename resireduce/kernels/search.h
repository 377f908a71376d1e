/* Elements of a float32 tensor that reach a border, found on the way as something is added to it. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "crossing.h"
#include "decode.h"
#include "threads.h"
#include "wide.h"

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
