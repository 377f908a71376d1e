/* Residuals of 8 and 4 bits: encoding at random and decoding of float32, with the bits of the plain form in torch. */

#include <math.h>
#include <float.h>
#include <sched.h>

#include "threads.h"

enum { CODED = 64 /* numbers of a block */, WORDS = 624, AHEAD = 397, CHUNK = 156 * CODED };

/* The generator of torch on a CPU: Matsumoto and Nishimura, "Mersenne twister", TOMACS 1998, seeded with 32 bits. One
 * thread after the other makes the words of the next chunk of numbers, so that none is made twice. */
struct twister {
    uint32_t last[WORDS];
    int64_t next; /* number that has no word yet */
    int taken;    /* by a thread, for a moment */
};

INLINE uint32_t twisted(uint32_t high, uint32_t low)
{
    const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}

/* Make the words of the next chunk of `n` numbers, behind those before them; return its first number, `n` if none is left. */
INLINE int64_t take_chunk(struct twister *from, int64_t n, uint32_t *words)
{
    while (__atomic_exchange_n(&from->taken, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    const int64_t first = from->next, count = n - first < CHUNK ? n - first : CHUNK;
    memcpy(words, from->last, sizeof from->last);
    for (int64_t i = 0; i < count; i++)
        words[i + WORDS] = words[i + AHEAD] ^ twisted(words[i], words[i + 1]);
    memcpy(from->last, words + count, sizeof from->last);
    from->next += count;
    __atomic_store_n(&from->taken, 0, __ATOMIC_RELEASE);
    return first;
}

/* Return what torch draws from a word of a state: uniform on [0, 1), 24 bits. */
INLINE float drawn_from(uint32_t word)
{
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    word ^= word >> 18;
    return (float)(int32_t)(word & 0xffffffu) * 0x1p-24f;
}

/* A tensor and its codes. */
struct coded {
    float *x;
    int64_t n;
    int bits;
    uint8_t *codes; /* one in a byte; or two of 4 bits, the first below, and zeros above the last of an odd number */
    float *scales;  /* of each block */
    struct twister *source;
};

/* Encode the numbers from number `start` on, a block at most: each is rounded to a whole multiple of the block's scale, up
 * with the probability of what it is above. */
INLINE void encode_block(const struct coded *to, int64_t start, int64_t count, const uint32_t *words)
{
    const float *x = to->x + start, largest = to->bits == 8 ? 127.0f : 7.0f;
    const float scale = to->scales[start / CODED] = largest_of(x, count) / largest;
    const float step = scale > FLT_MIN ? scale : FLT_MIN;
    uint8_t *restrict bytes = to->codes + start * to->bits / 8, halves[CODED + 1];
    int32_t codes[CODED];
    for (int64_t i = 0; i < count; i++) {
        float code = floorf(x[i] / step + drawn_from(words[i]));
        code = code < -largest ? -largest : code;
        codes[i] = (int32_t)(code > largest ? largest : code);
    }
    if (to->bits == 8)
        for (int64_t i = 0; i < count; i++)
            bytes[i] = (uint8_t)codes[i];
    else {
        for (int64_t i = 0; i < count; i++)
            halves[i] = (uint8_t)(codes[i] + 8);
        halves[count] = 0;
        for (int64_t i = 0; i < (count + 1) / 2; i++)
            bytes[i] = (uint8_t)(halves[2 * i] | halves[2 * i + 1] << 4);
    }
}

/* Encode one chunk after the other, as long as there are some that no other thread has taken. */
FOR_EACH_PROCESSOR
static void encode(const void *task, int64_t lane, int64_t last_lane)
{
    (void)lane, (void)last_lane;
    const struct coded *to = task;
    uint32_t words[WORDS + CHUNK];
    for (int64_t start; (start = take_chunk(to->source, to->n, words)) < to->n;) {
        const int64_t stop = to->n - start < CHUNK ? to->n : start + CHUNK;
        const uint32_t *own = words + WORDS;
        for (; start < stop; start += CODED, own += CODED)
            encode_block(to, start, stop - start < CODED ? stop - start : CODED, own);
    }
}

FOR_EACH_PROCESSOR
static void decode_add(const void *task, int64_t start, int64_t stop)
{
    const struct coded *from = task;
    for (; start < stop; start += CODED) {
        const int64_t count = stop - start < CODED ? stop - start : CODED;
        const uint8_t *bytes = from->codes + start * from->bits / 8;
        const float scale = from->scales[start / CODED];
        float *restrict x = from->x + start, decoded[CODED];
        if (from->bits == 8)
            for (int64_t i = 0; i < count; i++)
                decoded[i] = (float)(int8_t)bytes[i];
        else
            for (int64_t i = 0; i < (count + 1) / 2; i++) {
                decoded[2 * i] = (float)((bytes[i] & 15) - 8);
                decoded[2 * i + 1] = (float)((bytes[i] >> 4) - 8);
            }
        for (int64_t i = 0; i < count; i++)
            x[i] += decoded[i] * scale;
    }
}

/* Store x[0..n) as codes of 8 or 4 `bits` and a scale for each block: the same in any number of threads. */
void resireduce_encode(float *x, int64_t n, int bits, int threads, uint32_t number, uint8_t *codes, float *scales)
{
    struct twister source = {{number}, 0, 0};
    for (uint32_t i = 1; i < WORDS; i++)
        source.last[i] = 1812433253u * (source.last[i - 1] ^ (source.last[i - 1] >> 30)) + i;
    const struct coded to = {x, n, bits, codes, scales, &source};
    resireduce_in_threads(encode, &to, threads, 1, threads);
}

/* Add what is stored to x[0..n). */
void resireduce_decode_add(float *x, int64_t n, int bits, int threads, uint8_t *codes, float *scales)
{
    const struct coded from = {x, n, bits, codes, scales, 0};
    resireduce_in_threads(decode_add, &from, n, CODED, threads);
}
