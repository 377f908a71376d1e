/* Norms of the rows and columns of a float32 matrix, and its elements where some rows cross some columns. */

#include <math.h>

#include "threads.h"

enum { ROWS = 16, BAND = 1 << 15 };

struct norms {
    const float *matrix;
    int64_t rows, columns;
    float *by_row, *by_column; /* zeros at the start */
};

/* Take the elements of a square's first half and of its second in turn: their numbers' bits move up by one. */
INLINE void interleave(const float *restrict from, float *restrict to)
{
    for (int i = 0; i < ROWS * ROWS / 2; i++) {
        to[2 * i] = from[i];
        to[2 * i + 1] = from[i + ROWS * ROWS / 2];
    }
}

/* Add the magnitudes of ROWS rows to their sums, element by element: rows side by side keep the processor busy, as one
 * alone would wait for each addition, and squares are transposed, as it adds numbers that lie together. */
INLINE void add_side_by_side(const float *rows, int64_t columns, float *by_row)
{
    float sums[ROWS] = {0}, one[ROWS * ROWS], other[ROWS * ROWS];
    int64_t c = 0;
    for (; c + ROWS <= columns; c += ROWS) {
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < ROWS; i++)
                one[r * ROWS + i] = fabsf(rows[r * columns + c + i]);
        interleave(one, other);
        interleave(other, one);
        interleave(one, other);
        interleave(other, one); /* four bits up: rows are columns now */
        for (int i = 0; i < ROWS; i++)
            for (int r = 0; r < ROWS; r++)
                sums[r] += one[i * ROWS + r];
    }
    for (; c < columns; c++)
        for (int r = 0; r < ROWS; r++)
            sums[r] += fabsf(rows[r * columns + c]);
    memcpy(by_row, sums, sizeof sums);
}

FOR_EACH_PROCESSOR
static void add_rows(const void *task, int64_t start, int64_t stop)
{
    const struct norms *norms = task;
    for (; stop - start >= ROWS; start += ROWS)
        add_side_by_side(norms->matrix + start * norms->columns, norms->columns, norms->by_row + start);
    for (; start < stop; start++)
        for (int64_t c = 0; c < norms->columns; c++)
            norms->by_row[start] += fabsf(norms->matrix[start * norms->columns + c]);
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

/* Add the magnitudes of matrix (rows x columns, contiguous) to by_row and by_column, zeros at the start, in the order of
 * torch's norms: the same in any number of threads. */
void resireduce_l1_norms(const float *matrix, int64_t rows, int64_t columns, int threads, float *by_row,
                         float *by_column)
{
    const int64_t band = (BAND / columns + 1) * ROWS;
    for (int64_t first = 0; first < rows; first += band) { /* a band is read twice, and lies in a cache meanwhile */
        const int64_t count = rows - first < band ? rows - first : band;
        const struct norms norms = {matrix + first * columns, count, columns, by_row + first, by_column};
        resireduce_in_threads(add_rows, &norms, count, ROWS, threads);
        resireduce_in_threads(add_columns, &norms, columns, 16, threads);
    }
}

struct crossing {
    float *matrix;
    int64_t width, count; /* of all columns, and of those that cross */
    const int32_t *rows, *columns;
    float *values; /* of each row, those of its columns */
    int adds;
};

FOR_EACH_PROCESSOR
static void cross(const void *task, int64_t start, int64_t stop)
{
    const struct crossing *given = task;
    const int32_t *restrict columns = given->columns;
    for (; start < stop; start++) {
        float *restrict row = given->matrix + given->rows[start] * given->width;
        float *restrict values = given->values + start * given->count;
        if (given->adds)
            for (int64_t i = 0; i < given->count; i++)
                row[columns[i]] += values[i];
        else
            for (int64_t i = 0; i < given->count; i++)
                values[i] = row[columns[i]];
    }
}

/* Where `n` rows cross `count` columns of matrix (height x width, contiguous), add `values` to it, or copy it to them.
 * Return 1; 0, and nothing is done, if these numbers do not ascend or are none of the matrix. */
int resireduce_cross(float *matrix, int64_t height, int64_t width, const int32_t *rows, int64_t n,
                     const int32_t *columns, int64_t count, float *values, int adds, int threads)
{
    const struct crossing task = {matrix, width, count, rows, columns, values, adds};
    if (!ascend(rows, n, height) || !ascend(columns, count, width))
        return 0;
    resireduce_in_threads(cross, &task, n, 1, threads);
    return 1;
}
