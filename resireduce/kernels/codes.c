/* Residuals of 8 and 4 bits: encoding at random and decoding of float32, with the bits of the plain form in torch. */

#include <math.h>
#include <float.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

enum { CODED = 64 }; /* numbers of a block */

enum { WORDS = 624, AHEAD = 397, STATES = 16, CHUNK = STATES * WORDS }; /* a chunk has whole blocks */

/* The generator of torch on a CPU: Matsumoto and Nishimura, "Mersenne twister", TOMACS 1998, seeded with 32 bits. One
 * thread after the other takes the next chunk of its states, so that none is made twice. */
struct twister {
    uint32_t state[WORDS];
    int64_t chunk; /* the next */
    int taken;     /* by a thread, for a moment */
};

static uint32_t twisted(uint32_t high, uint32_t low)
{
    const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}

FOR_EACH_PROCESSOR
static void twist(const uint32_t *restrict from, uint32_t *restrict to)
{
    for (int i = 0; i < WORDS - AHEAD; i++)
        to[i] = from[i + AHEAD] ^ twisted(from[i], from[i + 1]);
    for (int i = WORDS - AHEAD; i < WORDS - 1; i++)
        to[i] = to[i + AHEAD - WORDS] ^ twisted(from[i], from[i + 1]);
    to[WORDS - 1] = to[AHEAD - 1] ^ twisted(from[WORDS - 1], to[0]);
}

static void seed(struct twister *from, uint32_t number)
{
    from->state[0] = number;
    for (uint32_t i = 1; i < WORDS; i++)
        from->state[i] = 1812433253u * (from->state[i - 1] ^ (from->state[i - 1] >> 30)) + i;
    from->chunk = from->taken = 0;
}

/* Make the states of the next chunk, each of the one before it; return its number, which is `chunks` if there are no more. */
static int64_t take_chunk(struct twister *from, int64_t chunks, uint32_t *words)
{
    while (__atomic_exchange_n(&from->taken, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    const int64_t chunk = from->chunk;
    if (chunk < chunks) {
        const uint32_t *last = from->state;
        for (int state = 0; state < STATES; state++, last = words, words += WORDS)
            twist(last, words);
        memcpy(from->state, last, sizeof from->state);
        from->chunk++;
    }
    __atomic_store_n(&from->taken, 0, __ATOMIC_RELEASE);
    return chunk;
}

/* Return what torch draws from a word of a state: uniform on [0, 1), 24 bits. */
static inline __attribute__((always_inline)) float drawn_from(uint32_t word)
{
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    word ^= word >> 18;
    return (float)(int32_t)(word & 0xffffffu) * 0x1p-24f;
}

/* Return the largest of `count` magnitudes. */
static inline __attribute__((always_inline)) float largest_of(const float *x, int64_t count)
{
    int32_t top = 0; /* magnitudes are in the order of their bits */
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    float magnitude;
    memcpy(&magnitude, &top, sizeof magnitude);
    return magnitude;
}

struct encoding {
    const float *x;
    int64_t n;
    int bits;
    uint8_t *codes;
    float *scales;
    struct twister *source;
};

/* Write `count` codes, a byte each; or two to a byte, the first below, and zeros above the last of an odd count. */
static inline __attribute__((always_inline)) void pack(const int32_t *restrict codes, int64_t count, int bits,
                                                       uint8_t *restrict bytes)
{
    uint8_t halves[CODED + 1];
    if (bits == 8)
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

/* Encode the numbers from number `start` on, a block at most: each is rounded to a whole multiple of the block's scale, up
 * with the probability of what it is above. */
static inline __attribute__((always_inline)) void encode_block(const struct encoding *to, int64_t start, int64_t count,
                                                               const uint32_t *words)
{
    const float *x = to->x + start, largest = to->bits == 8 ? 127.0f : 7.0f;
    const float scale = to->scales[start / CODED] = largest_of(x, count) / largest;
    const float step = scale > FLT_MIN ? scale : FLT_MIN;
    int32_t codes[CODED];
    for (int64_t i = 0; i < count; i++) {
        float code = floorf(x[i] / step + drawn_from(words[i]));
        code = code < -largest ? -largest : code;
        codes[i] = (int32_t)(code > largest ? largest : code);
    }
    pack(codes, count, to->bits, to->codes + start * to->bits / 8);
}

/* Encode the elements from number `first` on, a chunk at most. */
FOR_EACH_PROCESSOR
static void encode_chunk(const struct encoding *to, int64_t first, const uint32_t *words)
{
    const int64_t stop = to->n - first < CHUNK ? to->n : first + CHUNK;
    int64_t start = first;
    for (; stop - start >= CODED; start += CODED)
        encode_block(to, start, CODED, words + (start - first));
    if (start < stop)
        encode_block(to, start, stop - start, words + (start - first));
}

/* Encode one chunk after the other, as long as there are some that no other thread has taken. */
static void encode(const void *task, int64_t lane, int64_t stop)
{
    (void)lane, (void)stop;
    const struct encoding *to = task;
    const int64_t chunks = (to->n + CHUNK - 1) / CHUNK;
    uint32_t words[CHUNK];
    int64_t chunk;
    while ((chunk = take_chunk(to->source, chunks, words)) < chunks)
        encode_chunk(to, chunk * CHUNK, words);
}

/* What is added to x: numbers in 8 or 4 `bits` with a scale for each block. */
struct decoding {
    float *x;
    int bits;
    const uint8_t *bytes; /* one each, or two in a byte, the first below */
    const float *scales;  /* of each block */
};

/* Add those from number `start` on, a block at most. */
static inline __attribute__((always_inline)) void add_block(const struct decoding *from, int64_t start, int64_t count)
{
    const uint8_t *bytes = from->bytes + start * from->bits / 8;
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

FOR_EACH_PROCESSOR
static void decode_add(const void *task, int64_t start, int64_t stop)
{
    for (; stop - start >= CODED; start += CODED)
        add_block(task, start, CODED);
    if (start < stop)
        add_block(task, start, stop - start);
}

/* Store x[0..n) as codes of 8 or 4 `bits` and a scale for each block: the same in any number of threads. */
void resireduce_encode(const float *x, int64_t n, int bits, int threads, uint32_t first, uint8_t *codes, float *scales)
{
    struct twister source;
    const struct encoding to = {x, n, bits, codes, scales, &source};
    seed(&source, first);
    resireduce_in_threads(encode, &to, threads, 1, threads);
}

/* Add what is stored to x[0..n). */
void resireduce_decode_add(float *x, int64_t n, int bits, int threads, const uint8_t *codes, const float *scales)
{
    const struct decoding from = {x, bits, codes, scales};
    resireduce_in_threads(decode_add, &from, n, CODED, threads);
}
