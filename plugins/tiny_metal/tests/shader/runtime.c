// A threadgroup on one processor: its threads as fibers that take turns at barriers, and every
// access to memory looked at. clang's thread sanitizer calls __tsan_* before each access, its
// undefined-behavior sanitizer __ubsan_* where the language gives no answer; both end the launch.
//
// Conflicts: two accesses of one byte, one of them a write, in one launch, by threads of two groups,
// or of one group with no barrier for that memory in between. Two groups may write the same value
// to the same place, as plans do whose last tile is moved back to fit: what was there is compared
// with what is there after the write. Of each byte are kept the last write
// and the last two reads by different threads, as stamps: launch, group, barriers passed, thread.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#define EXPORT __attribute__((visibility("default")))
#define MOST_THREADS 1024
#define STACK_BYTES (256 << 10)
#define LANES 32
#define DEVICE 1
#define THREADGROUP 2

enum { NONE, OUTSIDE, READ_ONLY, RACE, DIVERGED, UNDEFINED, STACK };
enum { READY, AT_BARRIER, AT_SIMD, DONE };

struct region {
  u64 start, bytes;
  u64 *stamps;  // three a byte, or 0 where races are not looked for
  u32 serial;   // of this launch among those that used the region
  u32 writable;
  u32 number;   // the slot, or which array of the threadgroup
  u32 is_threadgroup;
};

struct position {  // as the trampoline of a kernel takes it
  u32 group[3], local[3], groups[3], threads[3];
};

struct launch {
  void (*entry)(void **, const struct position *);
  void **buffers;
  struct region *regions;
  u64 region_count;
  u32 groups[3], threads[3];
  u64 seed;
  u8 *stacks;  // MOST_THREADS of STACK_BYTES
  u32 has_barriers;
  // the fault
  u32 kind, thread, group, other_thread, other_group, is_write, other_is_write, bytes;
  u64 address;
  u32 region, line;
  const char *what;
};

struct fiber {
  void *stack_pointer;
  struct position at;
  u32 state, number, stack;
  const char *file;
  u32 line, flags;
  const void *mine;
  void *all;
  u32 size;
};

static struct launch *run;
static struct fiber fibers[MOST_THREADS];
static u32 threads, group_number, device_epoch, group_epoch;
static u16 order[MOST_THREADS];
static struct fiber *current;
static void *scheduler_stack;
static struct region *last_region;
static u64 randomness;

void msl_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(
    ".text\n.globl msl_switch\n.hidden msl_switch\n.type msl_switch,@function\nmsl_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n");
#define SAVED 6
#define RETURN_SLOT 6
#define FRAME 8
#elif defined(__aarch64__)
__asm__(
    ".text\n.globl msl_switch\n.hidden msl_switch\n.type msl_switch,%function\nmsl_switch:\n"
    "  sub sp, sp, #160\n  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n  add sp, sp, #160\n  ret\n");
#define RETURN_SLOT 11
#define FRAME 20
#endif

static u64 next_random(void) {
  randomness ^= randomness << 13;
  randomness ^= randomness >> 7;
  randomness ^= randomness << 17;
  return randomness;
}

static void yield(void) { msl_switch(&current->stack_pointer, scheduler_stack); }

static void fail(u32 kind) {
  if (run->kind == NONE) {
    run->kind = kind;
    run->group = group_number;
    run->thread = current ? current->number : 0;
  }
  if (current) yield();
}

static u64 stamp(u32 serial, u32 epoch) {
  return (u64)serial << 48 | (u64)(group_number & 0x3fffff) << 26 | (u64)(epoch & 0xffff) << 10 |
         current->number;
}

// Whether an earlier access and one of now may happen in either order.
static int conflict(u64 before, u64 now, u32 is_threadgroup) {
  if (before == 0 || (before ^ now) >> 48) return 0;
  u64 other_group = (before ^ now) >> 26 & 0x3fffff;
  if (other_group) return !is_threadgroup;
  return ((before ^ now) & 0x3ff) && !((before ^ now) >> 10 & 0xffff);
}

static void race(u64 before, int was_write, int is_write, u64 address, u32 bytes, struct region *r) {
  run->other_thread = before & 0x3ff;
  run->other_group = before >> 26 & 0x3fffff;
  run->is_write = is_write;
  run->other_is_write = was_write;
  run->address = address - r->start;
  run->bytes = bytes;
  run->region = r - run->regions;
  fail(RACE);
}

// What a place held before a write that another group made too; compared before the next access.
static struct {
  u64 address, before;
  u32 bytes;
  u8 held[16];
  struct region *region;
} twice;

static void verify_same(void) {
  u32 bytes = twice.bytes;
  twice.bytes = 0;
  for (u32 i = 0; i < bytes; i++)
    if (((u8 *)twice.address)[i] != twice.held[i])
      race(twice.before, 1, 1, twice.address, bytes, twice.region);
}

static void write_again(u64 before, u64 address, u32 bytes, struct region *r) {
  if (bytes > sizeof twice.held || r->is_threadgroup || (before >> 26 & 0x3fffff) == group_number)
    race(before, 1, 1, address, bytes, r);
  twice.address = address;
  twice.before = before;
  twice.bytes = bytes;
  twice.region = r;
  __builtin_memcpy(twice.held, (void *)address, bytes);
}

static void note(struct region *r, u64 address, u32 bytes, int is_write) {
  u32 epoch = r->is_threadgroup ? group_epoch : device_epoch;
  u64 now = stamp(r->serial, epoch);
  u64 *place = r->stamps + (address - r->start) * 3;
  for (u32 i = 0; i < bytes; i++, place += 3) {
    if (conflict(place[0], now, r->is_threadgroup)) {
      if (!is_write) race(place[0], 1, 0, address, bytes, r);
      if (!twice.bytes) write_again(place[0], address, bytes, r);
    }
    if (!is_write) {
      if ((place[1] ^ now) & ~(0xfffful << 10)) place[2] = place[1];
      place[1] = now;
      continue;
    }
    for (int k = 1; k < 3; k++)
      if (conflict(place[k], now, r->is_threadgroup)) race(place[k], 0, 1, address, bytes, r);
    place[0] = now;
  }
}

static void access(u64 address, u32 bytes, int is_write) {
  if (!current) return;
  if (twice.bytes) verify_same();
  u64 stack = (u64)run->stacks + (u64)current->stack * STACK_BYTES;
  if (address - stack < STACK_BYTES) return;
  struct region *r = last_region;
  if (!r || address - r->start >= r->bytes) {
    r = 0;
    for (u64 i = 0; i < run->region_count && !r; i++)
      if (address - run->regions[i].start < run->regions[i].bytes) r = run->regions + i;
  }
  if (!r || address + bytes > r->start + r->bytes || (is_write && !r->writable)) {
    run->address = address;
    run->bytes = bytes;
    run->is_write = is_write;
    run->region = r ? r - run->regions : ~0u;
    fail(r && is_write && !r->writable ? READ_ONLY : OUTSIDE);
    return;
  }
  last_region = r;
  if (r->stamps) note(r, address, bytes, is_write);
}

#define ACCESS(n)                                                                   \
  EXPORT void __tsan_read##n(void *p) { access((u64)p, n, 0); }                     \
  EXPORT void __tsan_write##n(void *p) { access((u64)p, n, 1); }                    \
  EXPORT void __tsan_unaligned_read##n(void *p) { access((u64)p, n, 0); }           \
  EXPORT void __tsan_unaligned_write##n(void *p) { access((u64)p, n, 1); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
EXPORT void __tsan_read_range(void *p, u64 n) { access((u64)p, n, 0); }
EXPORT void __tsan_write_range(void *p, u64 n) { access((u64)p, n, 1); }
EXPORT void __tsan_init(void) {}
EXPORT void *__tsan_memcpy(void *to, const void *from, u64 n) {
  access((u64)from, n, 0);
  access((u64)to, n, 1);
  return __builtin_memcpy(to, from, n);
}
EXPORT void *__tsan_memset(void *to, int value, u64 n) {
  access((u64)to, n, 1);
  return __builtin_memset(to, value, n);
}

struct place { const char *file; u32 line, column; };
static void undefined(const char *what, const struct place *where) {
  run->what = what;
  run->line = where->line;
  fail(UNDEFINED);
}
#define UNDEFINED_BY(name, text)                                   \
  EXPORT void __ubsan_handle_##name(struct place *where, ...) {    \
    undefined(text, where);                                        \
  }
UNDEFINED_BY(divrem_overflow, "a quotient by zero, or one that does not fit")
UNDEFINED_BY(shift_out_of_bounds, "a shift by the width or more")
UNDEFINED_BY(add_overflow, "a sum that does not fit a signed type")
UNDEFINED_BY(sub_overflow, "a difference that does not fit a signed type")
UNDEFINED_BY(mul_overflow, "a product that does not fit a signed type")
UNDEFINED_BY(negate_overflow, "a negation that does not fit a signed type")
UNDEFINED_BY(float_cast_overflow, "a float that does not fit the integer type")
UNDEFINED_BY(load_invalid_value, "a bool that is neither 0 nor 1")
UNDEFINED_BY(type_mismatch_v1, "a misaligned access")
UNDEFINED_BY(out_of_bounds, "an index outside of an array")

EXPORT void msl_barrier(int flags, const char *file, int line) {
  current->state = AT_BARRIER;
  current->flags = flags;
  current->file = file;
  current->line = line;
  yield();
}

EXPORT void msl_simd(const void *mine, void *all, int size, const char *file, int line) {
  current->state = AT_SIMD;
  current->mine = mine;
  current->all = all;
  current->size = size;
  current->file = file;
  current->line = line;
  yield();
}

EXPORT int msl_lane(void) { return current->number % LANES; }

EXPORT u32 msl_alive(void) {
  u32 first = current->number / LANES * LANES, alive = 0;
  for (u32 i = 0; i < LANES && first + i < threads; i++)
    alive |= (u32)(fibers[first + i].state != DONE) << i;
  return alive;
}

// What every lane of a SIMD group must take part in.
EXPORT void msl_whole(const char *what, int line) {
  struct place where = {0, line, 0};
  if (msl_alive() != 0xffffffffu) undefined(what, &where);
}

static void fiber_main(void) {
  run->entry(run->buffers, &current->at);
  if (twice.bytes) verify_same();
  current->state = DONE;
  for (;;) yield();
}

// Without barriers the threads of a group run one after another in one fiber.
static void thread_after_thread(void) {
  struct fiber *self = current;
  for (u32 i = 0; i < threads; i++) {
    self->number = order[i];
    run->entry(run->buffers, &fibers[order[i]].at);
    if (twice.bytes) verify_same();
  }
  self->state = DONE;
  for (;;) yield();
}

static void prepare(struct fiber *fiber, u32 stack, void (*main)(void)) {
  u64 top = (u64)run->stacks + (u64)(stack + 1) * STACK_BYTES;
  void **frame = (void **)top - FRAME;
  for (int i = 0; i < FRAME; i++) frame[i] = 0;
  frame[RETURN_SLOT] = (void *)main;
  fiber->stack_pointer = frame;
  fiber->state = READY;
  fiber->stack = stack;
}

static void resume(struct fiber *fiber) {
  current = fiber;
  msl_switch(&scheduler_stack, fiber->stack_pointer);
  current = 0;
}

static void diverged(struct fiber *waiting, struct fiber *other) {
  run->kind = DIVERGED;
  run->group = group_number;
  run->thread = waiting->number;
  run->line = waiting->line;
  run->other_thread = other->number;
  run->other_is_write = other->state == DONE ? 0 : other->line;
}

// Let SIMD groups go on whose living lanes all wait at one place. Says how many fibers may.
static u32 release_simd(void) {
  u32 released = 0;
  for (u32 first = 0; first < threads; first += LANES) {
    u32 last = first + LANES < threads ? first + LANES : threads;
    struct fiber *one = 0;
    int whole = 1;
    for (u32 i = first; i < last; i++) {
      struct fiber *f = fibers + i;
      if (f->state == DONE) continue;
      if (f->state != AT_SIMD || (one && (f->line != one->line || f->file != one->file))) whole = 0;
      if (f->state == AT_SIMD) one = f;
    }
    if (!one || !whole) continue;
    for (u32 i = first; i < last; i++)
      for (u32 k = first; k < last; k++)
        if (fibers[i].state == AT_SIMD && fibers[k].state == AT_SIMD)
          __builtin_memcpy((u8 *)fibers[i].all + (k - first) * one->size, fibers[k].mine, one->size);
    for (u32 i = first; i < last; i++)
      if (fibers[i].state == AT_SIMD) fibers[i].state = READY, released++;
  }
  return released;
}

static u32 release_barrier(void) {
  struct fiber *one = 0, *other = 0;
  u32 done = 0;
  for (u32 i = 0; i < threads; i++) {
    if (fibers[i].state == DONE) { done++; other = fibers + i; continue; }
    if (one && (fibers[i].state != one->state || fibers[i].line != one->line)) other = fibers + i;
    if (!one) one = fibers + i;
  }
  if (!one) return 0;
  if (other || one->state != AT_BARRIER) {
    diverged(one, other ? other : one);
    return 0;
  }
  if (one->flags & DEVICE) device_epoch++;
  if (one->flags & THREADGROUP) group_epoch++;
  for (u32 i = 0; i < threads; i++) fibers[i].state = READY;
  return threads;
}

static void shuffle(void) {
  for (u32 i = 0; i < threads; i++) order[i] = i;
  if (!run->seed) return;
  for (u32 i = threads - 1; i > 0; i--) {
    u32 k = next_random() % (i + 1);
    u16 kept = order[i];
    order[i] = order[k];
    order[k] = kept;
  }
}

static void run_group(const u32 group[3]) {
  for (u64 i = 0; i < run->region_count; i++)
    if (run->regions[i].is_threadgroup)
      __builtin_memset((void *)run->regions[i].start, 0xcb, run->regions[i].bytes);
  device_epoch = group_epoch = 0;
  for (u32 i = 0; i < threads; i++) {
    struct position *at = &fibers[i].at;
    const u32 *size = run->threads;
    const u32 local[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    for (int axis = 0; axis < 3; axis++) {
      at->group[axis] = group[axis];
      at->local[axis] = local[axis];
      at->groups[axis] = run->groups[axis];
      at->threads[axis] = size[axis];
    }
    fibers[i].number = i;
  }
  shuffle();
  if (!run->has_barriers) {
    static struct fiber only;
    prepare(&only, 0, thread_after_thread);
    resume(&only);
    return;
  }
  for (u32 i = 0; i < threads; i++) prepare(fibers + i, i, fiber_main);
  for (;;) {
    u32 done = 0;
    for (u32 i = 0; i < threads; i++) {
      struct fiber *f = fibers + order[i];
      if (f->state == READY) resume(f);
      if (run->kind != NONE) return;
      done += f->state == DONE;
    }
    if (done == threads) return;
    if (!release_simd() && !release_barrier()) return;
    if (next_random() % 4 == 0) shuffle();
  }
}

EXPORT void msl_run(struct launch *launch) {
  run = launch;
  randomness = launch->seed * 0x9e3779b97f4a7c15ul + 1;
  threads = launch->threads[0] * launch->threads[1] * launch->threads[2];
  last_region = 0;
  current = 0;
  twice.bytes = 0;
  u64 groups = (u64)launch->groups[0] * launch->groups[1] * launch->groups[2];
  u64 first = launch->seed && groups ? next_random() % groups : 0;
  for (u64 i = 0; i < groups && launch->kind == NONE; i++) {
    u64 n = i + first < groups ? i + first : i + first - groups;
    group_number = n;
    const u32 group[3] = {n % launch->groups[0], n / launch->groups[0] % launch->groups[1],
                          n / launch->groups[0] / launch->groups[1]};
    run_group(group);
  }
}
