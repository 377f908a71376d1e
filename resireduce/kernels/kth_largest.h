/* The k-th largest of some magnitudes, by their bits. */

#pragma once

#include <stdint.h>
#include <string.h>

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
