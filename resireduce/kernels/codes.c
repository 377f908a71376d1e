/* Residuals of 8 and 4 bits: encoding at random and decoding of float32, with the bits of the plain form in torch. */

#include <math.h>
#include <float.h>
#include <stdint.h>
#include <string.h>

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
static void draw_all(struct twister *from)
{
    uint32_t *s = from->state;
    for (int i = 0; i < WORDS - AHEAD; i++)
        s[i] = s[i + AHEAD] ^ twisted(s[i], s[i + 1]);
    for (int i = WORDS - AHEAD; i < WORDS - 1; i++)
        s[i] = s[i + AHEAD - WORDS] ^ twisted(s[i], s[i + 1]);
    s[WORDS - 1] = s[AHEAD - 1] ^ twisted(s[WORDS - 1], s[0]);
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
FOR_EACH_PROCESSOR
static float round_block(const float *x, int64_t count, float largest, const float *drawn, int32_t *codes)
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

/* Store x[0..n) as codes of `bits` (8, or 4: two in a byte, the first below) and a scale for each block. */
FOR_EACH_PROCESSOR
void resireduce_encode(const float *x, int64_t n, int bits, uint32_t seed_number, uint8_t *codes, float *scales)
{
    struct twister source;
    seed(&source, seed_number);
    const float largest = bits == 8 ? 127.0f : 7.0f;
    float drawn[BLOCK];
    int32_t rounded[BLOCK + 1];
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t count = n - start < BLOCK ? n - start : BLOCK;
        draw(&source, drawn, count);
        scales[start / BLOCK] = round_block(x + start, count, largest, drawn, rounded);
        if (bits == 8) {
            for (int64_t i = 0; i < count; i++)
                codes[start + i] = (uint8_t)rounded[i];
        } else {
            rounded[count] = -8; /* no partner: a byte whose upper half is zero */
            uint8_t *pairs = codes + start / 2;
            for (int64_t i = 0; i < (count + 1) / 2; i++)
                pairs[i] = (uint8_t)((rounded[2 * i] + 8) | (rounded[2 * i + 1] + 8) << 4);
        }
    }
}

/* Add what is stored to x[0..n). */
FOR_EACH_PROCESSOR
void resireduce_decode_add(float *x, int64_t n, int bits, const uint8_t *codes, const float *scales)
{
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t count = n - start < BLOCK ? n - start : BLOCK;
        const float scale = scales[start / BLOCK];
        float decoded[BLOCK];
        if (bits == 8) {
            for (int64_t i = 0; i < count; i++)
                decoded[i] = (float)(int8_t)codes[start + i];
        } else {
            const uint8_t *pairs = codes + start / 2;
            for (int64_t i = 0; i < (count + 1) / 2; i++) {
                decoded[2 * i] = (float)((pairs[i] & 15) - 8);
                decoded[2 * i + 1] = (float)((pairs[i] >> 4) - 8);
            }
        }
        for (int64_t i = 0; i < count; i++)
            x[start + i] += decoded[i] * scale;
    }
}
