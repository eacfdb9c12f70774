/* A clock that can be set, for one process: LD_PRELOAD this library, and write seconds to the file CHAOS_CLOCK.
   Waits until a time of the wall clock are moved back, because the kernel waits by the true clock. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead; /* seconds; shared with the process that sets the clock */

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    ahead = mapped == MAP_FAILED ? NULL : mapped;
}

static long offset(void) { return ahead ? *ahead : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*of_libc)(clockid_t, struct timespec *);
    if (!of_libc) of_libc = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = of_libc(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

/* A time of the monotonic clock is smaller than any of this century, and stays. */
static struct timespec by_the_true_clock(const struct timespec *until) {
    struct timespec moved = *until;
    if (moved.tv_sec > 1000000000) moved.tv_sec -= offset();
    return moved;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*of_libc)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!of_libc) of_libc = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec moved = by_the_true_clock(until);
    return of_libc(condition, mutex, &moved);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*of_libc)(sem_t *, const struct timespec *);
    if (!of_libc) of_libc = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moved = by_the_true_clock(until);
    return of_libc(semaphore, &moved);
}
