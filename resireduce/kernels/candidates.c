/* Inner loops of candidates.py for float32, the same results as its loops in NumPy, a piece at a time. */

#include <math.h>
#include <stdint.h>

#include "flags.h"
#include "threads.h"

enum { BLOCK = FLAGGED, AHEAD = 8 };

struct search {
    const float *x;
    float border;
    uint32_t *flags;
};

/* Flag the blocks of `count` elements, at most a word, from number `at` on. */
static inline __attribute__((always_inline)) void look_at_word(const struct search *search, int64_t at, int64_t count)
{
    const float *x = search->x + at;
    uint8_t hits[WORD];
    if (count < WORD)
        memset(hits, 0, sizeof hits);
    for (int64_t i = 0; i < count; i++)
        hits[i] = fabsf(x[i]) >= search->border;
    search->flags[at / WORD] = flags_of(hits);
}

FOR_EACH_PROCESSOR
static void look(const void *task, int64_t start, int64_t stop)
{
    for (int64_t at = start; at < stop; at += WORD)
        if (stop - at < WORD)
            look_at_word(task, at, stop - at);
        else
            look_at_word(task, at, WORD);
}

/* Flag the blocks of x[0..n) in which a magnitude reaches `border`: the same bits in any number of threads. */
void resireduce_look(const float *x, int64_t n, float border, uint32_t *flags, int threads)
{
    const struct search search = {x, border, flags};
    in_threads(look, &search, n, WORD, threads);
}

/* Have the flagged blocks of a word at hand when they are looked at. */
static inline __attribute__((always_inline)) void fetch(const float *x, uint32_t flags)
{
    for (; flags; flags &= flags - 1) {
        const float *block = x + __builtin_ctz(flags) * FLAGGED;
        __builtin_prefetch(block);
        __builtin_prefetch(block + FLAGGED / 2);
    }
}

/* Write magnitude and place of those elements of x[0..n) that reach the border, from the last to the first, which lie in
 * blocks with a flag. Return how many; -1, if there is no `room` for them. */
FOR_EACH_PROCESSOR
int64_t resireduce_take_flagged(const float *x, int64_t n, float border, const uint32_t *flags, int64_t room,
                                float *magnitudes, int32_t *places)
{
    int64_t count = 0;
    for (int64_t word = (n - 1) / WORD; word >= 0; word--) {
        if (word >= AHEAD)
            fetch(x + (word - AHEAD) * WORD, flags[word - AHEAD]);
        for (uint32_t bits = flags[word]; bits;) {
            const int block = 31 - __builtin_clz(bits);
            const int64_t first = word * WORD + block * FLAGGED;
            const int64_t size = n - first < FLAGGED ? n - first : FLAGGED;
            uint64_t eights[FLAGGED / 8] = {0};
            uint8_t *hits = (uint8_t *)eights;
            if (room - count < FLAGGED)
                return -1;
            if (size == FLAGGED)
                for (int i = 0; i < FLAGGED; i++)
                    hits[i] = fabsf(x[first + i]) >= border;
            else
                for (int i = 0; i < size; i++)
                    hits[i] = fabsf(x[first + i]) >= border;
            for (int e = FLAGGED / 8 - 1; e >= 0; e--)
                for (uint64_t left = eights[e]; left;) {
                    const int byte = (63 - __builtin_clzll(left)) / 8;
                    const int64_t i = first + 8 * e + byte;
                    magnitudes[count] = fabsf(x[i]);
                    places[count++] = (int32_t)i;
                    left ^= (uint64_t)1 << 8 * byte;
                }
            bits ^= (uint32_t)1 << block;
        }
    }
    return count;
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
