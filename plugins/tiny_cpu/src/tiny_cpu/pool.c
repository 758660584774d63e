/* The threads that run kernels.

   One pool lives as long as the process. A run is `extent` iterations of one kernel; the caller and the
   workers that happen to be awake take them in chunks from one counter, so a worker that another
   program holds up delays nobody. A worker spins for a while after a run, because the next one tends to
   follow at once, and then sleeps.

   The hand-over is one word, `state`: the run's number, whether it is open, and how many workers are in it.
   A worker enters by adding one while the run is open. The caller closes the run when no iteration is
   left to take, and returns when the last worker has gone. A worker that comes late finds it closed.

   No header is included, so that every clang compiles this for every target without a system's files. The
   types of pthread are opaque and larger here than on any system. queue.c continues this file. pool.ll is
   generated from both for machines without clang: see hatch_build.py.
   See docs/decisions/0020-cpu-thread-pool.md. */

typedef int i32;
typedef long long i64;
typedef unsigned long long u64;

typedef void kernel(void *const *buffers, const i64 *values, i64 begin, i64 end);
typedef struct { i64 opaque[16]; } __attribute__((aligned(16))) system_object;

int pthread_create(void **thread, const system_object *attributes, void *(*start)(void *), void *argument);
int pthread_attr_init(system_object *attributes);
int pthread_attr_setstacksize(system_object *attributes, u64 size);
int pthread_attr_setdetachstate(system_object *attributes, int state);
int pthread_mutex_init(system_object *mutex, const void *attributes);
int pthread_mutex_lock(system_object *mutex);
int pthread_mutex_unlock(system_object *mutex);
int pthread_cond_init(system_object *condition, const void *attributes);
int pthread_cond_wait(system_object *condition, system_object *mutex);
int pthread_cond_signal(system_object *condition);
int pthread_cond_broadcast(system_object *condition);
int clock_gettime(int clock, i64 *seconds_and_nanoseconds);

/* One launch. `extent` at or below `chunk` means: in the calling thread, without the others. */
struct record {
  kernel *entry;
  void *const *buffers;
  const i64 *values;
  i64 extent, chunk;
};

#define LINE __attribute__((aligned(128))) /* what one core writes and another reads, on lines of its own */

struct pool {
  LINE u64 state; /* run number << 32 | OPEN | workers inside */
  LINE i64 next;  /* the first iteration that nobody has taken */
  LINE struct record run;
  LINE i32 sleepers;
  i32 waiting;   /* the caller sleeps until the last worker has left */
  i64 spins;
  i32 clock;
  LINE system_object turn; /* held by the thread whose run it is */
  system_object lock;      /* guards going to sleep */
  system_object wake, left;
};

#define OPEN 0x80000000ull
#define INSIDE 0x7fffffffull
#define STACK_BYTES (8ull << 20)
#define DETACHED_LINUX 1
#define DETACHED_DARWIN 2
#define CLOCK_MONOTONIC_LINUX 1
#define CLOCK_MONOTONIC_DARWIN 6
#define NANOSECONDS 1000000000ll
#define SLICE_NANOSECONDS 50000000ll /* how long a signal of Python waits for a slice of a kernel */

/* Tell the processor that this thread only waits. pool.ll serves every machine, so there it is a call. */
#if defined(FOR_EVERY_MACHINE)
void relax(void);
#elif defined(__x86_64__)
static void relax(void) { __builtin_ia32_pause(); }
#else
static void relax(void) { __builtin_arm_isb(15); }
#endif

#define load(place, order) __atomic_load_n(&(place), __ATOMIC_##order)
#define store(place, value, order) __atomic_store_n(&(place), value, __ATOMIC_##order)

static i64 now(struct pool *pool) {
  i64 time[2];
  clock_gettime(pool->clock, time);
  return time[0] * NANOSECONDS + time[1];
}

/* Take chunks until none is left or, if `until` is not 0, that time is over: then nobody takes any more.
   Returns the first iteration that nobody has taken. */
static i64 work(struct pool *pool, i64 until) {
  struct record run = pool->run;
  for (;;) {
    i64 begin = __atomic_fetch_add(&pool->next, run.chunk, __ATOMIC_RELAXED);
    if (begin >= run.extent) return run.extent;
    i64 rest = run.extent - begin;
    run.entry(run.buffers, run.values, begin, begin + (rest < run.chunk ? rest : run.chunk));
    if (until && now(pool) >= until) {
      i64 left = __atomic_exchange_n(&pool->next, run.extent, __ATOMIC_RELAXED);
      return left < run.extent ? left : run.extent;
    }
  }
}

/* Enter the run that `state` describes; 0 when it has closed meanwhile. */
static int enter(struct pool *pool, u64 state) {
  while (state & OPEN) {
    u64 found = state;
    if (__atomic_compare_exchange_n(&pool->state, &found, state + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return 1;
    if (found >> 32 != state >> 32) return 0;
    state = found;
  }
  return 0;
}

static void leave(struct pool *pool) {
  u64 before = __atomic_fetch_sub(&pool->state, 1, __ATOMIC_SEQ_CST);
  if (before & OPEN || (before & INSIDE) != 1) return;
  if (!load(pool->waiting, SEQ_CST)) return;
  pthread_mutex_lock(&pool->lock);
  pthread_cond_signal(&pool->left);
  pthread_mutex_unlock(&pool->lock);
}

/* Sleep until a run after number `seen` is there. */
static void sleep_until_run(struct pool *pool, u64 seen) {
  pthread_mutex_lock(&pool->lock);
  __atomic_fetch_add(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
  while (load(pool->state, SEQ_CST) >> 32 == seen)
    pthread_cond_wait(&pool->wake, &pool->lock);
  __atomic_fetch_sub(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&pool->lock);
}

static void *worker(void *argument) {
  struct pool *pool = argument;
  u64 seen = 0;
  i64 idle = 0;
  for (;;) {
    u64 state = load(pool->state, ACQUIRE);
    if (state >> 32 == seen) {
      if (++idle < pool->spins) relax();
      else sleep_until_run(pool, seen), idle = 0;
      continue;
    }
    seen = state >> 32;
    idle = 0;
    if (enter(pool, state)) work(pool, 0), leave(pool);
  }
  return 0;
}

/* Wake whoever sleeps. The caller has just changed what sleepers look at. */
static void wake_sleepers(struct pool *pool) {
  if (!load(pool->sleepers, SEQ_CST)) return;
  pthread_mutex_lock(&pool->lock);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->lock);
}

/* Wait until the closed run is empty. */
static void wait_until_left(struct pool *pool) {
  for (i64 i = 0; i < pool->spins; i++) {
    if (!(load(pool->state, ACQUIRE) & INSIDE)) return;
    relax();
  }
  pthread_mutex_lock(&pool->lock);
  store(pool->waiting, 1, SEQ_CST);
  while (load(pool->state, SEQ_CST) & INSIDE) pthread_cond_wait(&pool->left, &pool->lock);
  store(pool->waiting, 0, RELAXED);
  pthread_mutex_unlock(&pool->lock);
}

static int is_shared(const struct record *run) { return run->extent > run->chunk; }

/* One run from an iteration on, by the thread whose turn it is; see `work`. */
static i64 run_from(struct pool *pool, const struct record *run, i64 begin, i64 until) {
  pool->run = *run;
  store(pool->next, begin, RELAXED);
  u64 number = (load(pool->state, RELAXED) >> 32) + 1;
  store(pool->state, number << 32 | OPEN, SEQ_CST);
  wake_sleepers(pool);
  i64 left = work(pool, until);
  __atomic_fetch_and(&pool->state, ~OPEN, __ATOMIC_SEQ_CST);
  wait_until_left(pool);
  return left;
}

/* One whole run. */
static void run_one(struct pool *pool, const struct record *run) {
  if (is_shared(run)) run_from(pool, run, 0, 0);
  else run->entry(run->buffers, run->values, 0, run->extent);
}

/* How much memory `tc_pool_start` wants, zeroed and aligned to 128 bytes, for as long as the process lives. */
u64 tc_pool_bytes(void) { return sizeof(struct pool); }

/* Start threads in `pool`; returns how many there are, which may be fewer than asked for. */
i64 tc_pool_start(struct pool *pool, i64 workers, i64 spins, i64 darwin) {
  system_object attributes;
  void *thread;
  i64 started = 0;
  pool->spins = spins;
  pool->clock = darwin ? CLOCK_MONOTONIC_DARWIN : CLOCK_MONOTONIC_LINUX;
  pthread_mutex_init(&pool->turn, 0);
  pthread_mutex_init(&pool->lock, 0);
  pthread_cond_init(&pool->wake, 0);
  pthread_cond_init(&pool->left, 0);
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  pthread_attr_setdetachstate(&attributes, darwin ? DETACHED_DARWIN : DETACHED_LINUX);
  while (started < workers && !pthread_create(&thread, &attributes, worker, pool)) started++;
  return started;
}

/* Run one kernel. Any thread may call; one run happens after the other. */
void tc_pool_run(struct pool *pool, kernel *entry, void *const *buffers, const i64 *values, i64 extent, i64 chunk) {
  struct record run = {entry, buffers, values, extent, chunk};
  pthread_mutex_lock(&pool->turn);
  run_one(pool, &run);
  pthread_mutex_unlock(&pool->turn);
}

/* Run one kernel from iteration `begin` on, until it ends or a slice of time is over; returns the iteration to go
   on with. Between two calls others may run kernels. */
i64 tc_pool_run_slice(
    struct pool *pool, kernel *entry, void *const *buffers, const i64 *values, i64 begin, i64 extent, i64 chunk) {
  struct record run = {entry, buffers, values, extent, chunk};
  pthread_mutex_lock(&pool->turn);
  i64 left = run_from(pool, &run, begin, now(pool) + SLICE_NANOSECONDS);
  pthread_mutex_unlock(&pool->turn);
  return left;
}

/* Run `count` kernels in order: a whole captured step in one call. Workers sleep here, too, when no run comes:
   the caller may have lost its core to another program, which then could use theirs. */
void tc_pool_run_many(struct pool *pool, const struct record *records, i64 count) {
  pthread_mutex_lock(&pool->turn);
  for (i64 i = 0; i < count; i++) run_one(pool, &records[i]);
  pthread_mutex_unlock(&pool->turn);
}
