/* The largest magnitudes of float32 tensors: found, packed and taken out; and added to their places. */

#include <float.h>
#include <math.h>

#include "threads.h"

enum { BINS = 256, MAGNITUDE = 0x7fffffff };
typedef uint32_t __attribute__((may_alias)) number;

/* --- The k-th largest of some magnitudes, by their bits, which are in the order of the numbers --- */

/* Return the k-th largest of n magnitudes, at least k, of numbers with these `bits`. They are counted in 256 bins of a range
 * that becomes narrower, neighbours apart: mostly they are alike, and one addition to a count would wait for the other. With
 * `room`, in which `bits` may lie, the range is from the least to the greatest, and only those that may still be it are
 * looked at again. *passed is how many equal to it are not among the k largest. */
FOR_EACH_PROCESSOR
static number kth_largest(const number *bits, int64_t n, int64_t k, number *room, int64_t *passed)
{
    number low = 0, width = MAGNITUDE; /* of the range, less one */
    *passed = n;
    while (1) {
        if (room) {
            number high = low = bits[0] & MAGNITUDE;
            for (int64_t i = 1; i < n; i++) {
                const number one = bits[i] & MAGNITUDE;
                low = one < low ? one : low;
                high = one > high ? one : high;
            }
            width = high - low;
        }
        if (width == 0)
            break;
        int shift = 0;
        uint32_t counts[4][BINS] = {{0}};
        while (width >> shift >= BINS)
            shift++;
        for (int64_t i = 0; i < n; i++) {
            const number above = (bits[i] & MAGNITUDE) - low;
            if (above <= width)
                counts[i & 3][above >> shift]++;
        }
        number bin = BINS;
        *passed = 0;
        do {
            bin--;
            k -= *passed; /* those above */
            *passed = (int64_t)counts[0][bin] + counts[1][bin] + counts[2][bin] + counts[3][bin];
        } while (*passed < k && bin > 0);
        low += bin << shift;
        width = (1u << shift) - 1;
        if (room) {
            int64_t left = 0;
            for (int64_t i = 0; i < n; i++) {
                const number one = bits[i] & MAGNITUDE;
                room[left] = one;
                left += one - low <= width;
            }
            bits = room;
            n = left;
        }
    }
    *passed -= k;
    return low;
}

/* --- Elements that reach a border, found on the way as something is added to them --- */

enum { SIXTEEN = 16, CHUNK = 1024, GROUP = 1 << 16, NO_ROOM = -1 };

/* What is given of one tensor. */
struct largest {
    float *x;
    const float *added; /* to x on the way; 0: nothing is */
    int64_t n, k, step, wanted, room; /* no room: there is no sample */
    int threads, takes;
    float *scratch; /* room for two numbers and a byte for each of `room` candidates, and for the sample */
    float *values;
    int32_t *indices;
};

struct search {
    const struct largest *given;
    float border;
    int lanes; /* lane l has the groups l, l + lanes, ... and as large a part of the room as the others */
    number *magnitudes;
    int32_t *places;
    int32_t *counts; /* of candidates in each group, or NO_ROOM */
};

/* Write magnitude and place of the elements with a hit, of the chunk from number `at` on, behind `count` others, as
 * long as these are fewer than `stop`. Return how many there are then; NO_ROOM, if it was given up. Sixteens with a hit are
 * noted first, without a branch, and mostly have one: what a processor cannot foresee costs more than to look twice. */
INLINE int64_t take(const struct search *search, int64_t at, const uint8_t *hits, int64_t count, int64_t stop)
{
    uint8_t some[CHUNK / SIXTEEN];
    uint64_t eights[SIXTEEN / 8];
    int found = 0;
    for (int one = 0; one < CHUNK / SIXTEEN; one++) {
        memcpy(eights, hits + SIXTEEN * one, sizeof eights);
        some[found] = (uint8_t)one;
        found += (eights[0] | eights[1]) != 0;
    }
    for (int next = 0; next < found; next++) {
        if (stop - count < SIXTEEN)
            return NO_ROOM;
        memcpy(eights, hits + SIXTEEN * some[next], sizeof eights);
        /* A product of ones in eight bytes has them as eight bits on top. */
        const uint64_t low = eights[0] * 0x0102040810204080u >> 56, high = eights[1] * 0x0102040810204080u >> 56;
        for (uint32_t left = (uint32_t)(low | high << 8); left; left &= left - 1) {
            const int64_t i = at + SIXTEEN * some[next] + __builtin_ctz(left);
            search->magnitudes[count] = ((number *)search->given->x)[i] & MAGNITUDE;
            search->places[count++] = (int32_t)i;
        }
    }
    return count;
}

/* Add to the elements of a lane's groups; those that then reach the border, and NaN, are hits. */
FOR_EACH_PROCESSOR
static void look(const void *task, int64_t lane, int64_t stop)
{
    const struct search *search = task;
    const int64_t n = search->given->n, end = search->given->room * stop / search->lanes;
    const float *restrict added = search->given->added;
    const float border = search->border;
    int64_t count = search->given->room * lane / search->lanes;
    uint8_t hits[CHUNK];
    for (int64_t group = lane; group * GROUP < n; group += search->lanes) {
        const int64_t before = count;
        for (int64_t at = group * GROUP; at < n && at < (group + 1) * GROUP; at += CHUNK) {
            float *restrict x = search->given->x + at;
            const int64_t size = n - at < CHUNK ? n - at : CHUNK;
            if (size < CHUNK)
                memset(hits, 0, sizeof hits);
            if (added)
                for (int64_t i = 0; i < size; i++) {
                    x[i] += added[at + i];
                    hits[i] = !(fabsf(x[i]) < border);
                }
            else
                for (int64_t i = 0; i < size; i++)
                    hits[i] = !(fabsf(x[i]) < border);
            count = count < 0 ? count : take(search, at, hits, count, end);
        }
        search->counts[group] = (int32_t)(count < 0 ? count : count - before);
    }
}

/* Look at all elements. Return how many candidates all lanes have found, whose magnitudes then lie together; or NO_ROOM. */
static int64_t look_through(const struct search *search)
{
    int64_t total = 0;
    resireduce_in_threads(look, search, search->lanes, 1, search->lanes);
    for (int lane = 0; lane < search->lanes; lane++) {
        int64_t count = 0;
        for (int64_t group = lane; group * GROUP < search->given->n; group += search->lanes) {
            if (search->counts[group] < 0)
                return NO_ROOM;
            count += search->counts[group];
        }
        const number *from = search->magnitudes + search->given->room * lane / search->lanes;
        memmove(search->magnitudes + total, from, count * sizeof *from);
        total += count;
    }
    return total;
}

/* Write the magnitudes of a sample, of which number `i` is element i x step, with what is added to it. */
static void sample(const void *task, int64_t start, int64_t stop)
{
    const struct largest *given = task;
    for (int64_t i = start; i < stop; i++) {
        const int64_t at = i * given->step;
        given->scratch[i] = fabsf(given->x[at] + (given->added ? given->added[at] : 0));
    }
}

/* Return the `wanted`-th largest magnitude of each `step`-th element. If that is zero, most elements are, and all others are
 * looked for. */
static float sampled_border(const struct largest *given)
{
    const int64_t size = (given->n + given->step - 1) / given->step;
    int64_t passed;
    resireduce_in_threads(sample, given, size, SIXTEEN, given->threads);
    const number bits = kth_largest((number *)given->scratch, size, given->wanted, (number *)given->scratch, &passed);
    float border;
    memcpy(&border, &bits, sizeof border);
    return border > 0 ? border : FLT_TRUE_MIN;
}

/* --- The k largest of tensors, packed --- */

/* What is written, from the first to the last. */
struct writing {
    number least;   /* of the magnitudes that are chosen */
    int64_t passed; /* how many equal to it are not, any more: the first */
    int64_t count;
};

/* Write value and place of an element, if it is above the least magnitude, or equal to it and not to be passed; set it to 0
 * if it is to be taken. There is no branch on what is chosen: none could be foreseen. */
INLINE void put(const struct largest *given, int32_t place, struct writing *to)
{
    number *element = (number *)given->x + place;
    const number magnitude = *element & MAGNITUDE;
    const int equal = magnitude == to->least, chosen = (magnitude > to->least) | (equal & (to->passed <= 0));
    given->values[to->count] = given->x[place];
    given->indices[to->count] = place;
    to->passed -= equal;
    to->count += chosen;
    *element &= (number)(chosen & given->takes) - 1;
}

/* Write the largest of the candidates. */
static void write_candidates(const struct search *search, struct writing to)
{
    const struct largest *given = search->given;
    enum { NEXT = 32 };
    int64_t next[MOST_THREADS];
    for (int lane = 0; lane < search->lanes; lane++)
        next[lane] = search->given->room * lane / search->lanes;
    for (int64_t group = 0; group * GROUP < search->given->n; group++) {
        const int32_t *places = search->places + next[group % search->lanes];
        next[group % search->lanes] += search->counts[group];
        for (int64_t i = 0; i < search->counts[group] && to.count < given->k; i++) {
            if (i + NEXT < search->counts[group])
                __builtin_prefetch(search->given->x + places[i + NEXT], 1);
            put(given, places[i], &to);
        }
    }
}

/* For each of `count` tensors, add to x[0..n) what is to be added; then write values and indices of the k largest
 * magnitudes, from the first to the last, and set these to 0 if it `takes` them. The `wanted`-th largest of each `step`-th
 * element is a border; where fewer than k reach it, or more than there is room for, and where there is no sample, all
 * elements are counted. Return 1, or 2 if NaN or infinity is among what is written. */
int resireduce_largest_each(const struct largest *each, int64_t count)
{
    int is_finite = 1;
    for (const struct largest *given = each; given < each + count; given++) {
        struct search search = {.given = given, .border = given->room ? sampled_border(given) : INFINITY,
                                .lanes = given->threads < MOST_THREADS ? given->threads : MOST_THREADS,
                                .magnitudes = (number *)given->scratch,
                                .places = (int32_t *)(given->scratch + given->room),
                                .counts = (int32_t *)(given->scratch + 2 * given->room)};
        const int64_t found = look_through(&search);
        struct writing to = {0};
        if (found >= given->k) {
            to.least = kth_largest(search.magnitudes, found, given->k, search.magnitudes, &to.passed);
            write_candidates(&search, to);
        } else {
            to.least = kth_largest((const number *)given->x, given->n, given->k, 0, &to.passed);
            for (int64_t i = 0; to.count < given->k; i++)
                put(given, (int32_t)i, &to);
        }
        is_finite &= largest_of(given->values, given->k) < INFINITY;
    }
    return is_finite ? 1 : 2;
}

/* --- What was sent is added to its places --- */

/* What one rank sent of one tensor. */
struct sent {
    float *x;
    int64_t n;
    const float *values;
    const int32_t *indices;
    int64_t count;
    float scale;
    int zeroes, threads; /* whether x is set to zeros before */
};

/* Return how many of the indices, which ascend, are below this one. */
static int64_t below(const struct sent *given, int64_t index)
{
    int64_t first = 0, stop = given->count;
    while (first < stop) {
        const int64_t middle = (first + stop) / 2;
        if (given->indices[middle] < index)
            first = middle + 1;
        else
            stop = middle;
    }
    return first;
}

/* Go through elements of x, some at a time, so that those that are set to zeros lie in a cache when others are added. */
static void add_to_some(const void *task, int64_t start, int64_t stop)
{
    const struct sent *given = task;
    for (int64_t i = below(given, start); start < stop; start += GROUP) {
        const int64_t end = stop - start < GROUP ? stop : start + GROUP;
        if (given->zeroes)
            memset(given->x + start, 0, (end - start) * sizeof *given->x);
        for (; i < given->count && given->indices[i] < end; i++)
            given->x[given->indices[i]] += given->values[i] * given->scale;
    }
}

/* For each of `count` such structures, add `scale` x each value to its place in x[0..n). Return 1; 0, and nothing is done,
 * if indices do not ascend, or one is none of its x. */
int resireduce_add_sent_each(const struct sent *each, int64_t count)
{
    for (const struct sent *given = each; given < each + count; given++)
        if (!ascend(given->indices, given->count, given->n))
            return 0;
    for (const struct sent *given = each; given < each + count; given++)
        resireduce_in_threads(add_to_some, given, given->n, CHUNK, given->threads);
    return 1;
}
