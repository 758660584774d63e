/* Queues of commands, each executed in order by a thread of its own. Compiled together with pool.c, after it.

   Commands lie in a ring. Submitters, one at a time, write them and then count `written` up; the worker executes
   them and counts `taken` up. A worker without work spins for a while and then sleeps until more is written. CALL
   executes commands from other memory, so that what is submitted again and again is written once.
   See docs/decisions/0031-queues-and-timelines.md. */

void *memmove(void *target, const void *source, u64 size);
int usleep(unsigned microseconds);
int pthread_join(void *thread, void **result);

enum { WAIT = 1, SIGNAL, TIMESTAMP, BARRIER, EXEC, COPY, CALL };

/* EXEC has the operands of struct record; WAIT and SIGNAL an address and a value; COPY target, source and size. */
struct command {
  u64 opcode;
  u64 operands[5];
};

struct queue {
  LINE u64 written;
  LINE u64 taken;
  LINE struct pool *pool;
  void *thread;
  u64 capacity; /* commands in the ring, a power of two */
  i64 spins, clock;
  i32 stopping, sleeping;
  system_object lock, wake;
  struct command ring[];
};

#define NAP_MICROSECONDS 20

/* Wait until a value is reached, `spins` turns at full speed; 0 when that was not enough. */
static int spin_until(const u64 *place, u64 value, i64 spins) {
  for (i64 i = 0; i < spins; i++) {
    if (load(*place, ACQUIRE) >= value) return 1;
    relax();
  }
  return 0;
}

static void wait_for_value(struct queue *queue, const u64 *place, u64 value) {
  if (spin_until(place, value, queue->spins)) return;
  while (load(*place, ACQUIRE) < value && !load(queue->stopping, ACQUIRE)) usleep(NAP_MICROSECONDS);
}

static void note_time(struct queue *queue, u64 *signal) {
  i64 now[2];
  clock_gettime((int)queue->clock, now);
  signal[1] = (u64)now[0] * NANOSECONDS + (u64)now[1];
}

static void execute(struct queue *queue, const struct command *command) {
  const u64 *operands = command->operands;
  switch (command->opcode) {
  case WAIT: wait_for_value(queue, (const u64 *)operands[0], operands[1]); break;
  case SIGNAL: store(*(u64 *)operands[0], operands[1], SEQ_CST); break;
  case TIMESTAMP: note_time(queue, (u64 *)operands[0]); break;
  case BARRIER: __atomic_thread_fence(__ATOMIC_SEQ_CST); break;
  case EXEC: {
    const struct record *run = (const struct record *)operands;
    if (run->extent <= run->chunk) run->entry(run->buffers, run->values, 0, run->extent);
    else tc_pool_run(queue->pool, run->entry, run->buffers, run->values, run->extent, run->chunk);
    break;
  }
  case COPY: memmove((void *)operands[0], (const void *)operands[1], operands[2]); break;
  case CALL: {
    const struct command *first = (const struct command *)operands[0];
    for (u64 i = 0; i < operands[1] && !load(queue->stopping, ACQUIRE); i++) execute(queue, &first[i]);
    break;
  }
  }
}

static void sleep_until_written(struct queue *queue, u64 at) {
  pthread_mutex_lock(&queue->lock);
  store(queue->sleeping, 1, SEQ_CST);
  while (load(queue->written, SEQ_CST) == at && !load(queue->stopping, SEQ_CST))
    pthread_cond_wait(&queue->wake, &queue->lock);
  store(queue->sleeping, 0, SEQ_CST);
  pthread_mutex_unlock(&queue->lock);
}

static void *consume(void *argument) {
  struct queue *queue = argument;
  u64 at = 0;
  while (!load(queue->stopping, ACQUIRE)) {
    if (!spin_until(&queue->written, at + 1, queue->spins)) {
      sleep_until_written(queue, at);
      continue;
    }
    execute(queue, &queue->ring[at & (queue->capacity - 1)]);
    store(queue->taken, ++at, RELEASE);
  }
  return 0;
}

static void wake_worker(struct queue *queue) {
  if (!load(queue->sleeping, SEQ_CST)) return;
  pthread_mutex_lock(&queue->lock);
  pthread_cond_signal(&queue->wake);
  pthread_mutex_unlock(&queue->lock);
}

/* How much memory a queue of `capacity` commands wants, zeroed and aligned to 128 bytes. */
u64 tc_queue_bytes(u64 capacity) { return sizeof(struct queue) + capacity * sizeof(struct command); }

/* Start the thread of a queue; returns whether there is one now. */
i64 tc_queue_start(struct queue *queue, struct pool *pool, u64 capacity, i64 spins, i64 darwin) {
  queue->pool = pool;
  queue->capacity = capacity;
  queue->spins = spins;
  queue->clock = darwin ? CLOCK_MONOTONIC_DARWIN : CLOCK_MONOTONIC_LINUX;
  pthread_mutex_init(&queue->lock, 0);
  pthread_cond_init(&queue->wake, 0);
  return !pthread_create(&queue->thread, 0, consume, queue);
}

/* Put commands into the ring; returns how many found room. The worker is woken. */
u64 tc_queue_submit(struct queue *queue, const struct command *commands, u64 count) {
  u64 at = queue->written, room = queue->capacity - (at - load(queue->taken, ACQUIRE));
  if (count > room) count = room;
  for (u64 i = 0; i < count; i++) queue->ring[(at + i) & (queue->capacity - 1)] = commands[i];
  store(queue->written, at + count, SEQ_CST);
  wake_worker(queue);
  return count;
}

/* End the thread, which leaves a wait or a call; what it has not begun is not executed. */
void tc_queue_stop(struct queue *queue) {
  store(queue->stopping, 1, SEQ_CST);
  wake_worker(queue);
  pthread_join(queue->thread, 0);
}

/* Wait a little for a value, spinning and then napping; returns whether it was reached. */
i64 tc_queue_await(const u64 *place, u64 value, i64 spins, i64 naps) {
  if (spin_until(place, value, spins)) return 1;
  for (i64 i = 0; i < naps; i++) {
    usleep(NAP_MICROSECONDS);
    if (load(*place, ACQUIRE) >= value) return 1;
  }
  return 0;
}

/* A copy as a kernel: the second buffer into the first, bytes `begin` to `end`. */
void tc_copy(void *const *buffers, const i64 *values, i64 begin, i64 end) {
  memmove((char *)buffers[0] + begin, (const char *)buffers[1] + begin, (u64)(end - begin));
}
