/* Values that lie in a float32 matrix where some of its rows cross some of its columns: how they are added and cut out. */

#include <stdint.h>

#include "threads.h"

enum { TILE = 256, WIDEST = 1 << 16, FETCHED = 256, AHEAD_WIDE = 1024 };

struct crossing {
    const float *values;           /* of each row, those of its columns */
    const int32_t *rows, *columns; /* ascending */
    int64_t height, width, n_rows, n_columns;
    int32_t *places; /* of each row of the matrix, then of each column, which of these it is; -1: none of them */
};

static int are_ascending(const int32_t *numbers, int64_t count, int64_t below)
{
    for (int64_t i = 0; i < count; i++)
        if (numbers[i] < 0 || numbers[i] >= below || (i > 0 && numbers[i] <= numbers[i - 1]))
            return 0;
    return 1;
}

/* Whether rows and columns are ascending ones of the matrix. */
static int lies_in_matrix(const struct crossing *at)
{
    return are_ascending(at->rows, at->n_rows, at->height) && are_ascending(at->columns, at->n_columns, at->width);
}

/* Write down which of these each row and each column is. */
static void find_places(const struct crossing *at)
{
    for (int64_t i = 0; i < at->height + at->width; i++)
        at->places[i] = -1;
    for (int64_t i = 0; i < at->n_rows; i++)
        at->places[at->rows[i]] = (int32_t)i;
    for (int64_t j = 0; j < at->n_columns; j++)
        at->places[at->height + at->columns[j]] = (int32_t)j;
}

/* Write each `step`-th of x[0..n), with what is added to it, to `sums`: no division for each, which would take longer.
 * Some at a time are fetched before the first of them is used: they lie too far apart to be foreseen. */
static void sample_sums(const struct crossing *at, const float *x, int64_t n, int64_t step, float *sums)
{
    const int64_t down = step / at->width, across = step % at->width;
    int64_t places[FETCHED], row = 0, column = 0;
    for (int64_t first = 0; first < n; first += FETCHED * step) {
        int count = 0;
        for (int64_t i = first; i < n && count < FETCHED; i += step) {
            const int64_t r = at->places[row], c = at->places[at->height + column], none = -((r | c) < 0);
            const int64_t place = places[count++] = (r * at->n_columns + c) | none;
            __builtin_prefetch(x + i);
            __builtin_prefetch(at->values + (place & ~none));
            row += down + (column + across >= at->width);
            column += column + across >= at->width ? across - at->width : across;
        }
        for (int j = 0; j < count; j++) {
            const float value = at->values[places[j] < 0 ? 0 : places[j]]; /* no branch: none could foresee it */
            *sums++ = x[first + j * step] + (places[j] < 0 ? 0 : value);
        }
    }
}

/* Return the first of these columns that is `column` or behind it. */
static inline int64_t first_from(const struct crossing *at, int64_t column)
{
    int64_t first = 0, stop = column ? at->n_columns : 0;
    while (first < stop) {
        const int64_t middle = (first + stop) / 2;
        if (at->columns[middle] < column)
            first = middle + 1;
        else
            stop = middle;
    }
    return first;
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

/* Whether sixteen columns at a time pay: the processor can spread values over some of them, and these are many. */
static int goes_wide(const struct crossing *at)
{
    return at->n_columns >= at->width / LANES_WIDE && can_go_wide();
}

#ifdef WIDE
/* Do as add_tile for any number n of columns: `places` says which are kept, by numbers that are not negative. */
WIDE static void add_wide(const int32_t *places, const float *values, int64_t n, float *x)
{
    for (int64_t c = 0; c < n; c += LANES_WIDE) {
        const __mmask16 here = first_lanes(n - c);
        const __m512i of = _mm512_maskz_loadu_epi32(here, places + c);
        const __mmask16 kept = _mm512_mask_cmpge_epi32_mask(here, of, _mm512_setzero_si512());
        const int count = __builtin_popcount(kept);
        __builtin_prefetch(values + AHEAD_WIDE);
        const __m512 next = _mm512_maskz_loadu_ps(first_lanes(count), values);
        const __m512 sum = _mm512_add_ps(load_lanes(x + c, n - c), _mm512_maskz_expand_ps(kept, next));
        store_lanes(x + c, n - c, sum);
        values += count;
    }
}

/* Copy those of row[0..width) to `cut` that `kept` has a bit for, sixteen bits a number. */
WIDE static void cut_wide(const float *row, const float *next, int64_t width, const uint16_t *kept, float *cut)
{
    for (int64_t c = 0; c < width; c += LANES_WIDE) {
        const __mmask16 some = kept[c / LANES_WIDE];
        const int count = __builtin_popcount(some);
        __builtin_prefetch(next + c);
        const __m512 packed = _mm512_maskz_compress_ps(some, load_lanes(row + c, width - c));
        _mm512_mask_storeu_ps(cut, first_lanes(count), packed);
        cut += count;
    }
}
#else
static void add_wide(const int32_t *places, const float *values, int64_t n, float *x)
{
}

static void cut_wide(const float *row, const float *next, int64_t width, const uint16_t *kept, float *cut)
{
}
#endif

/* Add to x[0..stop - first), the elements from number `first` to before `stop` of the matrix. */
static inline __attribute__((always_inline)) void add_crossing(const struct crossing *at, int64_t first, int64_t stop,
                                                               float *x)
{
    const int wide = goes_wide(at);
    for (int64_t row = first / at->width; row * at->width < stop; row++) {
        const int64_t base = row * at->width, r = at->places[row];
        const int64_t end = stop - base < at->width ? stop - base : at->width;
        int64_t start = first > base ? first - base : 0, j = r < 0 ? 0 : first_from(at, start);
        if (wide && r >= 0) {
            const float *values = at->values + r * at->n_columns + j;
            add_wide(at->places + at->height + start, values, end - start, x + base + start - first);
            continue;
        }
        for (; r >= 0 && start < end; start += TILE)
            j = add_tile(at, r, j, start, end - start < TILE ? end : start + TILE, x + base + start - first);
    }
}
