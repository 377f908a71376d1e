/* Norms of float32 tensors, of rows and of columns, added up in the order of the plain forms in ops.py; weighted sums. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

enum { LANES = 16, AHEAD = 4096, PIECE = 1 << 16, ROWS = 8 };

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

/* Write the L1 and the L2 norm of x[0..n), by way of `sums` of each piece, zeros at the start, the last of which may be
 * shorter: the same in any number of threads; and `phi` |x|_1 / n + (1 - phi) |x|_2 / sqrt(n). */
void resireduce_norms(const float *x, int64_t n, int threads, double phi, struct sums *sums, float *norms)
{
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
    norms[2] = (float)phi * norms[0] / (float)n + (float)(1 - phi) * norms[1] / (float)sqrt((double)n);
}

struct looked_at {
    const float *x;
    int is_spoilt;
};

/* Note whether an element is NaN or infinite: whether its magnitude, in the order of the bits, is infinity's or more. */
FOR_EACH_PROCESSOR
static void look_at(const void *task, int64_t start, int64_t stop)
{
    struct looked_at *all = (struct looked_at *)task;
    for (int32_t largest = 0; start < stop && largest < 0x7f800000;) {
        const int64_t end = stop - start < AHEAD ? stop : start + AHEAD;
        for (; start < end; start++) {
            int32_t bits;
            memcpy(&bits, all->x + start, sizeof bits);
            bits &= 0x7fffffff;
            largest = bits > largest ? bits : largest;
        }
        if (largest >= 0x7f800000)
            __atomic_store_n(&all->is_spoilt, 1, __ATOMIC_RELAXED);
    }
}

/* Return whether no element of x[0..n) is NaN or infinite. */
int resireduce_is_finite(const float *x, int64_t n, int threads)
{
    struct looked_at task = {x, 0};
    resireduce_in_threads(look_at, &task, n, AHEAD, threads);
    return !task.is_spoilt;
}

struct weighted {
    float *total;
    const float *values;
    float weight;
};

FOR_EACH_PROCESSOR
static void add_weighted(const void *task, int64_t start, int64_t stop)
{
    const struct weighted *given = task;
    float *restrict total = given->total;
    const float *restrict values = given->values, weight = given->weight;
    for (int64_t i = start; i < stop; i++)
        total[i] += values[i] * weight;
}

/* Add `weight` x values[0..n) to total[0..n); products and sums are each rounded. */
void resireduce_add_weighted(float *total, const float *values, const float *weight, int64_t n, int threads)
{
    const struct weighted task = {total, values, *weight};
    resireduce_in_threads(add_weighted, &task, n, 16, threads);
}

/* The norms of a float32 matrix, added up in the order of torch's. */
struct norms {
    const float *matrix;
    int64_t rows, columns;
    float *by_row, *by_column; /* zeros at the start */
};

/* Add the magnitudes of `count` rows to their sums, element by element: rows side by side keep the processor busy, as one
 * alone would wait for each addition. */
INLINE void add_side_by_side(const struct norms *norms, int64_t first, int count)
{
    float sums[ROWS] = {0};
    for (int64_t c = 0; c < norms->columns; c++)
        for (int r = 0; r < count; r++)
            sums[r] += fabsf(norms->matrix[(first + r) * norms->columns + c]);
    memcpy(norms->by_row + first, sums, count * sizeof *sums);
}

FOR_EACH_PROCESSOR
static void add_rows(const void *task, int64_t start, int64_t stop)
{
    for (; stop - start >= ROWS; start += ROWS)
        add_side_by_side(task, start, ROWS);
    add_side_by_side(task, start, (int)(stop - start));
}

FOR_EACH_PROCESSOR
static void add_columns(const void *task, int64_t start, int64_t stop)
{
    const struct norms *norms = task;
    float *restrict sums = norms->by_column;
    for (int64_t r = 0; r < norms->rows; r++)
        for (int64_t c = start; c < stop; c++)
            sums[c] += fabsf(norms->matrix[r * norms->columns + c]);
}

/* Add the magnitudes of matrix (rows x columns, contiguous) to by_row and by_column, zeros at the start: the same in any
 * number of threads. */
void resireduce_l1_norms(const float *matrix, int64_t rows, int64_t columns, int threads, float *by_row,
                         float *by_column)
{
    const struct norms norms = {matrix, rows, columns, by_row, by_column};
    resireduce_in_threads(add_rows, &norms, rows, ROWS, threads);
    resireduce_in_threads(add_columns, &norms, columns, 16, threads);
}
