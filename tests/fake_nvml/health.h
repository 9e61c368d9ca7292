/*
 * The calls about a GPU's health, and the events of its faults. Part of nvml.c.
 *
 * An event set waits by inotify for another text of the file, so that who waits costs nothing.
 */

#include <libgen.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

enum { TIMEOUT = 10, XID_EVENT = 8, NO_INSTANCE = 0xffffffff };
enum { FABRIC_VERSION_2 = 36 | 2 << 24, FABRIC_VERSION_3 = 40 | 3 << 24 };

typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } Fabric;
typedef struct { Handle device; Count type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { int fd, gpus, gpu[MAX_GPUS], seen[MAX_GPUS]; } *EventSet;

/* A field that tells of health; NOT_FOUND if it is none of these. */
static int fill_health(int gpu, Field *field) {
    static const struct { unsigned id; const char *key; } FIELDS[] = {
        {4, "ecc"}, {31, "pages_pending"}, {59, "nvlink_recoveries"}, {144, "rows_pending"}, {145, "remap_failure"},
        {230, "recovery"},
    };
    char rest[LINE], text[LINE];
    for (unsigned i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        if (FIELDS[i].id != field->field) continue;
        if (!find(rest, 0, "gpu %d", gpu) || !value(text, rest, FIELDS[i].key)) return NOT_SUPPORTED;
        field->type = UNSIGNED_LONG_LONG;
        field->value.ull = strtoull(text, NULL, 10);
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuFabricInfoV(Handle device, Fabric *fabric) {
    char rest[LINE], text[LINE];
    int code = begin(__func__, index_of(device), rest);
    if (code) return code;
    if (fabric->version != FABRIC_VERSION_2 && fabric->version != FABRIC_VERSION_3) return VERSION_MISMATCH;
    fabric->state = value(text, rest, "fabric") ? strtoul(text, NULL, 10) : 0;
    fabric->status = number(rest, "fabric_status", 0);
    return SUCCESS;
}

static int xids(int gpu) {
    char rest[LINE];
    int count = 0;
    while (find(rest, count, "xid %d", gpu)) count++;
    return count;
}

int nvmlEventSetCreate(EventSet *set) {
    char rest[LINE];
    int code = begin(__func__, NO_GPU, rest);
    if (code) return code;
    char *path = strdup(getenv("FAKE_NVML_FILE"));
    *set = calloc(1, sizeof **set);
    (*set)->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch((*set)->fd, dirname(path), IN_MOVED_TO);
    free(path);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Handle device, Count types, EventSet set) {
    char rest[LINE];
    int gpu = index_of(device), code = begin(__func__, gpu, rest);
    if (code) return code;
    if (!(types & XID_EVENT) || gpu >= INSTANCES) return NOT_SUPPORTED;
    set->gpu[set->gpus] = gpu;
    set->seen[set->gpus++] = xids(gpu);
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet set, Event *event, unsigned milliseconds) {
    struct pollfd changed = {.fd = set->fd, .events = POLLIN};
    char rest[LINE], skipped[4096];
    for (;;) {
        while (read(set->fd, skipped, sizeof skipped) > 0) continue;
        int code = begin(__func__, NO_GPU, rest);
        if (code) return code;
        for (int i = 0; i < set->gpus; i++) {
            if (!find(rest, set->seen[i], "xid %d", set->gpu[i])) continue;
            set->seen[i]++;
            *event = (Event){(Handle)(intptr_t)(set->gpu[i] + 1), XID_EVENT, strtoull(rest, NULL, 10), NO_INSTANCE, NO_INSTANCE};
            return SUCCESS;
        }
        if (poll(&changed, 1, milliseconds) == 0) return TIMEOUT;
    }
}

int nvmlEventSetFree(EventSet set) {
    char rest[LINE];
    int code = begin(__func__, NO_GPU, rest);
    if (code) return code;
    close(set->fd);
    free(set);
    return SUCCESS;
}
