/* The elements of a float32 matrix where some rows cross some columns, with the bits of whole rows in torch. */

#include <stdint.h>
#include <string.h>

#include "crossing.h"
#include "norms.h"
#include "threads.h"

struct task {
    float *matrix;
    struct crossing at;
    float *cut; /* the elements of each row where its columns cross it */
};

/* Have some of row r at hand when that is gone through: rows that are kept lie apart. */
static inline __attribute__((always_inline)) void fetch(const struct task *task, int64_t r, int64_t start, int64_t stop)
{
    const float *row = task->matrix + task->at.rows[r] * task->at.width;
    for (int64_t c = start; c < stop; c += 64 / sizeof(float))
        __builtin_prefetch(row + c, 1);
}

FOR_EACH_PROCESSOR
static void add_rows(const void *given, int64_t first, int64_t last)
{
    const struct task *task = given;
    const struct crossing *at = &task->at;
    for (int64_t r = first; r < last; r++) {
        float *row = task->matrix + at->rows[r] * at->width;
        for (int64_t start = 0, j = 0; start < at->width; start += TILE) {
            const int64_t stop = at->width - start < TILE ? at->width : start + TILE;
            fetch(task, r + 1 < last ? r + 1 : r, start, stop);
            j = add_tile(at, r, j, start, stop, row + start);
        }
    }
}

/* Copy the elements of a row one by one, and have those of the next at hand. */
static inline __attribute__((always_inline)) void cut_columns(const struct crossing *at, const float *row,
                                                              const float *next, float *restrict cut)
{
    const int32_t *restrict columns = at->columns;
    for (int64_t j = 0; j < at->n_columns; j++) {
        __builtin_prefetch(next + columns[j]);
        cut[j] = row[columns[j]];
    }
}

FOR_EACH_PROCESSOR
static void cut_rows(const void *given, int64_t first, int64_t last)
{
    const struct task *task = given;
    const struct crossing *at = &task->at;
    const int wide = at->width <= WIDEST && goes_wide(at);
    uint16_t kept[WIDEST / LANES_WIDE];
    if (wide) {
        memset(kept, 0, (at->width + LANES_WIDE - 1) / LANES_WIDE * sizeof kept[0]);
        for (int64_t j = 0; j < at->n_columns; j++)
            kept[at->columns[j] / LANES_WIDE] |= 1 << at->columns[j] % LANES_WIDE;
    }
    for (int64_t r = first; r < last; r++) {
        const float *row = task->matrix + at->rows[r] * at->width;
        const float *next = task->matrix + at->rows[r + 1 < last ? r + 1 : r] * at->width;
        float *cut = task->cut + r * at->n_columns;
        if (wide)
            cut_wide(row, next, at->width, kept, cut);
        else
            cut_columns(at, row, next, cut);
    }
}

static int go_through(part_of *run, const struct task *task, int threads)
{
    if (!lies_in_matrix(&task->at))
        return 0;
    in_threads(run, task, task->at.n_rows, 1, threads);
    return 1;
}

/* Add `values`, a row of n_columns for each of n_rows rows, to where these cross columns of a matrix (height x width).
 * Return 0, with nothing done, if numbers of rows or columns are not ascending ones of the matrix. */
int resireduce_add_crossing(float *matrix, int64_t height, int64_t width, const int32_t *rows, int64_t n_rows,
                            const int32_t *columns, int64_t n_columns, const float *values, int threads)
{
    const struct task task = {matrix, {values, rows, columns, height, width, n_rows, n_columns, 0}, 0};
    return go_through(add_rows, &task, threads);
}

/* Copy the elements where rows cross columns into `values`. Return 0 as above. */
int resireduce_cut_crossing(float *matrix, int64_t height, int64_t width, const int32_t *rows, int64_t n_rows,
                            const int32_t *columns, int64_t n_columns, float *values, int threads)
{
    const struct task task = {matrix, {0, rows, columns, height, width, n_rows, n_columns, 0}, values};
    return go_through(cut_rows, &task, threads);
}

/* What resireduce_cut_largest is given. */
struct cutting {
    float *matrix;
    struct crossing into;
    float *norms; /* room for those of all rows, then of all columns; may be that of the values */
    int threads;
};

/* Choose the rows and the columns of the largest norms, as many as there are numbers of them, and copy the elements where
 * they cross to the values. */
int resireduce_cut_largest(const struct cutting *given)
{
    const struct crossing *into = &given->into;
    const int64_t height = into->height, width = into->width;
    float *norms = given->norms;
    int32_t *rows = (int32_t *)into->rows, *columns = (int32_t *)into->columns;
    memset(norms, 0, (height + width) * sizeof *norms);
    resireduce_l1_norms(given->matrix, height, width, given->threads, norms, norms + height);
    resireduce_largest_norms(norms, height, into->n_rows, rows);
    resireduce_largest_norms(norms + height, width, into->n_columns, columns);
    const struct task task = {given->matrix, *into, (float *)into->values};
    return go_through(cut_rows, &task, given->threads);
}
