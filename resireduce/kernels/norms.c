/* Norms of float32 tensors, added up in the order of the plain forms in ops.py, and sums weighted by them. */

#include <float.h>
#include <math.h>

#include "threads.h"

enum { LANES = 16, AHEAD = 4096, PIECE = 1 << 16, TILE = 512 };

/* Sixteen sums of magnitudes and sixteen of squares. */
struct sums {
    double magnitudes[LANES], squares[LANES];
};

struct pieces {
    const float *x;
    struct sums *sums; /* of each piece */
};

/* Add magnitudes and squares of each piece: element i to the sums of number i % 16. The square of a float32 is exact in
 * float64. */
FOR_EACH_PROCESSOR
static void add_pieces(const void *task, int64_t start, int64_t stop)
{
    const struct pieces *pieces = task;
    for (; start < stop; start += PIECE) {
        const float *x = pieces->x + start, *const end = pieces->x + (stop - start < PIECE ? stop : start + PIECE);
        struct sums so_far = {0}; /* memory of its own: the compiler knows that x is not changed */
        for (; end - x >= LANES; x += LANES) {
            __builtin_prefetch(x + AHEAD);
            for (int lane = 0; lane < LANES; lane++) {
                const double value = x[lane];
                so_far.magnitudes[lane] += fabs(value);
                so_far.squares[lane] += value * value;
            }
        }
        for (int lane = 0; lane < end - x; lane++) {
            const double value = x[lane];
            so_far.magnitudes[lane] += fabs(value);
            so_far.squares[lane] += value * value;
        }
        pieces->sums[start / PIECE] = so_far;
    }
}

/* Write the L1 and the L2 norm of x[0..n) to `norms`, by way of the `sums` of each piece, the last of which may be shorter:
 * the same in any number of threads. */
void resireduce_norms(const float *x, int64_t n, int threads, struct sums *sums, float *norms)
{
    *sums = (struct sums){0};
    const struct pieces task = {x, sums};
    resireduce_in_threads(add_pieces, &task, n, PIECE, threads);
    for (int64_t piece = 1; piece * PIECE < n; piece++)
        for (int lane = 0; lane < LANES; lane++) {
            sums->magnitudes[lane] += sums[piece].magnitudes[lane];
            sums->squares[lane] += sums[piece].squares[lane];
        }
    for (int half = LANES / 2; half; half /= 2) /* pairwise */
        for (int lane = 0; lane < half; lane++) {
            sums->magnitudes[lane] += sums->magnitudes[lane + half];
            sums->squares[lane] += sums->squares[lane + half];
        }
    norms[0] = (float)sums->magnitudes[0];
    norms[1] = (float)sqrt(sums->squares[0]);
}

struct looked_at {
    const float *x;
    int is_spoilt;
};

/* Note whether an element is NaN or infinite. */
FOR_EACH_PROCESSOR
static void look_at(const void *task, int64_t start, int64_t stop)
{
    struct looked_at *all = (struct looked_at *)task;
    for (; start < stop; start += AHEAD)
        if (!(largest_of(all->x + start, stop - start < AHEAD ? stop - start : AHEAD) < INFINITY)) {
            __atomic_store_n(&all->is_spoilt, 1, __ATOMIC_RELAXED);
            return;
        }
}

/* Return whether no element of x[0..n) is NaN or infinite. */
int resireduce_is_finite(const float *x, int64_t n, int threads)
{
    struct looked_at task = {x, 0};
    resireduce_in_threads(look_at, &task, n, AHEAD, threads);
    return !task.is_spoilt;
}

/* What is folded into one sum. */
struct folded {
    float *into;
    const float *total; /* what has been folded before; 0: nothing */
    const float *const *errors; /* one at least */
    const float *weights;
    int64_t count;
    float divisor;
};

/* Go through all errors a tile at a time, which stays in a register or a cache. */
FOR_EACH_PROCESSOR
static void fold(const void *task, int64_t start, int64_t stop)
{
    const struct folded *given = task;
    float sums[TILE];
    for (; start < stop; start += TILE) {
        const int64_t size = stop - start < TILE ? stop - start : TILE;
        if (given->total)
            memcpy(sums, given->total + start, size * sizeof *sums);
        else
            for (int64_t i = 0; i < size; i++)
                sums[i] = given->errors[0][start + i] * given->weights[0];
        for (int64_t number = !given->total; number < given->count; number++) {
            const float *restrict error = given->errors[number] + start, weight = given->weights[number];
            for (int64_t i = 0; i < size; i++)
                sums[i] += error[i] * weight;
        }
        float *restrict into = given->into + start;
        if (given->divisor == 1)
            memcpy(into, sums, size * sizeof *sums);
        else
            for (int64_t i = 0; i < size; i++)
                into[i] = sums[i] / given->divisor;
    }
}

/* Write total[0..n), if there is one, and `count` errors, each times its weight, to `into`, which may be one of these; and
 * to `sum` the sum of weights, of which that of the total is there. A weight is phi |x|_1 / n + (1 - phi) |x|_2 / sqrt(n)
 * by an error's two norms, whose addresses follow those of errors, or 1 without. An average is divided by the sum, if that
 * is not zero. Products, sums and quotients are each rounded. */
void resireduce_fold(float *into, const float *total, const float *const *errors, int64_t count, int64_t n, double phi,
                     int is_average, int threads, float *sum)
{
    const float of_l1 = (float)phi, of_l2 = (float)(1 - phi), root = (float)sqrt((double)n);
    float weights[count];
    for (int64_t i = 0; i < count; i++) {
        const float *norms = errors[count + i];
        weights[i] = norms ? of_l1 * norms[0] / (float)n + of_l2 * norms[1] / root : 1;
        *sum = i || total ? *sum + weights[i] : weights[i];
    }
    const float divisor = !is_average ? 1 : *sum < FLT_MIN ? FLT_MIN : *sum;
    const struct folded task = {into, total, errors, weights, count, divisor};
    resireduce_in_threads(fold, &task, n, TILE, threads);
}
