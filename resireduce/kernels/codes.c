/* Residuals of 8 and 4 bits: encoding at random and decoding of float32, with the bits of the plain form in torch. */

#include <math.h>
#include <float.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

enum { BLOCK = 64, WORDS = 624, AHEAD = 397 };

/* The generator of torch on a CPU: Matsumoto and Nishimura, "Mersenne twister", TOMACS 1998, seeded with 32 bits. */
struct twister {
    uint32_t state[WORDS];
    float numbers[WORDS]; /* what was drawn from the state: uniform on [0, 1), 24 bits each */
    int used;
};

static uint32_t twisted(uint32_t high, uint32_t low)
{
    const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}

FOR_EACH_PROCESSOR
static void twist(uint32_t *s)
{
    for (int i = 0; i < WORDS - AHEAD; i++)
        s[i] = s[i + AHEAD] ^ twisted(s[i], s[i + 1]);
    for (int i = WORDS - AHEAD; i < WORDS - 1; i++)
        s[i] = s[i + AHEAD - WORDS] ^ twisted(s[i], s[i + 1]);
    s[WORDS - 1] = s[AHEAD - 1] ^ twisted(s[WORDS - 1], s[0]);
}

FOR_EACH_PROCESSOR
static void draw_all(struct twister *from)
{
    const uint32_t *s = from->state;
    twist(from->state);
    for (int i = 0; i < WORDS; i++) {
        uint32_t word = s[i];
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c5680u;
        word ^= (word << 15) & 0xefc60000u;
        word ^= word >> 18;
        from->numbers[i] = (float)(int32_t)(word & 0xffffffu) * 0x1p-24f;
    }
    from->used = 0;
}

static void seed(struct twister *from, uint32_t number)
{
    from->state[0] = number;
    for (uint32_t i = 1; i < WORDS; i++)
        from->state[i] = 1812433253u * (from->state[i - 1] ^ (from->state[i - 1] >> 30)) + i;
    from->used = WORDS;
}

/* Go on to number `count` of those drawn after the seed: states before it are made without their numbers. */
static void skip(struct twister *from, int64_t count)
{
    for (int64_t states = count / WORDS; states > 0; states--)
        twist(from->state);
    if (count % WORDS) {
        draw_all(from);
        from->used = (int)(count % WORDS);
    }
}

static void draw(struct twister *from, float *numbers, int64_t count)
{
    while (count > 0) {
        if (from->used == WORDS)
            draw_all(from);
        const int64_t some = count < WORDS - from->used ? count : WORDS - from->used;
        memcpy(numbers, from->numbers + from->used, some * sizeof *numbers);
        numbers += some;
        count -= some;
        from->used += (int)some;
    }
}

/* Round the `count` numbers of a block, at most BLOCK, to whole multiples of a scale; return the scale. */
static inline __attribute__((always_inline)) float round_block(const float *x, int64_t count, float largest,
                                                               const float *drawn, int32_t *codes)
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
    const float scale = magnitude / largest, step = scale > FLT_MIN ? scale : FLT_MIN;
    for (int64_t i = 0; i < count; i++) {
        float code = floorf(x[i] / step + drawn[i]);
        code = code < -largest ? -largest : code;
        codes[i] = (int32_t)(code > largest ? largest : code);
    }
    return scale;
}

struct stored {
    float *x; /* only read, where it is stored */
    int bits;
    uint32_t seed;
    uint8_t *codes;
    float *scales;
};

/* Write `count` codes, a byte each; or two to a byte, the first below, and zeros above the last of an odd count. */
static inline __attribute__((always_inline)) void pack(const int32_t *restrict codes, int64_t count, int bits,
                                                       uint8_t *restrict bytes)
{
    uint8_t halves[BLOCK + 1];
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

static inline __attribute__((always_inline)) void encode_block(const struct stored *to, int64_t start, int64_t count,
                                                               struct twister *source)
{
    float drawn[BLOCK];
    int32_t codes[BLOCK];
    draw(source, drawn, count);
    to->scales[start / BLOCK] = round_block(to->x + start, count, to->bits == 8 ? 127.0f : 7.0f, drawn, codes);
    pack(codes, count, to->bits, to->codes + start * to->bits / 8);
}

FOR_EACH_PROCESSOR
static void encode(const void *task, int64_t first, int64_t stop)
{
    struct twister source;
    seed(&source, ((const struct stored *)task)->seed);
    skip(&source, first);
    for (int64_t start = first; start < stop; start += BLOCK)
        if (stop - start < BLOCK)
            encode_block(task, start, stop - start, &source);
        else
            encode_block(task, start, BLOCK, &source);
}

static inline __attribute__((always_inline)) void decode_block(const struct stored *from, int64_t start, int64_t count)
{
    const uint8_t *codes = from->codes + start * from->bits / 8;
    const float scale = from->scales[start / BLOCK];
    float *restrict x = from->x + start;
    float decoded[BLOCK];
    if (from->bits == 8)
        for (int64_t i = 0; i < count; i++)
            decoded[i] = (float)(int8_t)codes[i];
    else
        for (int64_t i = 0; i < (count + 1) / 2; i++) {
            decoded[2 * i] = (float)((codes[i] & 15) - 8);
            decoded[2 * i + 1] = (float)((codes[i] >> 4) - 8);
        }
    for (int64_t i = 0; i < count; i++)
        x[i] += decoded[i] * scale;
}

FOR_EACH_PROCESSOR
static void decode_add(const void *task, int64_t first, int64_t stop)
{
    for (int64_t start = first; start < stop; start += BLOCK)
        decode_block(task, start, stop - start < BLOCK ? stop - start : BLOCK);
}

/* Store x[0..n) as codes of 8 or 4 `bits` and a scale for each block: the same in any number of threads. */
void resireduce_encode(float *x, int64_t n, int bits, int threads, uint32_t seed, uint8_t *codes, float *scales)
{
    const struct stored to = {x, bits, seed, codes, scales};
    in_threads(encode, &to, n, BLOCK, threads);
}

/* Add what is stored to x[0..n). */
void resireduce_decode_add(float *x, int64_t n, int bits, int threads, uint8_t *codes, float *scales)
{
    const struct stored from = {x, bits, 0, codes, scales};
    in_threads(decode_add, &from, n, BLOCK, threads);
}
