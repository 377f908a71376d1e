/* Norms of a float32 tensor, added up in the order of the plain form in norms.py. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

/* Sums of the magnitudes and of the squares of float32 numbers, sixteen of each. */

enum { LANES = 16, AHEAD = 4096 };

/* Sixteen sums of magnitudes and sixteen of squares. */
struct sums {
    double magnitudes[LANES], squares[LANES];
};

/* Add magnitudes and squares of x[0..n): element i to the sums of number i % 16. The square of a float32 is exact in
 * float64. */
FOR_EACH_PROCESSOR
static void add_elements(struct sums *sums, const float *x, int64_t n)
{
    struct sums so_far = *sums; /* memory of its own: the compiler knows that x is not changed */
    for (; n >= LANES; n -= LANES, x += LANES) {
        __builtin_prefetch(x + AHEAD);
        for (int lane = 0; lane < LANES; lane++) {
            const double value = x[lane];
            so_far.magnitudes[lane] += fabs(value);
            so_far.squares[lane] += value * value;
        }
    }
    for (int lane = 0; lane < n; lane++) {
        const double value = x[lane];
        so_far.magnitudes[lane] += fabs(value);
        so_far.squares[lane] += value * value;
    }
    *sums = so_far;
}

enum { PIECE = 1 << 16, AT_ONCE = 128 };

static void add_sums(struct sums *sums, const struct sums *more)
{
    for (int lane = 0; lane < LANES; lane++) {
        sums->magnitudes[lane] += more->magnitudes[lane];
        sums->squares[lane] += more->squares[lane];
    }
}

struct pieces {
    const float *x;
    struct sums *sums; /* of each piece, zeros at the start */
};

static void add_pieces(const void *task, int64_t first, int64_t stop)
{
    const struct pieces *pieces = task;
    for (int64_t piece = first; piece < stop; piece++)
        add_elements(pieces->sums + piece, pieces->x + piece * PIECE, PIECE);
}

/* Add whole pieces to `sums`, one after the other, whatever thread has gone through them. */
static void add_whole(struct sums *sums, const float *x, int64_t pieces, int threads)
{
    struct sums each[AT_ONCE];
    for (int64_t first = 0; first < pieces; first += AT_ONCE) {
        const int64_t count = pieces - first < AT_ONCE ? pieces - first : AT_ONCE;
        memset(each, 0, count * sizeof *each);
        const struct pieces task = {x + first * PIECE, each};
        resireduce_in_threads(add_pieces, &task, count, 1, threads);
        for (int64_t i = 0; i < count; i++)
            add_sums(sums, each + i);
    }
}

/* Form the sums of x[0..n). `sums`, zeros, get first those of all whole pieces, each formed for itself from zero on and
 * then added, and second those of the piece that is not complete: the same in any number of threads. */
void resireduce_sums(const float *x, int64_t n, int threads, struct sums *sums)
{
    const int64_t whole = n / PIECE, done = whole * PIECE;
    add_whole(sums, x, whole, threads);
    add_elements(sums + 1, x + done, n - done);
}

/* Write phi |x|_1 / n + rest |x|_2 / root of x[0..n) to `mean`, as norms.py forms it of float32 norms. */
void resireduce_mean_norm(const float *x, int64_t n, float phi, float rest, float root, int threads, float *mean)
{
    struct sums sums[2] = {0};
    resireduce_sums(x, n, threads, sums);
    add_sums(sums, sums + 1);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) {
            sums->magnitudes[lane] += sums->magnitudes[lane + half];
            sums->squares[lane] += sums->squares[lane + half];
        }
    const float l1 = sums->magnitudes[0], l2 = sqrt(sums->squares[0]);
    const float of_l1 = phi * l1 / n, of_l2 = rest * l2 / root;
    *mean = of_l1 + of_l2;
}
