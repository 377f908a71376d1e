/* A loop over elements in several threads at once: torch's own, or some that are started for it and end with it. */

#pragma once

#include <pthread.h>
#include <stdint.h>

enum { MOST_THREADS = 64 };

/* What goes through the elements start..stop of a task. */
typedef void part_of(const void *task, int64_t start, int64_t stop);

/* What has all threads of a team do something; 0 threads: as many as torch has. */
typedef void team_of(void (*run)(void *), void *given, unsigned threads, unsigned flags);

static team_of *team;

/* Have `found` run loops from now on: GOMP_parallel of the OpenMP that torch uses. */
void resireduce_use_team(team_of *found)
{
    team = found;
}

struct loop {
    part_of *run;
    const void *task;
    int64_t n, unit;
    int shares, taken;
};

/* Go through one share after the other, as long as there are some that nobody has taken. A share may wait for those
 * before it: they have been taken earlier. */
static void take_shares(void *given)
{
    struct loop *loop = given;
    const int64_t units = (loop->n + loop->unit - 1) / loop->unit;
    int share;
    while ((share = __atomic_fetch_add(&loop->taken, 1, __ATOMIC_RELAXED)) < loop->shares) {
        const int64_t start = units * share / loop->shares * loop->unit;
        const int64_t stop = units * (share + 1) / loop->shares * loop->unit;
        loop->run(loop->task, start, stop < loop->n ? stop : loop->n);
    }
}

static void *start_taking(void *given)
{
    take_shares(given);
    return 0;
}

/* Go through the elements 0..n in `threads` shares, each of elements that lie together and begin with a multiple of
 * `unit`: in threads, this one among them. Where others cannot be started, this one goes through all. */
static void in_threads(part_of *run, const void *task, int64_t n, int64_t unit, int threads)
{
    pthread_t started[MOST_THREADS];
    int count = 0;
    struct loop loop = {run, task, n, unit, threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads, 0};
    if (loop.shares > 1 && team) {
        team(take_shares, &loop, 0, 0);
        return;
    }
    for (int t = 1; t < loop.shares; t++)
        count += pthread_create(&started[count], 0, start_taking, &loop) == 0;
    take_shares(&loop);
    while (count > 0)
        pthread_join(started[--count], 0);
}

/* Sixteen float32 numbers at a time, where the processor can. */

enum { LANES_WIDE = 16 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(RESIREDUCE_NARROW)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,popcnt")))

static inline int can_go_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("popcnt");
}

/* The first `count` of sixteen; all, if there are more. */
static inline __attribute__((always_inline)) __mmask16 first_lanes(int64_t count)
{
    return count < LANES_WIDE ? (__mmask16)((1u << count) - 1) : 0xffff;
}

/* Read the first `count` of sixteen numbers, and zeros for the others. Reading and writing all is done without a mask: from
 * memory that is in no cache, it is up to three times as fast. */
WIDE static inline __attribute__((always_inline)) __m512 load_lanes(const float *from, int64_t count)
{
    return count < LANES_WIDE ? _mm512_maskz_loadu_ps(first_lanes(count), from) : _mm512_loadu_ps(from);
}

/* Write the first `count` of sixteen numbers. */
WIDE static inline __attribute__((always_inline)) void store_lanes(float *to, int64_t count, __m512 numbers)
{
    if (count < LANES_WIDE)
        _mm512_mask_storeu_ps(to, first_lanes(count), numbers);
    else
        _mm512_storeu_ps(to, numbers);
}
#else
static inline int can_go_wide(void)
{
    return 0;
}
#endif
