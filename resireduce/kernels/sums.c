/* Norms of a float32 tensor, added up in the order of the plain form in norms.py, and weighted sums of such tensors. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

/* Sums of the magnitudes and of the squares of float32 numbers, sixteen of each. */

enum { LANES = 16, AHEAD = 4096 };

/* Sixteen sums of magnitudes and sixteen of squares. */
struct sums {
    double magnitudes[LANES], squares[LANES];
};

#ifdef WIDE
/* Add magnitudes and squares of sixteen elements to `m` and `s`, eight in each. The square of a float32 is exact in float64:
 * added without being rounded first, it is the same. */
WIDE static inline __attribute__((always_inline)) void add_lanes(__m512d m[2], __m512d s[2], const float *x)
{
    for (int half = 0; half < 2; half++) {
        const __m512d value = _mm512_cvtps_pd(_mm256_loadu_ps(x + half * LANES / 2));
        m[half] = _mm512_add_pd(m[half], _mm512_abs_pd(value));
        s[half] = _mm512_fmadd_pd(value, value, s[half]);
    }
}

/* Do as add_elements. */
WIDE static void add_elements_wide(struct sums *sums, const float *x, int64_t n, const float *beside)
{
    __m512d m[2], s[2];
    float rest[LANES] = {0};
    memcpy(m, sums->magnitudes, sizeof m);
    memcpy(s, sums->squares, sizeof s);
    for (; n >= LANES; n -= LANES, x += LANES, beside += LANES) {
        __builtin_prefetch(x + AHEAD);
        __builtin_prefetch(beside, 1);
        add_lanes(m, s, x);
    }
    memcpy(rest, x, n * sizeof *x);
    add_lanes(m, s, rest);
    memcpy(sums->magnitudes, m, sizeof m);
    memcpy(sums->squares, s, sizeof s);
}
#else
static void add_elements_wide(struct sums *sums, const float *x, int64_t n, const float *beside)
{
}
#endif

/* Do as add_elements, on other processors. */
FOR_EACH_PROCESSOR
static void add_elements_narrow(struct sums *sums, const float *x, int64_t n, const float *beside)
{
    struct sums so_far = *sums; /* memory of its own: the compiler knows that x is not changed */
    for (; n >= LANES; n -= LANES, x += LANES, beside += LANES) {
        __builtin_prefetch(x + AHEAD);
        __builtin_prefetch(beside, 1);
        for (int lane = 0; lane < LANES; lane++) {
            const double value = x[lane];
            so_far.magnitudes[lane] += fabs(value);
            so_far.squares[lane] += value * value;
        }
    }
    for (int lane = 0; lane < n; lane++) {
        const double value = x[lane];
        so_far.magnitudes[lane] += fabs(value);
        so_far.squares[lane] += value * value;
    }
    *sums = so_far;
}

/* Add magnitudes and squares of x[0..n): element i to the sums of number i % 16. Meanwhile fetch what is `beside`: each
 * addition waits for the one before, and memory could do more. */
static void add_elements(struct sums *sums, const float *x, int64_t n, const float *beside)
{
    (can_go_wide() ? add_elements_wide : add_elements_narrow)(sums, x, n, beside);
}

enum { PIECE = 1 << 16, AT_ONCE = 128, FETCHED = 1 << 17 };

static void add_sums(struct sums *sums, const struct sums *more)
{
    for (int lane = 0; lane < LANES; lane++) {
        sums->magnitudes[lane] += more->magnitudes[lane];
        sums->squares[lane] += more->squares[lane];
    }
}

struct pieces {
    const float *x, *beside;
    struct sums *sums; /* of each piece, zeros at the start */
};

static void add_pieces(const void *task, int64_t first, int64_t stop)
{
    const struct pieces *pieces = task;
    for (int64_t piece = first; piece < stop; piece++)
        add_elements(pieces->sums + piece, pieces->x + piece * PIECE, PIECE, pieces->beside + piece * PIECE);
}

/* Add whole pieces to `sums`, one after the other, whatever thread has gone through them. */
static void add_whole(struct sums *sums, const float *x, const float *beside, int64_t pieces, int threads)
{
    struct sums each[AT_ONCE];
    for (int64_t first = 0; first < pieces; first += AT_ONCE) {
        const int64_t count = pieces - first < AT_ONCE ? pieces - first : AT_ONCE;
        memset(each, 0, count * sizeof *each);
        const struct pieces task = {x + first * PIECE, beside + first * PIECE, each};
        in_threads(add_pieces, &task, count, 1, threads);
        for (int64_t i = 0; i < count; i++)
            add_sums(sums, each + i);
    }
}

/* Form the sums of x[0..n). `sums`, zeros, get first those of all whole pieces, each formed for itself from zero on and
 * then added, and second those of the piece that is not complete: the same in any number of threads. */
static void sum(const float *x, int64_t n, int threads, struct sums *sums, const float *beside)
{
    const int64_t whole = n / PIECE, done = whole * PIECE;
    add_whole(sums, x, beside, whole, threads);
    add_elements(sums + 1, x + done, n - done, beside + done);
}

void resireduce_sums(const float *x, int64_t n, int threads, struct sums *sums)
{
    sum(x, n, threads, sums, x);
}

/* Return phi |x|_1 / n + rest |x|_2 / root of x[0..n), as norms.py forms it of float32 norms. Meanwhile fetch what is
 * `beside`, as many elements, if a cache has room for them. */
static float mean_norm(const float *x, int64_t n, int threads, float phi, float rest, float root, const float *beside)
{
    struct sums sums[2] = {0};
    sum(x, n, threads, sums, n <= FETCHED ? beside : x);
    add_sums(sums, sums + 1);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) {
            sums->magnitudes[lane] += sums->magnitudes[lane + half];
            sums->squares[lane] += sums->squares[lane + half];
        }
    const float l1 = sums->magnitudes[0], l2 = sqrt(sums->squares[0]);
    const float of_l1 = phi * l1 / n, of_l2 = rest * l2 / root;
    return of_l1 + of_l2;
}

/* What resireduce_mean_norm is given. */
struct norms_of {
    const float *x;
    int64_t n;
    float phi, rest, root;
    int threads;
    float *mean;
};

/* Write that to `mean`. */
int resireduce_mean_norm(const struct norms_of *given)
{
    *given->mean = mean_norm(given->x, given->n, given->threads, given->phi, given->rest, given->root, given->x);
    return 1;
}

struct addition {
    float *into;
    const float *total, *more;
    float first, weight, divisor;
};

/* Products, sums and quotients are rounded one after the other. */
FOR_EACH_PROCESSOR
static void add_weighted(const void *task, int64_t start, int64_t stop)
{
    const struct addition *given = task;
    const float first = given->first, weight = given->weight, divisor = given->divisor;
    const float *total = given->total, *more = given->more;
    float *into = given->into;
    if (divisor == 1)
        for (int64_t i = start; i < stop; i++)
            into[i] = total[i] * first + more[i] * weight;
    else
        for (int64_t i = start; i < stop; i++)
            into[i] = (total[i] * first + more[i] * weight) / divisor;
}

enum { IS_ONE = 1, IS_LAST = 2, IS_NEW = 4 };

/* What resireduce_add_weighted is given. */
struct weighted {
    float *into; /* may be `total` */
    const float *total, *more;
    const float *weight; /* of `more`; 0: what mean_norm writes for it */
    float *weights; /* of `total` */
    int64_t n;
    float phi, rest, root;
    int threads, flags;
};

/* Write (first x total + w x more) / divisor to into[0..n), and add w, the weight of `more`, to `weights`. `first` is 1, or
 * with IS_ONE `weights` as they were: `total` is one tensor that has not been multiplied by its weight. With IS_NEW that is
 * written first, from its norms. The divisor is 1, or with IS_LAST `weights`. */
int resireduce_add_weighted(const struct weighted *given)
{
    const float *total = given->total, *more = given->more;
    float *weights = given->weights;
    const int flags = given->flags, threads = given->threads;
    struct addition task = {given->into, total, more, 1, 0, 1};
    if (flags & IS_NEW)
        *weights = mean_norm(total, given->n, threads, given->phi, given->rest, given->root, more);
    if (flags & IS_ONE)
        task.first = *weights;
    if (given->weight)
        task.weight = *given->weight;
    else
        task.weight = mean_norm(more, given->n, threads, given->phi, given->rest, given->root, total);
    *weights += task.weight;
    if (flags & IS_LAST)
        task.divisor = *weights < FLT_MIN ? FLT_MIN : *weights;
    in_threads(add_weighted, &task, given->n, LANES, threads);
    return 1;
}
