/* Numbers in 8 and 4 bits with a scale for each block: what they stand for, in float32. */

#include <stdint.h>

enum { CODED = 64 }; /* numbers of a block */

struct codes {
    const uint8_t *bytes; /* one each, or two in a byte, the first below */
    const float *scales;  /* of each block */
    int bits;             /* 8 or 4; 0: there are none */
};

/* Add those from number `start` on, a block at most, to x[0..count). */
static inline __attribute__((always_inline)) void add_block(const struct codes *from, int64_t start, int64_t count,
                                                            float *restrict x)
{
    const uint8_t *bytes = from->bytes + start * from->bits / 8;
    const float scale = from->scales[start / CODED];
    float decoded[CODED];
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

/* Add those from number `start` on, which begins a block, to before `stop` to x[0..stop - start). */
static inline __attribute__((always_inline)) void add_decoded(const struct codes *from, int64_t start, int64_t stop,
                                                              float *x)
{
    for (; stop - start >= CODED; start += CODED, x += CODED)
        add_block(from, start, CODED, x);
    if (start < stop)
        add_block(from, start, stop - start, x);
}

/* Return number i. */
static inline float decoded_at(const struct codes *from, int64_t i)
{
    const int code = from->bits == 8 ? (int8_t)from->bytes[i] : (from->bytes[i / 2] >> 4 * (i % 2) & 15) - 8;
    return (float)code * from->scales[i / CODED];
}
