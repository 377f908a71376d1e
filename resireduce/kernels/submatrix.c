/* The elements of a float32 matrix where some rows cross some columns, with the bits of whole rows in torch. */

#include <stdint.h>

#include "threads.h"

enum { TILE = 256 };

struct crossing {
    float *matrix;
    int64_t width;
    const int32_t *rows, *columns; /* ascending */
    int64_t n_columns;
    float *values; /* of each row, those of its columns */
};

/* Have some of row r at hand when that is gone through: rows that are kept lie apart. */
static inline __attribute__((always_inline)) void fetch(const struct crossing *at, int64_t r, int64_t start,
                                                        int64_t stop)
{
    const float *row = at->matrix + at->rows[r] * at->width;
    for (int64_t c = start; c < at->width && c < stop; c += 64 / sizeof(float))
        __builtin_prefetch(row + c, 1);
}

/* Add the values of some rows. Zero is added to a row's other elements: a negative zero becomes a positive one. */
FOR_EACH_PROCESSOR
static void add_rows(const void *task, int64_t first, int64_t stop)
{
    const struct crossing *at = task;
    const int32_t *restrict columns = at->columns;
    for (int64_t r = first; r < stop; r++) {
        const float *restrict values = at->values + r * at->n_columns;
        float *row = at->matrix + at->rows[r] * at->width;
        for (int64_t start = 0, j = 0; start < at->width; start += TILE) {
            const int64_t width = at->width - start < TILE ? at->width - start : TILE;
            float tile[TILE] = {0}, *restrict x = row + start;
            fetch(at, r + 1 < stop ? r + 1 : r, start, start + TILE);
            for (; j < at->n_columns && columns[j] < start + width; j++)
                tile[columns[j] - start] = values[j];
            for (int64_t c = 0; c < width; c++)
                x[c] += tile[c];
        }
    }
}

FOR_EACH_PROCESSOR
static void cut_rows(const void *task, int64_t first, int64_t stop)
{
    const struct crossing *at = task;
    const int32_t *restrict columns = at->columns;
    for (int64_t r = first; r < stop; r++) {
        const float *row = at->matrix + at->rows[r] * at->width;
        float *restrict values = at->values + r * at->n_columns;
        const float *next = at->matrix + at->rows[r + 1 < stop ? r + 1 : r] * at->width;
        for (int64_t j = 0; j < at->n_columns; j++) {
            __builtin_prefetch(next + columns[j]);
            values[j] = row[columns[j]];
        }
    }
}

static int are_ascending(const int32_t *numbers, int64_t count, int64_t below)
{
    for (int64_t i = 0; i < count; i++)
        if (numbers[i] < 0 || numbers[i] >= below || (i > 0 && numbers[i] <= numbers[i - 1]))
            return 0;
    return 1;
}

static int go_through(part_of *run, const struct crossing *at, int64_t height, int64_t n_rows, int threads)
{
    if (!are_ascending(at->rows, n_rows, height) || !are_ascending(at->columns, at->n_columns, at->width))
        return 0;
    in_threads(run, at, n_rows, 1, threads);
    return 1;
}

/* Add `values`, a row of n_columns for each of n_rows rows, to where these cross columns of a matrix (height x width).
 * Return 0, with nothing done, if numbers of rows or columns are not ascending ones of the matrix. */
int resireduce_add_crossing(float *matrix, int64_t height, int64_t width, const int32_t *rows, int64_t n_rows,
                            const int32_t *columns, int64_t n_columns, float *values, int threads)
{
    const struct crossing at = {matrix, width, rows, columns, n_columns, values};
    return go_through(add_rows, &at, height, n_rows, threads);
}

/* Copy the elements where rows cross columns into `values`. Return 0 as above. */
int resireduce_cut_crossing(float *matrix, int64_t height, int64_t width, const int32_t *rows, int64_t n_rows,
                            const int32_t *columns, int64_t n_columns, float *values, int threads)
{
    const struct crossing at = {matrix, width, rows, columns, n_columns, values};
    return go_through(cut_rows, &at, height, n_rows, threads);
}
