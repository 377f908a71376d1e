/* Which blocks of elements hold one whose magnitude reaches a border: a bit for each block of 32. */

#include <stdint.h>
#include <string.h>

enum { FLAGGED = 32, WORD = 32 * FLAGGED };

/* Return the bits of the blocks of a word, of whose elements hits[i] is 1 for those that reach the border. */
static inline __attribute__((always_inline)) uint32_t flags_of(const uint8_t hits[WORD])
{
    uint32_t flags = 0;
    for (int block = 0; block < 32; block++) {
        uint64_t eights[FLAGGED / 8];
        memcpy(eights, hits + block * FLAGGED, sizeof eights);
        flags |= (uint32_t)((eights[0] | eights[1] | eights[2] | eights[3]) != 0) << block;
    }
    return flags;
}
