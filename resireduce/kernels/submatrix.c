/* The elements of a float32 matrix where some rows cross some columns, with the bits of whole rows in torch. */

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

enum { TILE = 256 };

/* Where some rows of a float32 matrix cross some columns, and values that are added there or copied from there. */
struct crossing {
    float *matrix;
    float *values;                 /* of each row, those of its columns */
    const int32_t *rows, *columns; /* ascending */
    int64_t height, width, n_rows, n_columns;
};

static int are_ascending(const int32_t *numbers, int64_t count, int64_t below)
{
    for (int64_t i = 0; i < count; i++)
        if (numbers[i] < 0 || numbers[i] >= below || (i > 0 && numbers[i] <= numbers[i - 1]))
            return 0;
    return 1;
}

/* Add the values of row number r of these to x[0..stop - start), a tile at most: the columns from `start` to before
 * `stop`, of which number j of these is the first. Return which is the first behind them. Zero is added to the other
 * elements: a negative zero becomes a positive one, as in the plain form. */
static inline __attribute__((always_inline)) int64_t add_tile(const struct crossing *at, int64_t r, int64_t j,
                                                              int64_t start, int64_t stop, float *restrict x)
{
    const int32_t *restrict columns = at->columns;
    const float *restrict values = at->values + r * at->n_columns;
    float tile[TILE] = {0};
    for (; j < at->n_columns && columns[j] < stop; j++)
        tile[columns[j] - start] = values[j];
    for (int64_t c = 0; c < stop - start; c++)
        x[c] += tile[c];
    return j;
}

/* Norms of the rows and columns of a float32 matrix in one pass, added up in the order of torch's. */

enum { ROWS = 16, LINE = 64 / sizeof(int64_t) };

/* Take the elements of a square's first half and of its second in turn: their numbers' bits move up by one. */
static inline __attribute__((always_inline)) void interleave(const float *restrict from, float *restrict to)
{
    for (int i = 0; i < ROWS * ROWS / 2; i++) {
        to[2 * i] = from[i];
        to[2 * i + 1] = from[i + ROWS * ROWS / 2];
    }
}

/* Add the magnitudes of a square of ROWS rows to the sums of each row and of each column: element by element, of all rows
 * side by side, and of all columns. */
static inline __attribute__((always_inline)) void add_square(const float *square, int64_t columns, float *by_row,
                                                             float *by_column)
{
    float one[ROWS * ROWS], other[ROWS * ROWS], of_columns[ROWS];
    memcpy(of_columns, by_column, sizeof of_columns);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < ROWS; c++)
            one[r * ROWS + c] = fabsf(square[r * columns + c]);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < ROWS; c++)
            of_columns[c] += one[r * ROWS + c];
    memcpy(by_column, of_columns, sizeof of_columns);
    interleave(one, other);
    interleave(other, one);
    interleave(one, other);
    interleave(other, one); /* four bits up: rows are columns now */
    for (int c = 0; c < ROWS; c++)
        for (int r = 0; r < ROWS; r++)
            by_row[r] += one[c * ROWS + r];
}

/* Add the magnitudes of ROWS rows, `width` elements of each, to the norms of these rows and columns. Each sum goes on
 * element by element: sixteen at a time keep the processor busy, as one alone would wait for each addition. */
FOR_EACH_PROCESSOR
static void add_band(const float *matrix, int64_t columns, int64_t width, float *by_row, float *by_column)
{
    float sums[ROWS];
    memcpy(sums, by_row, sizeof sums);
    int64_t c = 0;
    for (; c + ROWS <= width; c += ROWS)
        add_square(matrix + c, columns, sums, by_column + c);
    for (; c < width; c++)
        for (int r = 0; r < ROWS; r++) {
            const float magnitude = fabsf(matrix[r * columns + c]);
            sums[r] += magnitude;
            by_column[c] += magnitude;
        }
    memcpy(by_row, sums, sizeof sums);
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
    const int64_t squares = (norms->columns + ROWS - 1) / ROWS, start = squares * strip / norms->strips * ROWS;
    return start < norms->columns ? start : norms->columns;
}

/* Go through a strip, always behind the one to its left: the sum of a row goes on where that has come to its end. */
static void add_strip(const void *task, int64_t strip, int64_t stop)
{
    const struct norms *norms = task;
    const int64_t first = strip_start(norms, strip), width = strip_start(norms, stop) - first;
    for (int64_t r = 0; r < norms->rows; r += ROWS) {
        const int64_t rows = norms->rows - r < ROWS ? norms->rows - r : ROWS;
        const float *band = norms->matrix + r * norms->columns + first;
        while (strip > 0 && __atomic_load_n(norms->done[strip - 1], __ATOMIC_ACQUIRE) <= r)
            sched_yield();
        if (rows == ROWS)
            add_band(band, norms->columns, width, norms->by_row + r, norms->by_column + first);
        else
            add_rest(band, norms->columns, rows, width, norms->by_row + r, norms->by_column + first);
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
    resireduce_in_threads(add_strip, &norms, strips, 1, strips);
}

FOR_EACH_PROCESSOR
static void add_rows(const void *given, int64_t first, int64_t last)
{
    const struct crossing *at = given;
    for (int64_t r = first; r < last; r++) {
        float *row = at->matrix + at->rows[r] * at->width;
        for (int64_t start = 0, j = 0; start < at->width; start += TILE)
            j = add_tile(at, r, j, start, at->width - start < TILE ? at->width : start + TILE, row + start);
    }
}

/* Copy the elements of each row one by one, and have those of the next at hand: rows that are kept lie apart. */
FOR_EACH_PROCESSOR
static void cut_rows(const void *given, int64_t first, int64_t last)
{
    const struct crossing *at = given;
    for (int64_t r = first; r < last; r++) {
        const float *row = at->matrix + at->rows[r] * at->width;
        const float *next = at->matrix + at->rows[r + 1 < last ? r + 1 : r] * at->width;
        float *restrict cut = at->values + r * at->n_columns;
        for (int64_t j = 0; j < at->n_columns; j++) {
            __builtin_prefetch(next + at->columns[j]);
            cut[j] = row[at->columns[j]];
        }
    }
}

static int go_through(part_of *run, const struct crossing *at, int threads)
{
    if (!are_ascending(at->rows, at->n_rows, at->height) || !are_ascending(at->columns, at->n_columns, at->width))
        return 0;
    resireduce_in_threads(run, at, at->n_rows, 1, threads);
    return 1;
}

/* Add `values`, a row of n_columns for each of n_rows rows, to where these cross columns of a matrix (height x width).
 * Return 0, with nothing done, if numbers of rows or columns are not ascending ones of the matrix. */
int resireduce_add_crossing(float *matrix, int64_t height, int64_t width, const int32_t *rows, int64_t n_rows,
                            const int32_t *columns, int64_t n_columns, float *values, int threads)
{
    const struct crossing at = {matrix, values, rows, columns, height, width, n_rows, n_columns};
    return go_through(add_rows, &at, threads);
}

/* Copy the elements where rows cross columns into `values`. Return 0 as above. */
int resireduce_cut_crossing(float *matrix, int64_t height, int64_t width, const int32_t *rows, int64_t n_rows,
                            const int32_t *columns, int64_t n_columns, float *values, int threads)
{
    const struct crossing at = {matrix, values, rows, columns, height, width, n_rows, n_columns};
    return go_through(cut_rows, &at, threads);
}
