/*
 * A libcuda.so.1 without GPUs: it checks what it is told as a driver would, pretends that work takes time, and writes
 * down each call, so that tests meet the synthetic loads through the real ctypes. Its variables:
 *
 *   FAKE_CUDA_GPUS=1              GPUs that there are
 *   FAKE_CUDA_MEMORY_MIB=8192     device memory of each
 *   FAKE_CUDA_GB_PER_S=100        what a copy carries; copies of one stream follow each other, streams do not mind
 *   FAKE_CUDA_FAIL=cuInit:100     this call answers with this code; cuInit:100:3 from the third time on
 *   FAKE_CUDA_LOG=FILE            "name code amount" a line for each call but cuGetErrorName: bytes of copies and
 *                                 allocations, and for cuStreamSynchronize the
 *                                 microseconds of work that had been given to the stream since it was last waited for
 *
 * Prototypes and numbers are those of cuda.h, CUDA 13.0.
 */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Result;
typedef unsigned long long Address;
enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 100, INVALID_DEVICE, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400 };
enum { MOST = 1024, MOST_GPUS = 16 };

typedef struct Context { int gpu; } Context;
typedef struct Stream { Context *context; double busy_until, given_us; } Stream;
typedef struct { int gpu; Address at; size_t size; } Block; /* of a GPU, or of pinned host memory: gpu -1 */

static Context *contexts[MOST], *current;
static Stream *streams[MOST];
static Block blocks[MOST];
static size_t used[MOST_GPUS];
static int initialised;

static double variable(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}

static int gpus(void) { return (int)variable("FAKE_CUDA_GPUS", 1); }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static Result done(const char *name, Result code, double amount) {
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s %d %.0f\n", name, code, amount);
        fclose(file);
    }
    return code;
}

/* The code with which this call is to fail, this time; 0 for none. */
static Result failure(const char *name) {
    static int calls;
    const char *text = getenv("FAKE_CUDA_FAIL");
    size_t length = strlen(name);
    int code = 0, from = 1;
    if (!text || strncmp(text, name, length) || text[length] != ':') return initialised || !strcmp(name, "cuInit") ? OK : NOT_INITIALIZED;
    sscanf(text + length, ":%d:%d", &code, &from);
    return ++calls >= from ? code : OK;
}

#define BEGIN(name) Result failed = failure(name); if (failed) return done(name, failed, 0)
#define CHECK(name, condition, code) if (!(condition)) return done(name, code, 0)

/* Puts a handle into the first free place of a table; false if it is full. */
static int put(void **table, void *what) {
    for (int i = 0; i < MOST; i++)
        if (!table[i]) {
            table[i] = what;
            return 1;
        }
    return 0;
}

static int knows(void **table, const void *what) {
    for (int i = 0; what && i < MOST; i++)
        if (table[i] == what) return 1;
    return 0;
}

/* Whether so many bytes from there on lie within one live allocation of a GPU, or of the host (-1). */
static int lies_in(int gpu, Address at, size_t size) {
    for (int i = 0; i < MOST; i++)
        if (blocks[i].size && blocks[i].gpu == gpu && at >= blocks[i].at && at + size <= blocks[i].at + blocks[i].size) return 1;
    return 0;
}

static int keep(int gpu, Address at, size_t size) {
    for (int i = 0; i < MOST; i++)
        if (!blocks[i].size) {
            blocks[i] = (Block){gpu, at, size};
            return 1;
        }
    return 0;
}

/* A stream is one of the current context. */
static Result stream_of(Stream *stream) {
    if (!current) return INVALID_CONTEXT;
    return knows((void **)streams, stream) && stream->context == current ? OK : INVALID_HANDLE;
}

static void give(Stream *stream, double seconds) {
    double begin = now();
    stream->busy_until = (stream->busy_until > begin ? stream->busy_until : begin) + seconds;
    stream->given_us += seconds * 1e6;
}

static Result copied(const char *name, int valid, size_t size, Stream *stream) {
    Result code = stream_of(stream);
    if (!code && (!valid || !size)) code = INVALID_VALUE;
    if (!code) give(stream, size / (variable("FAKE_CUDA_GB_PER_S", 100) * 1e9));
    return done(name, code, size);
}

Result cuInit(unsigned flags) {
    BEGIN("cuInit");
    CHECK("cuInit", flags == 0, INVALID_VALUE);
    CHECK("cuInit", gpus() > 0, NO_DEVICE);
    initialised = 1;
    return done("cuInit", OK, 0);
}

Result cuGetErrorName(Result error, const char **name) {
    static const struct { Result error; const char *name; } names[] = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"}, {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) {
            *name = names[i].name;
            return OK;
        }
    *name = NULL;
    return INVALID_VALUE;
}

Result cuDeviceGetCount(int *count) {
    BEGIN("cuDeviceGetCount");
    *count = gpus();
    return done("cuDeviceGetCount", OK, *count);
}

Result cuDeviceGet(int *device, int ordinal) {
    BEGIN("cuDeviceGet");
    CHECK("cuDeviceGet", ordinal >= 0 && ordinal < gpus(), INVALID_DEVICE);
    *device = ordinal;
    return done("cuDeviceGet", OK, ordinal);
}

Result cuCtxCreate_v2(Context **context, unsigned flags, int device) {
    BEGIN("cuCtxCreate_v2");
    CHECK("cuCtxCreate_v2", device >= 0 && device < gpus(), INVALID_DEVICE);
    CHECK("cuCtxCreate_v2", flags == 0 || flags == 1 || flags == 2 || flags == 4, INVALID_VALUE);
    *context = calloc(1, sizeof **context);
    (*context)->gpu = device;
    put((void **)contexts, *context);
    current = *context;
    return done("cuCtxCreate_v2", OK, flags);
}

Result cuCtxSetCurrent(Context *context) {
    BEGIN("cuCtxSetCurrent");
    CHECK("cuCtxSetCurrent", !context || knows((void **)contexts, context), INVALID_CONTEXT);
    current = context;
    return OK; /* not written down: it comes before everything */
}

Result cuMemAlloc_v2(Address *address, size_t size) {
    static Address next = 0x700000000000;
    BEGIN("cuMemAlloc_v2");
    CHECK("cuMemAlloc_v2", current, INVALID_CONTEXT);
    CHECK("cuMemAlloc_v2", size, INVALID_VALUE);
    if (used[current->gpu] + size > variable("FAKE_CUDA_MEMORY_MIB", 8192) * 1048576) return done("cuMemAlloc_v2", OUT_OF_MEMORY, size);
    used[current->gpu] += size;
    *address = next;
    next += size + 512; /* a copy that is too long ends in no other allocation */
    return done("cuMemAlloc_v2", keep(current->gpu, *address, size) ? OK : OUT_OF_MEMORY, size);
}

Result cuMemAllocHost_v2(void **memory, size_t size) {
    BEGIN("cuMemAllocHost_v2");
    CHECK("cuMemAllocHost_v2", current, INVALID_CONTEXT);
    *memory = malloc(size);
    return done("cuMemAllocHost_v2", *memory && keep(-1, (Address)*memory, size) ? OK : OUT_OF_MEMORY, size);
}

Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, Stream *stream) {
    BEGIN("cuMemcpyDtoDAsync_v2");
    int apart = to + size <= from || from + size <= to;
    return copied("cuMemcpyDtoDAsync_v2", current && apart && lies_in(current->gpu, to, size) && lies_in(current->gpu, from, size), size, stream);
}

Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, Stream *stream) {
    BEGIN("cuMemcpyHtoDAsync_v2");
    return copied("cuMemcpyHtoDAsync_v2", current && lies_in(current->gpu, to, size) && lies_in(-1, (Address)from, size), size, stream);
}

Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, Stream *stream) {
    BEGIN("cuMemcpyDtoHAsync_v2");
    return copied("cuMemcpyDtoHAsync_v2", current && lies_in(-1, (Address)to, size) && lies_in(current->gpu, from, size), size, stream);
}

Result cuStreamCreate(Stream **stream, unsigned flags) {
    BEGIN("cuStreamCreate");
    CHECK("cuStreamCreate", current, INVALID_CONTEXT);
    CHECK("cuStreamCreate", flags < 2, INVALID_VALUE);
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current;
    put((void **)streams, *stream);
    return done("cuStreamCreate", OK, 0);
}

Result cuStreamSynchronize(Stream *stream) {
    BEGIN("cuStreamSynchronize");
    Result code = stream_of(stream);
    if (code) return done("cuStreamSynchronize", code, 0);
    double left = stream->busy_until - now(), given_us = stream->given_us;
    stream->given_us = 0;
    while (left > 0) { /* a signal does not end the wait, as it does not end the driver's */
        struct timespec time = {(time_t)left, (long)((left - (time_t)left) * 1e9)};
        nanosleep(&time, NULL);
        left = stream->busy_until - now();
    }
    return done("cuStreamSynchronize", OK, given_us);
}

