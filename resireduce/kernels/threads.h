/* A loop over elements in several threads at once. Nothing is left of them: a process may fork between two calls. */

#include <pthread.h>
#include <stdint.h>

enum { MOST_THREADS = 64 };

/* What goes through the elements start..stop of a task. */
typedef void part_of(const void *task, int64_t start, int64_t stop);

struct share {
    part_of *run;
    const void *task;
    int64_t start, stop;
};

static void *run_share(void *given)
{
    const struct share *own = given;
    own->run(own->task, own->start, own->stop);
    return 0;
}

/* Go through the elements 0..n in `threads` threads, this one among them: each has some that lie together, and begin with
 * a multiple of `unit`. A thread that cannot be started has its elements gone through here, after those before them. */
static void in_threads(part_of *run, const void *task, int64_t n, int64_t unit, int threads)
{
    struct share shares[MOST_THREADS];
    pthread_t started[MOST_THREADS];
    int runs[MOST_THREADS] = {0};
    const int count = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    const int64_t units = (n + unit - 1) / unit;
    for (int t = 0; t < count; t++) {
        const int64_t stop = units * (t + 1) / count * unit;
        shares[t] = (struct share){run, task, units * t / count * unit, stop < n ? stop : n};
        runs[t] = t > 0 && pthread_create(&started[t], 0, run_share, &shares[t]) == 0;
    }
    for (int t = 0; t < count; t++)
        if (!runs[t])
            run_share(&shares[t]);
    for (int t = 0; t < count; t++)
        if (runs[t])
            pthread_join(started[t], 0);
}
