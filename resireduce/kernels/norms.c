/* Norms of float32 tensors in one pass, added up in the order of the plain forms in norms.py. */

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

enum { ROWS = 16, COLUMNS = 128, LANES = 16, AHEAD = 4096, LINE = 64 / sizeof(int64_t) };

/* Take the elements of a square's first half and of its second in turn: their numbers' bits move up by one. */
static inline __attribute__((always_inline)) void interleave(const float *restrict from, float *restrict to)
{
    for (int i = 0; i < ROWS * ROWS / 2; i++) {
        to[2 * i] = from[i];
        to[2 * i + 1] = from[i + ROWS * ROWS / 2];
    }
}

/* Add the magnitudes of a square of ROWS rows to the sums of each: element by element, of all rows side by side. */
static inline __attribute__((always_inline)) void add_square(const float *square, int64_t columns, float *sums)
{
    float one[ROWS * ROWS], other[ROWS * ROWS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < ROWS; c++)
            one[r * ROWS + c] = fabsf(square[r * columns + c]);
    interleave(one, other);
    interleave(other, one);
    interleave(one, other);
    interleave(other, one); /* four bits up: rows are columns now */
    for (int c = 0; c < ROWS; c++)
        for (int r = 0; r < ROWS; r++)
            sums[r] += one[c * ROWS + r];
}

/* Add the magnitudes of ROWS rows, `width` elements of each, to the norms of these rows and columns. Each sum goes on
 * element by element: sixteen at a time keep the processor busy, as one alone would wait for each addition. What comes
 * next, from `next` on, is fetched meanwhile. */
FOR_EACH_PROCESSOR
static void add_tile(const float *matrix, const float *next, int64_t columns, int64_t width, float *restrict by_row,
                     float *restrict by_column)
{
    float sums[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const float *row = matrix + r * columns;
        for (int64_t c = 0; c < width; c += 64 / sizeof(float))
            __builtin_prefetch(next + r * columns + c);
        for (int64_t c = 0; c < width; c++)
            by_column[c] += fabsf(row[c]);
        sums[r] = by_row[r];
    }
    int64_t c = 0;
    for (; c + ROWS <= width; c += ROWS)
        add_square(matrix + c, columns, sums);
    for (; c < width; c++)
        for (int r = 0; r < ROWS; r++)
            sums[r] += fabsf(matrix[r * columns + c]);
    for (int r = 0; r < ROWS; r++)
        by_row[r] = sums[r];
}

/* Add the magnitudes of fewer than ROWS rows in the same order. */
static void add_rest(const float *matrix, int64_t columns, int64_t rows, int64_t width, float *by_row, float *by_column)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < width; c++) {
            const float magnitude = fabsf(matrix[r * columns + c]);
            by_row[r] += magnitude;
            by_column[c] += magnitude;
        }
}

struct norms {
    const float *matrix;
    int64_t rows, columns;
    float *by_row, *by_column;
    int strips;         /* of columns: each strip is gone through by one thread */
    int64_t (*done)[LINE]; /* rows that are done of each strip, in cache lines of their own */
};

static int64_t strip_start(const struct norms *norms, int64_t strip)
{
    const int64_t tiles = (norms->columns + COLUMNS - 1) / COLUMNS, start = tiles * strip / norms->strips * COLUMNS;
    return start < norms->columns ? start : norms->columns;
}

/* Go through a strip, always behind the one to its left: the sum of a row goes on where that has come to its end. */
static void add_strip(const void *task, int64_t strip, int64_t stop)
{
    const struct norms *norms = task;
    const int64_t first = strip_start(norms, strip), last = strip_start(norms, stop);
    for (int64_t r = 0; r < norms->rows; r += ROWS) {
        const int64_t rows = norms->rows - r < ROWS ? norms->rows - r : ROWS;
        const float *below = norms->matrix + (r + rows) * norms->columns + first;
        while (strip > 0 && __atomic_load_n(norms->done[strip - 1], __ATOMIC_ACQUIRE) <= r)
            sched_yield();
        for (int64_t c = first; c < last; c += COLUMNS) {
            const float *tile = norms->matrix + r * norms->columns + c;
            const int64_t width = last - c < COLUMNS ? last - c : COLUMNS;
            if (rows == ROWS)
                add_tile(tile, c + COLUMNS < last ? tile + COLUMNS : below, norms->columns, width, norms->by_row + r,
                         norms->by_column + c);
            else
                add_rest(tile, norms->columns, rows, width, norms->by_row + r, norms->by_column + c);
        }
        __atomic_store_n(norms->done[strip], r + rows, __ATOMIC_RELEASE);
    }
}

/* Add the magnitudes of matrix (rows x columns, contiguous) to by_row and by_column, which are zeros at the start: the
 * same in any number of threads. */
void resireduce_l1_norms(const float *matrix, int64_t rows, int64_t columns, int threads, float *by_row,
                         float *by_column)
{
    int64_t done[MOST_THREADS][LINE] = {0};
    const int most = threads < MOST_THREADS ? threads : MOST_THREADS, strips = most < 1 ? 1 : most;
    const struct norms norms = {matrix, rows, columns, by_row, by_column, strips, done};
    in_threads(add_strip, &norms, strips, 1, strips);
}

/* Add the magnitudes and the squares of x[0..n) to sixteen sums of each, which are zeros at the start: element i to
 * those of number i % 16. */
FOR_EACH_PROCESSOR
void resireduce_sums(const float *x, int64_t n, double *magnitudes, double *squares)
{
    double by_magnitude[LANES], by_square[LANES]; /* memory of their own: the compiler knows that x is not changed */
    memcpy(by_magnitude, magnitudes, sizeof by_magnitude);
    memcpy(by_square, squares, sizeof by_square);
    for (; n >= LANES; n -= LANES, x += LANES) {
        __builtin_prefetch(x + AHEAD);
        for (int lane = 0; lane < LANES; lane++) {
            const double value = x[lane];
            by_magnitude[lane] += fabs(value);
            by_square[lane] += value * value;
        }
    }
    for (int lane = 0; lane < n; lane++) {
        const double value = x[lane];
        by_magnitude[lane] += fabs(value);
        by_square[lane] += value * value;
    }
    memcpy(magnitudes, by_magnitude, sizeof by_magnitude);
    memcpy(squares, by_square, sizeof by_square);
}
