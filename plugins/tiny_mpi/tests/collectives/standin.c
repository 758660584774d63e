/* A library of collectives without cards: the functions of NCCL that tiny_mpi calls, and those of HIP.

   Memory of cards is memory of the host. A stream of HIP is a thread that does what it is asked in
   order, so that a call returns before others have come, as on a card; any other stream is done at
   once. Ranks meet in a folder: each writes what it gives to a file, and reads those of the others.
   What NCCL leaves undefined is an error here: another count, type, fold, root or order in two
   ranks, memory beyond an allocation, a card of two ranks, a card that is not the thread's, a
   communicator that was given up. STANDIN_FOLDER is the folder, STANDIN_CARDS the number of cards. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS, CARD_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE };
enum { NOT_READY = 600, HIP_INVALID = 1, HIP_FULL = 2 };
enum { REDUCE, SCATTER, GATHER, BROADCAST, SEND, RECV, COPY };
static const char *NAMES[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv"};
static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

typedef struct { char internal[128]; } Id;
typedef struct Comm {
  unsigned magic;
  char folder[256];
  int size, rank, card, error;
  volatile int aborted;
  long calls, *sent, *received;
} Comm;
typedef struct Op {
  int kind, type, fold, peer;
  size_t count;
  char *source, *target;
  Comm *comm;
  struct Op *next;
} Op;
typedef struct Batch { Op *ops; struct Batch *next; } Batch;
typedef struct Stream {
  unsigned magic;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  Batch *first, *last;
  struct Stream *next;
} Stream;
typedef struct Memory { char *start; size_t size; struct Memory *next; } Memory;
typedef struct { int kind, type, fold, peer; uint64_t count, bytes; } Header;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream *streams;
static Memory *memory;
static __thread int current_card = -1, depth;
static __thread Op *gathered, **gathered_end;
static __thread void *gathered_stream;
static void *(*translate)(uint64_t, uint64_t);

/* The memory of a card of another stand-in: gives where it lies, or NULL. */
void standin_translate(void *(*function)(uint64_t, uint64_t)) { translate = function; }

static int wrong(int status, const char *text) {
  fprintf(stderr, "stand-in: %s\n", text);
  return status;
}

/* --- memory and streams */

static char *memory_at(const void *address, size_t size) {
  if (translate) return translate((uint64_t)address, size);
  char *start = (char *)address, *found = NULL;
  pthread_mutex_lock(&lock);
  for (Memory *each = memory; each; each = each->next)
    if (each->start <= start && start + size <= each->start + each->size) found = start;
  pthread_mutex_unlock(&lock);
  return found;
}

static Stream *stream_at(void *handle) {
  pthread_mutex_lock(&lock);
  Stream *each = streams;
  while (each && each != handle) each = each->next;
  pthread_mutex_unlock(&lock);
  return each;
}

static void run(Op *ops);

static void *work(void *argument) {
  Stream *stream = argument;
  for (;;) {
    pthread_mutex_lock(&stream->lock);
    while (!stream->first) pthread_cond_wait(&stream->changed, &stream->lock);
    Batch *batch = stream->first;
    pthread_mutex_unlock(&stream->lock);
    run(batch->ops);
    pthread_mutex_lock(&stream->lock);
    stream->first = batch->next;
    if (!stream->first) stream->last = NULL;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    free(batch);
  }
  return NULL;
}

static void ask(void *handle, Op *ops) {
  Stream *stream = stream_at(handle);
  if (!stream) { run(ops); return; }
  Batch *batch = calloc(1, sizeof *batch);
  batch->ops = ops;
  pthread_mutex_lock(&stream->lock);
  if (stream->last) stream->last->next = batch; else stream->first = batch;
  stream->last = batch;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->lock);
}

/* --- meeting in a folder */

static void give(const char *path, Header *header, const char *content) {
  char made[400];
  snprintf(made, sizeof made, "%s.made", path);
  FILE *file = fopen(made, "wb");
  fwrite(header, sizeof *header, 1, file);
  fwrite(content, 1, header->bytes, file);
  fclose(file);
  rename(made, path);
}

static char *take(Comm *comm, const char *path, Header *header) {
  while (access(path, R_OK)) {
    if (comm->aborted) return NULL;
    usleep(100);
  }
  FILE *file = fopen(path, "rb");
  if (fread(header, sizeof *header, 1, file) != 1) abort();
  char *content = malloc(header->bytes + 1);
  if (fread(content, 1, header->bytes, file) != header->bytes) abort();
  fclose(file);
  return content;
}

#define FOLD(TYPE) { \
  TYPE *x = (TYPE *)into, *y = (TYPE *)from; \
  for (size_t i = 0; i < count; i++) \
    x[i] = fold == 0 ? x[i] + y[i] : fold == 1 ? x[i] * y[i] : \
           fold == 2 ? (x[i] > y[i] ? x[i] : y[i]) : (x[i] < y[i] ? x[i] : y[i]); \
  break; }

static void fold_into(char *into, char *from, size_t count, int type, int fold) {
  switch (type) {
    case 0: FOLD(int8_t) case 1: FOLD(uint8_t) case 2: FOLD(int32_t) case 3: FOLD(uint32_t)
    case 4: FOLD(int64_t) case 5: FOLD(uint64_t) case 7: FOLD(float) case 8: FOLD(double)
    default: abort();
  }
}

static void collective(Op *op) {
  Comm *comm = op->comm;
  size_t bytes = op->count * SIZES[op->type], given = op->kind == SCATTER ? bytes * comm->size : bytes;
  Header own = {op->kind, op->type, op->fold, op->kind == BROADCAST ? op->peer : 0, op->count, given};
  char path[400], **all = calloc(comm->size, sizeof *all);
  snprintf(path, sizeof path, "%s/%ld-%d", comm->folder, comm->calls, comm->rank);
  give(path, &own, op->source);
  for (int rank = 0; rank < comm->size; rank++) {
    Header other;
    snprintf(path, sizeof path, "%s/%ld-%d", comm->folder, comm->calls, rank);
    all[rank] = take(comm, path, &other);
    if (!all[rank]) return;
    if (memcmp(&own, &other, sizeof own)) {
      fprintf(stderr, "stand-in: rank %d %s of %zu, rank %d %s of %llu differ\n", comm->rank,
              NAMES[own.kind], op->count, rank, NAMES[other.kind], (unsigned long long)other.count);
      comm->error = INVALID_USAGE;
      return;
    }
  }
  if (comm->calls) { /* all have read the last one */
    snprintf(path, sizeof path, "%s/%ld-%d", comm->folder, comm->calls - 1, comm->rank);
    unlink(path);
  }
  comm->calls++;
  if (op->kind == GATHER)
    for (int rank = 0; rank < comm->size; rank++) memcpy(op->target + rank * bytes, all[rank], bytes);
  else if (op->kind == BROADCAST)
    memcpy(op->target, all[op->peer], bytes);
  else {
    size_t start = op->kind == SCATTER ? comm->rank * bytes : 0;
    for (int rank = 1; rank < comm->size; rank++)
      fold_into(all[0] + start, all[rank] + start, op->count, op->type, op->fold);
    memcpy(op->target, all[0] + start, bytes);
  }
  for (int rank = 0; rank < comm->size; rank++) free(all[rank]);
  free(all);
}

static void path_between(char *path, Comm *comm, int from, int to, long number) {
  snprintf(path, 400, "%s/from-%d-to-%d-%ld", comm->folder, from, to, number);
}

/* All sends are under way before the first receive, and all are received at the end. */
static void run(Op *ops) {
  char path[400];
  for (Op *op = ops; op; op = op->next) {
    size_t bytes = op->kind == COPY ? op->count : op->count * SIZES[op->type];
    if (op->kind == COPY) memcpy(op->target, op->source, bytes);
    else if (op->comm->aborted) continue;
    else if (op->kind == SEND) {
      Header header = {SEND, op->type, 0, 0, op->count, bytes};
      path_between(path, op->comm, op->comm->rank, op->peer, op->comm->sent[op->peer]++);
      give(path, &header, op->source);
    } else if (op->kind != RECV) collective(op);
  }
  for (Op *op = ops; op; op = op->next)
    if (op->kind == RECV && !op->comm->aborted) {
      Header header;
      path_between(path, op->comm, op->peer, op->comm->rank, op->comm->received[op->peer]++);
      char *content = take(op->comm, path, &header);
      if (!content) continue;
      if (header.count != op->count || header.type != op->type) {
        fprintf(stderr, "stand-in: %llu sent, %zu received\n", (unsigned long long)header.count, op->count);
        op->comm->error = INVALID_USAGE;
      } else memcpy(op->target, content, header.bytes);
      free(content);
      unlink(path);
    }
  for (Op *op = ops, *next; op; op = next) {
    if (op->kind == SEND) {
      path_between(path, op->comm, op->comm->rank, op->peer, op->comm->sent[op->peer] - 1);
      while (!access(path, F_OK) && !op->comm->aborted) usleep(100);
    }
    next = op->next;
    if (op->kind == COPY && op->fold) free(op->source); /* what was kept of the host */
    free(op);
  }
}

/* --- NCCL */

const char *ncclGetErrorString(int status) {
  const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                         "invalid argument", "invalid usage"};
  return status <= INVALID_USAGE ? texts[status] : "unknown result code";
}

int ncclGetVersion(int *version) {
  const char *stated = getenv("STANDIN_VERSION");
  *version = stated ? atoi(stated) : 22703;
  return SUCCESS;
}

int ncclGetUniqueId(Id *id) {
  static int made;
  memset(id, 0, sizeof *id);
  pthread_mutex_lock(&lock);
  snprintf(id->internal, sizeof *id, "comm-%d-%d", getpid(), made++);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int ncclCommInitRank(Comm **place, int size, Id id, int rank) {
  const char *folder = getenv("STANDIN_FOLDER");
  if (!folder || size < 1 || rank < 0 || rank >= size || strncmp(id.internal, "comm-", 5))
    return wrong(INVALID_ARGUMENT, "a communicator of no name, size or rank");
  if (!translate && current_card < 0) return wrong(INVALID_USAGE, "no card is current");
  Comm *comm = calloc(1, sizeof *comm);
  comm->magic = 0xC0118C7, comm->size = size, comm->rank = rank, comm->card = current_card;
  comm->sent = calloc(size, sizeof(long)), comm->received = calloc(size, sizeof(long));
  snprintf(comm->folder, sizeof comm->folder, "%s/%.100s", folder, id.internal);
  mkdir(comm->folder, 0700);
  char path[400];
  Header own = {0, 0, 0, comm->card, size, 0}, other;
  snprintf(path, sizeof path, "%s/join-%d", comm->folder, rank);
  give(path, &own, "");
  for (int each = 0; each < size; each++) {
    snprintf(path, sizeof path, "%s/join-%d", comm->folder, each);
    free(take(comm, path, &other));
    if (other.count != (uint64_t)size) return wrong(INVALID_USAGE, "ranks name different sizes");
    if (!translate && each != rank && other.peer == comm->card)
      return wrong(INVALID_USAGE, "two ranks have one card");
  }
  *place = comm;
  return SUCCESS;
}

int ncclCommAbort(Comm *comm) { comm->aborted = 1; return SUCCESS; }

int ncclCommGetAsyncError(Comm *comm, int *status) {
  if (!comm || comm->magic != 0xC0118C7) return wrong(INVALID_ARGUMENT, "no communicator");
  *status = comm->error;
  return SUCCESS;
}

int ncclGroupStart(void) {
  if (!depth++) gathered = NULL, gathered_end = &gathered;
  return SUCCESS;
}

int ncclGroupEnd(void) {
  if (!depth) return wrong(INVALID_USAGE, "no group was begun");
  if (!--depth && gathered) ask(gathered_stream, gathered);
  return SUCCESS;
}

static int asked(int kind, const void *source, size_t given, void *target, size_t got, size_t count,
                 int type, int fold, int peer, Comm *comm, void *stream) {
  if (!comm || comm->magic != 0xC0118C7 || comm->aborted)
    return wrong(INVALID_ARGUMENT, "no communicator, or one that was given up");
  if (type < 0 || type > 9 || fold < 0 || fold > 3 || peer < 0 || peer >= comm->size)
    return wrong(INVALID_ARGUMENT, "no such type, fold or rank");
  if (!translate && comm->card != current_card) return wrong(INVALID_USAGE, "another card is current");
  if (!stream || (!translate && !stream_at(stream))) return wrong(INVALID_ARGUMENT, "no stream");
  char *from = source ? memory_at(source, given * SIZES[type]) : NULL;
  char *to = target ? memory_at(target, got * SIZES[type]) : NULL;
  if ((given && !from) || (got && !to)) return wrong(INVALID_ARGUMENT, "memory beyond an allocation");
  Op *op = calloc(1, sizeof *op);
  *op = (Op){kind, type, fold, peer, count, from, to, comm, NULL};
  if (depth) *gathered_end = op, gathered_end = &op->next, gathered_stream = stream;
  else ask(stream, op);
  return SUCCESS;
}

int ncclAllReduce(const void *source, void *target, size_t count, int type, int fold, Comm *comm, void *stream) {
  return asked(REDUCE, source, count, target, count, count, type, fold, 0, comm, stream);
}
int ncclReduceScatter(const void *source, void *target, size_t count, int type, int fold, Comm *comm, void *stream) {
  return asked(SCATTER, source, count * (comm ? comm->size : 1), target, count, count, type, fold, 0, comm, stream);
}
int ncclAllGather(const void *source, void *target, size_t count, int type, Comm *comm, void *stream) {
  return asked(GATHER, source, count, target, count * (comm ? comm->size : 1), count, type, 0, 0, comm, stream);
}
int ncclBroadcast(const void *source, void *target, size_t count, int type, int root, Comm *comm, void *stream) {
  return asked(BROADCAST, source, count, target, count, count, type, 0, root, comm, stream);
}
int ncclSend(const void *source, size_t count, int type, int peer, Comm *comm, void *stream) {
  return asked(SEND, source, count, NULL, 0, count, type, 0, peer, comm, stream);
}
int ncclRecv(void *target, size_t count, int type, int peer, Comm *comm, void *stream) {
  return asked(RECV, NULL, 0, target, count, count, type, 0, peer, comm, stream);
}

/* --- HIP */

int hipGetDeviceCount(int *count) {
  const char *stated = getenv("STANDIN_CARDS");
  *count = stated ? atoi(stated) : 8;
  return SUCCESS;
}

int hipSetDevice(int card) {
  int count;
  hipGetDeviceCount(&count);
  if (card < 0 || card >= count) return wrong(HIP_INVALID, "no such card");
  current_card = card;
  return SUCCESS;
}

int hipMalloc(void **address, size_t size) {
  if (current_card < 0 || !size) return wrong(HIP_INVALID, "no card is current, or no memory is asked for");
  if (size >> 32) return HIP_FULL;
  Memory *made = calloc(1, sizeof *made);
  made->start = *address = malloc(size), made->size = size;
  pthread_mutex_lock(&lock);
  made->next = memory, memory = made;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int hipFree(void *address) {
  int status = HIP_INVALID;
  pthread_mutex_lock(&lock);
  for (Memory **each = &memory; *each; each = &(*each)->next)
    if ((*each)->start == address) {
      Memory *found = *each;
      *each = found->next, status = SUCCESS;
      free(found->start), free(found);
      break;
    }
  pthread_mutex_unlock(&lock);
  return status;
}

int hipStreamCreate(void **place) {
  if (current_card < 0) return wrong(HIP_INVALID, "no card is current");
  Stream *stream = calloc(1, sizeof *stream);
  pthread_mutex_init(&stream->lock, NULL);
  pthread_cond_init(&stream->changed, NULL);
  pthread_mutex_lock(&lock);
  stream->next = streams, streams = stream;
  pthread_mutex_unlock(&lock);
  pthread_t thread;
  pthread_create(&thread, NULL, work, stream);
  pthread_detach(thread);
  *place = stream;
  return SUCCESS;
}

int hipStreamQuery(void *handle) {
  Stream *stream = stream_at(handle);
  if (!stream) return wrong(HIP_INVALID, "no stream");
  pthread_mutex_lock(&stream->lock);
  int status = stream->first ? NOT_READY : SUCCESS;
  pthread_mutex_unlock(&stream->lock);
  return status;
}

int hipStreamSynchronize(void *handle) {
  Stream *stream = stream_at(handle);
  if (!stream) return wrong(HIP_INVALID, "no stream");
  pthread_mutex_lock(&stream->lock);
  while (stream->first) pthread_cond_wait(&stream->changed, &stream->lock);
  pthread_mutex_unlock(&stream->lock);
  return SUCCESS;
}

int hipMemcpyAsync(void *target, const void *source, size_t size, int kind, void *stream) {
  const void *on_card = kind == 1 ? target : source;
  if (kind < 1 || kind > 2 || !stream_at(stream) || !memory_at(on_card, size))
    return wrong(HIP_INVALID, "a copy beyond an allocation, of no kind or without a stream");
  Op *op = calloc(1, sizeof *op);
  *op = (Op){COPY, 0, 0, 0, size, (char *)source, target, NULL, NULL};
  if (kind == 1) { /* the host may change what it gave */
    op->source = malloc(size ? size : 1), op->fold = 1;
    memcpy(op->source, source, size);
  }
  ask(stream, op);
  return SUCCESS;
}
