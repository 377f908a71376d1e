/* The loop that threads.h describes. */

#include "threads.h"

/* What has all threads of a team do something; 0 threads: as many as torch has. */
typedef void team_of(void (*run)(void *), void *given, unsigned threads, unsigned flags);

static team_of *team;

/* Have `found` run loops from now on: GOMP_parallel of the OpenMP that torch uses. Without it one thread does all. */
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

/* Go through one share after the other, as long as there are some that nobody has taken. */
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

void resireduce_in_threads(part_of *run, const void *task, int64_t n, int64_t unit, int threads)
{
    struct loop loop = {run, task, n, unit, threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads, 0};
    if (loop.shares > 1 && team)
        team(take_shares, &loop, 0, 0);
    else
        take_shares(&loop);
}
