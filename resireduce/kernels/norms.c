/* Norms of float32 tensors in one pass, added up in the order of the plain forms in norms.py. */

#include <math.h>
#include <stdint.h>

enum { ROWS = 16, COLUMNS = 256, LANES = 16 };

/* Add the magnitudes of ROWS rows, `width` elements of each, to the norms of these rows and columns. Each sum goes on
 * element by element: sixteen at a time keep the processor busy, as one alone would wait for each addition. */
FOR_EACH_PROCESSOR
static void add_tile(const float *matrix, int64_t columns, int64_t width, float *restrict by_row,
                     float *restrict by_column)
{
    float sums[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const float *row = matrix + r * columns;
        for (int64_t c = 0; c < width; c++)
            by_column[c] += fabsf(row[c]);
        sums[r] = by_row[r];
    }
    for (int64_t c = 0; c < width; c++)
        for (int r = 0; r < ROWS; r++)
            sums[r] += fabsf(matrix[r * columns + c]);
    for (int r = 0; r < ROWS; r++)
        by_row[r] = sums[r];
}

/* Add the magnitudes of matrix (rows x columns, contiguous) to by_row and by_column, which are zeros at the start. */
void resireduce_l1_norms(const float *matrix, int64_t rows, int64_t columns, float *by_row, float *by_column)
{
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        for (int64_t c = 0; c < columns; c += COLUMNS)
            add_tile(matrix + r * columns + c, columns, columns - c < COLUMNS ? columns - c : COLUMNS, by_row + r,
                     by_column + c);
    for (; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            const float magnitude = fabsf(matrix[r * columns + c]);
            by_row[r] += magnitude;
            by_column[c] += magnitude;
        }
}

/* Add the magnitudes and the squares of x[0..n) to sixteen sums of each, which are zeros at the start: element i to those
 * of number i % 16. */
FOR_EACH_PROCESSOR
void resireduce_sums(const float *x, int64_t n, double *magnitudes, double *squares)
{
    double by_magnitude[LANES], by_square[LANES];
    int64_t i = 0;
    for (int lane = 0; lane < LANES; lane++) {
        by_magnitude[lane] = magnitudes[lane];
        by_square[lane] = squares[lane];
    }
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const double value = x[i + lane];
            by_magnitude[lane] += fabs(value);
            by_square[lane] += value * value;
        }
    for (int lane = 0; i < n; i++, lane++) {
        const double value = x[i];
        by_magnitude[lane] += fabs(value);
        by_square[lane] += value * value;
    }
    for (int lane = 0; lane < LANES; lane++) {
        magnitudes[lane] = by_magnitude[lane];
        squares[lane] = by_square[lane];
    }
}
