/* Memory, weights and launches of the tables above. Like the pool, it includes no header of a system. */

#define MEMORY_ALIGNMENT 64
#define CHUNKS_PER_THREAD 8 /* enough that a thread which is held up delays nobody for long */
#define SPINS 20000         /* turns of waiting before a thread sleeps: half a millisecond */
#define SEEK_TO_END 2

int posix_memalign(void **memory, size_t alignment, size_t bytes);
void *calloc(size_t count, size_t bytes);
void free(void *memory);
void *memset(void *memory, int byte, size_t bytes);
int strcmp(const char *one, const char *other);
void *fopen(const char *path, const char *mode);
size_t fread(void *memory, size_t bytes, size_t count, void *file);
int fseek(void *file, long offset, int from);
long ftell(void *file);
int fclose(void *file);
long syscall(long number, ...);

struct model {
  char *memory;
  void *buffers[SLOTS + 1];
  struct record records[LAUNCHES + 1];
};

#if defined(__APPLE__)
#define DARWIN 1
#else
#define DARWIN 0
#endif

static struct pool threads_of_process;
static int thread_count; /* 0 until the first model is opened */

static void start_threads(int wanted) {
  if (!thread_count) thread_count = 1 + tc_pool_start(&threads_of_process, wanted > 1 ? wanted - 1 : 0, SPINS, DARWIN);
}

/* FNV-1a of so many bytes of a file; 0 where it has fewer. */
static u64 digest_of(void *file, u64 bytes) {
  u64 digest = 0xcbf29ce484222325ull;
  unsigned char piece[4096];
  while (bytes) {
    u64 some = bytes < sizeof piece ? bytes : sizeof piece;
    if (fread(piece, 1, some, file) != some) return 0;
    for (u64 i = 0; i < some; i++) digest = (digest ^ piece[i]) * 0x100000001b3ull;
    bytes -= some;
  }
  return digest;
}

/* Why a file does not have the weights that this model wants; NULL when they have been read. */
static const char *read_weights(model *m, void *file) {
  if (digest_of(file, HEADER_BYTES) != HEADER_DIGEST) return "the weights are not those of this model: names, shapes or types differ";
  if (fseek(file, 0, SEEK_TO_END) || ftell(file) != WEIGHT_FILE_BYTES) return "the file of weights is damaged: its size is another";
  for (size_t i = 0; i < WEIGHTS; i++) {
    const struct weight *w = &weights[i];
    if (fseek(file, w->in_file, 0) || fread(m->memory + w->in_memory, 1, w->bytes, file) != w->bytes) return "the file of weights cannot be read";
  }
  return 0;
}

static void prepare(model *m) {
  for (size_t i = 0; i < SLOTS; i++) m->buffers[i] = m->memory + slots[i];
  for (size_t i = 0, slot = 0; i < LAUNCHES; slot += launches[i++].slots) {
    i64 extent = launches[i].extent, pieces = (i64)thread_count * CHUNKS_PER_THREAD;
    i64 chunk = extent == 1 || thread_count == 1 ? extent : (extent + pieces - 1) / pieces;
    m->records[i] = (struct record){launches[i].entry, &m->buffers[slot], 0, extent, chunk};
  }
}

static const char *fill(model *m, const char *path, int threads) {
#ifdef TILES /* Linux gives a process the registers of AMX if it asks: arch_prctl, Documentation/arch/x86/xstate.rst */
  if (syscall(158, 0x1023, 18)) return "this processor or system has no AMX tiles, for which the model was exported";
#endif
  if (posix_memalign((void **)&m->memory, MEMORY_ALIGNMENT, MEMORY_BYTES)) return "there is not enough memory";
  memset(m->memory, 0, MEMORY_BYTES);
  void *file = fopen(path, "rb");
  if (!file) return "the file of weights cannot be opened";
  const char *wrong = read_weights(m, file);
  fclose(file);
  if (wrong) return wrong;
  start_threads(threads);
  prepare(m);
  return 0;
}

model *model_open(const char *path, int threads, const char **error) {
  model *m = calloc(1, sizeof *m);
  const char *wrong = m ? fill(m, path, threads) : "there is not enough memory";
  if (error) *error = wrong;
  if (!wrong) return m;
  model_close(m);
  return 0;
}

void *model_data(model *m, const char *name) {
  for (size_t i = 0; i < PLACES; i++)
    if (!strcmp(places[i].name, name)) return m->memory + places[i].in_memory;
  return 0;
}

void model_run(model *m) { tc_pool_run_many(&threads_of_process, m->records, LAUNCHES); }

void model_close(model *m) {
  if (m) free(m->memory);
  free(m);
}
