/* The elements of a float32 matrix where some rows cross some columns, with the bits of whole rows in torch. */

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "crossing.h"
#include "threads.h"

/* Norms of the rows and columns of a float32 matrix in one pass, added up in the order of torch's, and which of them are
 * largest. */

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
    in_threads(add_strip, &norms, strips, 1, strips);
}

static inline __attribute__((always_inline)) uint32_t key_of(float norm)
{
    uint32_t key;
    memcpy(&key, &norm, sizeof key); /* of numbers that are not negative, in their order */
    return key;
}

/* Return how many of n norms have this key, or a higher one. */
FOR_EACH_PROCESSOR
static int32_t count_from(const float *norms, int64_t n, uint32_t key)
{
    int32_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += key_of(norms[i]) >= key;
    return count;
}

/* Write which k of n norms, 0 to n, are the largest: ascending numbers. None of the norms is negative or NaN. Of equal ones
 * those of the highest numbers are chosen. The key of the smallest that is chosen is found bit by bit, from the highest. */
void resireduce_largest_norms(const float *norms, int64_t n, int64_t k, int32_t *chosen)
{
    uint32_t border = 0;
    for (int bit = 30; bit >= 0; bit--)
        if (count_from(norms, n, border | 1u << bit) >= k)
            border |= 1u << bit;
    const int64_t above = count_from(norms, n, border + 1), left = k - above;
    int64_t equal = count_from(norms, n, border) - above;
    for (int64_t i = 0, j = 0; i < n && j < k; i++) {
        const uint32_t key = key_of(norms[i]);
        const int at_border = key == border;
        chosen[j] = (int32_t)i; /* is overwritten, if it is not */
        j += (key > border) | (at_border & (equal <= left));
        equal -= at_border;
    }
}

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
