/*
 * A libnvidia-ml.so.1 without GPUs: it says what a text file says, so that tests meet NVML through the real
 * nvidia-ml-py. The file is named by FAKE_NVML_FILE and read again on every call, so that a test changes the machine
 * while programs run.
 *
 * One fact a line, words between single blanks, GPUs by index, "_" for a blank in a name:
 *
 *   gpu 0 uuid=GPU-a name=Tesla_V100 memory_mib=16160 pci=0000:06:00 numa=0 cpus=0-19,40-59 cc=7.0 gen=3 width=16
 *   gpu 1 ... used_mib=200 reserved_mib=300
 *   nvlink 0 2 peer=3 version=2     link 2 of GPU 0 ends in GPU 3; version as nvmlDeviceGetNvLinkVersion counts
 *   nvlink 0 3 peer=switch version=6
 *   nvlink 0 4 state=0              this link is down
 *   nvlink 0 4 ... hopper state=1   by field, each link tells its state and speed; without "hopper" all have one speed
 *   nvlink 0 5 peer=cpu speed=25781 link to a CPU; what the driver says that a link carries, MB/s
 *   gpu 1007 uuid=MIG-a name=A100_MIG_1g.10gb memory_mib=9728   MIG instance 7 of GPU 0, which has mig=1: 1000 x (GPU + 1) + 7
 *   gpu 2000 uuid=MIG-b slices=1    MIG instance 0 of GPU 1
 *   gpu 0 ... ecc=2 rows_pending=1 pages_pending=1 remap_failure=1 recovery=1 nvlink_recoveries=5 throttle=64
 *                                   health; see health.h
 *   gpu 0 ... fabric=2 fabric_status=0   nvmlGpuFabricState_t and the status of a registration with NVSwitches
 *   xid 0 79                        GPU 0 has this Xid: an event for those who registered before the line came
 *   driver 550.54.15
 *   p2p 0 1 2                       nvmlGpuP2PStatus_t of two GPUs, the lower index first; without: 0 (OK)
 *   ancestor 0 1 10                 nvmlGpuTopologyLevel_t of two GPUs, the lower index first; without: 50 (SYSTEM)
 *   process 0 4123 300              a compute process: pid, MiB; its memory counts as used
 *   graphics 0 77 20                a graphics process, likewise
 *   mps 0 4123 300                  a client of an MPS server, likewise
 *   ending 0 4123 300               a compute process that is there when a program asks first, and gone the next time
 *   error nvmlDeviceGetUUID 3 15    this call answers with this code; GPU -1 for a call that is about no GPU
 *   error * 3 15                    every call about GPU 3
 *   error gpm:10 3 3                this GPM metric alone fails; field:202 likewise a field value
 *   slow nvmlDeviceGetName 3 30     this call first sleeps for 30 s
 *   cost nvmlDeviceGetName 3 500    this call first uses 500 us of CPU
 *   garbage nvmlDeviceGetName 3     this call answers with bytes that are no text
 *
 * A key that a gpu line lacks is not supported there. Layouts and numbers are those of nvml.h, API 13.
 *
 * What a GPU does over time:
 *
 *   clock 1234.5                    CLOCK_MONOTONIC at the second 0 of the script's time; before it, it is second 0
 *   clock frozen 2.5                or it always is this second, as without a clock it is second 0
 *   script 0 power 0:70,1.5:300     GPU 0 draws 70 W from second 0 and 300 W from 1.5 on; 0 before the first
 *   script 0 sm 0:90,0.2:0 period 1 the first second again and again
 *   script 0 link:3:tx 0:12.5       what GPU 0 sends through its NVLink 3, GB/s; link:3:rx what it receives
 *   gpu 0 ... gpm=1 limit=300       GPM is there; the power limit, W; temp=45, degrees Celsius
 *   gpu 1000 ... gi=5               the ID of the GPU instance; without: what the index ends in
 *
 *   sm         share of SMs in use, %         GPM metric 2
 *   occupancy  of the warps, %                GPM metric 3
 *   dram       of the DRAM bandwidth, %       GPM metric 10
 *   active     of the time, %                 nvmlDeviceGetUtilizationRates: mean of the last 1/6 s
 *   memactive  likewise, memory               nvmlDeviceGetUtilizationRates; without: 0
 *   power      W                              nvmlDeviceGetPowerUsage, TotalEnergyConsumption
 *   used_mib   memory in use                  instead of that of the gpu line
 *   link:L:tx  GB/s                           fields 138 (KiB) and 202 (bytes)
 *   link:L:rx  GB/s                           fields 139 and 204 likewise
 *
 * With FAKE_NVML_CALLS in the environment, each call adds a line to that file: function and GPU, -1 for no GPU.
 *
 * What no script line names is not supported. Counters are exact integrals, added to what was counted before (see
 * usage.h); a GPM metric is the exact mean between its two samples, which are at least 0.1 s apart, else the call
 * answers INVALID_ARGUMENT. A MIG instance has memory, and GPM through its card (nvmlGpmMigSampleGet), scripted under
 * its own number.
 */

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED = 9,
       VERSION_MISMATCH = 25 };
enum { INTERNAL = 0, SYSTEM = 50 };           /* nvmlGpuTopologyLevel_t */
enum { PEER_IS_GPU = 0, PEER_IS_CPU = 1, PEER_IS_SWITCH = 2 }; /* nvmlIntNvLinkDeviceType_t */

#define LINE 512
#define INSTANCES 1000
enum { LINK_SPEED = 90, LINK_COUNT, LINK_SPEED_OF = 164, LINK_STATE_OF = 165 }; /* field ids */
#define MAX_GPUS 128
#define MIB (1ULL << 20)
#define NO_GPU (-1)
#define SWITCH_ADDRESS "ffff:f0:00"
#define CPU_ADDRESS "ffff:f1:00"

typedef struct Device *Handle; /* the index plus 1, since NULL is no handle */
typedef struct { char legacy_id[16]; unsigned domain, bus, device, model, subsystem; char id[32]; } PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    union { unsigned ui; unsigned long long ull; double d; } value;
} Field;
typedef struct {
    unsigned multiprocessors, copies, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} Attributes;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;

#include "script.h"

static int initialised;

/* What the file says now. It is opened every time, for tests that wait for a question; a new one is a new text. */
static const Facts *facts(void) {
    static const Facts nothing = {.text = "", .began = -1, .frozen = -1};
    static const Facts *_Atomic last;
    const Facts *known = last;
    struct stat status;
    FILE *file = fopen(getenv("FAKE_NVML_FILE"), "r");
    if (!file || fstat(fileno(file), &status)) return &nothing;
    if (known && !memcmp(&status.st_mtim, &known->read_from.st_mtim, sizeof status.st_mtim) &&
        status.st_ino == known->read_from.st_ino) {
        fclose(file);
        return known;
    }
    Facts *fresh = calloc(1, sizeof *fresh);
    fresh->text = calloc(1, status.st_size + 1);
    if (fread(fresh->text, 1, status.st_size, file) != (size_t)status.st_size) fresh->text[0] = '\0';
    fclose(file);
    fresh->read_from = status;
    read_facts(fresh);
    return last = fresh;
}

/* The rest of the nth line that begins with these words, blank first; false if there is none. */
static int find(char rest[LINE], int nth, const char *format, ...) {
    char wanted[LINE];
    va_list words;
    va_start(words, format);
    size_t length = vsnprintf(wanted, sizeof wanted, format, words);
    va_end(words);
    for (const char *line = facts()->text; *line; line = strchr(line, '\n') + 1)
        if (!strncmp(line, wanted, length) && (line[length] == ' ' || line[length] == '\n') && nth-- == 0) {
            snprintf(rest, LINE, "%.*s", (int)strcspn(line + length, "\n") + 1, line + length);
            return 1;
        }
    return 0;
}

/* The text after key= in the rest of a line; false if it is not there. */
static int value(char text[LINE], const char *rest, const char *key) {
    char wanted[LINE];
    size_t length = snprintf(wanted, sizeof wanted, " %s=", key);
    const char *at = strstr(rest, wanted);
    if (!at) return 0;
    memmove(text, at + length, strlen(at + length) + 1);
    text[strcspn(text, " \n")] = '\0';
    return 1;
}

static unsigned number(const char *rest, const char *key, unsigned otherwise) {
    char text[LINE];
    return value(text, rest, key) ? strtoul(text, NULL, 10) : otherwise;
}

static int index_of(Handle device) { return (int)(intptr_t)device - 1; }

/* Each line is one write at the end of the file, so that several processes may count into one. */
static void count_call(const char *function, int gpu) {
    const char *path = getenv("FAKE_NVML_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %d\n", function, gpu);
    fclose(file);
}

/* What every call does first: the time and the error that the test wants, else the GPU's line. */
static int begin(const char *function, int gpu, char rest[LINE]) {
    count_call(function, gpu);
    if (!initialised) return UNINITIALIZED;
    const Facts *now = facts();
    const Rule *cost = rule_of(now, 'c', function, gpu), *slow = rule_of(now, 's', function, gpu);
    const Rule *error = rule_of(now, 'e', function, gpu);
    if (cost) burn(cost->number / 1e6);
    if (slow) linger(slow->number);
    if (error) return error->number;
    return gpu == NO_GPU || find(rest, 0, "gpu %d", gpu) ? SUCCESS : INVALID_ARGUMENT;
}

static int ask(const char *function, Handle device, const char *key, char text[LINE]) {
    int code = begin(function, index_of(device), text);
    return code ? code : value(text, text, key) ? SUCCESS : NOT_SUPPORTED;
}

static int ask_name(const char *function, Handle device, const char *key, char *out, unsigned size) {
    char text[LINE], rest[LINE];
    int code = ask(function, device, key, text);
    if (code) return code;
    for (char *c = text; (c = strchr(c, '_')); ) *c = ' ';
    if (find(rest, 0, "garbage %s %d", function, index_of(device))) strcpy(text, "\xff\xfe\x80");
    return (unsigned)snprintf(out, size, "%s", text) < size ? SUCCESS : INSUFFICIENT_SIZE;
}

static int ask_number(const char *function, Handle device, const char *key, unsigned *out) {
    char text[LINE];
    int code = ask(function, device, key, text);
    if (!code) *out = strtoul(text, NULL, 10);
    return code;
}

/* A list such as 0-19,40-59 as bits; what does not fit is left out, as NVML does. */
static int ask_bits(const char *function, Handle device, const char *key, unsigned size, unsigned long long *words) {
    char text[LINE], *rest = NULL;
    int code = ask(function, device, key, text);
    if (code) return code;
    memset(words, 0, size * sizeof *words);
    for (char *range = strtok_r(text, ",", &rest); range; range = strtok_r(NULL, ",", &rest)) {
        char *dash = strchr(range, '-');
        unsigned last = atoi(dash ? dash + 1 : range);
        for (unsigned bit = atoi(range); bit <= last && bit / 64 < size; bit++) words[bit / 64] |= 1ULL << bit % 64;
    }
    return SUCCESS;
}

static int find_link(int gpu, unsigned link, char rest[LINE]) {
    if (find(rest, 0, "nvlink %d %u", gpu, link)) return SUCCESS;
    return find(rest, 0, "nvlink %d", gpu) ? INVALID_ARGUMENT : NOT_SUPPORTED;
}

static int ask_link(const char *function, Handle device, unsigned link, char rest[LINE]) {
    int code = begin(function, index_of(device), rest);
    return code ? code : find_link(index_of(device), link, rest);
}

static int fill_address(const char *text, PciInfo *pci) {
    memset(pci, 0, sizeof *pci);
    if (sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) return INVALID_ARGUMENT;
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return SUCCESS;
}

static unsigned long long process_memory(const char *kind, int gpu) {
    char rest[LINE];
    unsigned long long sum = 0, mib = 0;
    for (int nth = 0; find(rest, nth, "%s %d", kind, gpu); nth++)
        if (sscanf(rest, "%*u %llu", &mib) == 1) sum += mib * MIB;
    return sum;
}

static int ask_memory(const char *function, Handle device, Memory2 *memory) {
    char rest[LINE];
    int gpu = index_of(device), code = begin(function, gpu, rest);
    if (code) return code;
    const Script *used = script_of(facts(), gpu, USED_MIB);
    memory->total = number(rest, "memory_mib", 0) * MIB;
    memory->reserved = number(rest, "reserved_mib", 0) * MIB;
    memory->used = (used ? whole(value_at(used, script_time(facts()))) : (Count)number(rest, "used_mib", 0)) * MIB;
    memory->used += process_memory("process", gpu) + process_memory("graphics", gpu) + process_memory("mps", gpu);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

static int ask_processes(const char *function, Handle device, const char *kind, unsigned *count, Process *processes) {
    char rest[LINE];
    int gpu = index_of(device), code = begin(function, gpu, rest);
    if (code) return code;
    unsigned room = *count;
    for (*count = 0; find(rest, *count, "%s %d", kind, gpu); ++*count) {
        if (*count >= room) continue;
        Process *process = &processes[*count];
        memset(process, 0xff, sizeof *process); /* all bits set: no MIG instance, memory not known */
        if (sscanf(rest, "%u %llu", &process->pid, &process->memory) == 2) process->memory *= MIB;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS; /* callers ask with no room for the count */
}

static int ask_compute_processes(const char *function, Handle device, unsigned *count, Process *processes) {
    static char asked[MAX_GPUS];
    int gpu = index_of(device), known = gpu >= 0 && gpu < MAX_GPUS;
    const char *kind = known && !asked[gpu] && process_memory("ending", gpu) ? "ending" : "process";
    if (known && processes) asked[gpu] = 1;
    return ask_processes(function, device, kind, count, processes);
}

int nvmlInitWithFlags(unsigned flags) {
    char rest[LINE];
    (void)flags;
    initialised = getenv("FAKE_NVML_FILE") != NULL;
    int code = initialised ? begin(__func__, NO_GPU, rest) : DRIVER_NOT_LOADED;
    initialised = code == SUCCESS;
    return code;
}

int nvmlShutdown(void) {
    char rest[LINE];
    int code = begin(__func__, NO_GPU, rest);
    initialised = 0;
    return code;
}

const char *nvmlErrorString(int code) { return code ? "Error without words in nvidia-ml-py" : "Success"; }

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    char rest[LINE];
    int code = begin(__func__, NO_GPU, rest);
    if (code) return code;
    char *text = find(rest, 0, "driver") ? strtok(rest, " \n") : "550.54.15";
    return (unsigned)snprintf(version, size, "%s", text) < size ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    char rest[LINE];
    int code = begin(__func__, NO_GPU, rest);
    *count = 0;
    while (!code && find(rest, 0, "gpu %u", *count)) ++*count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *device) {
    char rest[LINE];
    *device = (Handle)((intptr_t)index + 1);
    return begin(__func__, index, rest);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *device) {
    char rest[LINE], text[LINE];
    int index;
    for (int nth = 0; find(rest, nth, "gpu"); nth++)
        if (value(text, rest, "uuid") && !strcmp(text, uuid) && sscanf(rest, "%d", &index) == 1) {
            *device = (Handle)((intptr_t)index + 1);
            return begin(__func__, index, rest);
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Handle d, char *uuid, unsigned size) { return ask_name(__func__, d, "uuid", uuid, size); }
int nvmlDeviceGetName(Handle d, char *name, unsigned size) { return ask_name(__func__, d, "name", name, size); }
int nvmlDeviceGetMaxPcieLinkGeneration(Handle d, unsigned *gen) { return ask_number(__func__, d, "gen", gen); }
int nvmlDeviceGetMaxPcieLinkWidth(Handle d, unsigned *width) { return ask_number(__func__, d, "width", width); }

int nvmlDeviceGetComputeMode(Handle d, unsigned *mode) { return ask_number(__func__, d, "mode", mode); }

int nvmlDeviceGetMigMode(Handle device, unsigned *current, unsigned *pending) {
    int code = ask_number(__func__, device, "mig", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle device, unsigned *count) {
    char rest[LINE];
    int code = begin(__func__, index_of(device), rest);
    if (!code) *count = number(rest, "mig", 0) ? number(rest, "most", 7) : 0;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned index, Handle *instance) {
    char rest[LINE];
    int card = index_of(device), code = begin(__func__, card, rest), number = INSTANCES * (card + 1) + (int)index;
    if (code) return code;
    if (!find(rest, 0, "gpu %d", number)) return NOT_FOUND;
    *instance = (Handle)((intptr_t)number + 1);
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(Handle device, Attributes *attributes) {
    char rest[LINE];
    int code = begin(__func__, index_of(device), rest);
    if (code) return code;
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = attributes->compute_slices = number(rest, "slices", 0);
    attributes->memory_mib = number(rest, "memory_mib", 0);
    return attributes->gpu_slices ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetP2PStatus(Handle device, Handle other, int index, unsigned *status) {
    char rest[LINE];
    int a = index_of(device), b = index_of(other), code = begin(__func__, a, rest);
    if (code || index) return code ? code : NOT_SUPPORTED;
    *status = find(rest, 0, "p2p %d %d", a < b ? a : b, a < b ? b : a) ? atoi(rest) : 0;
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(Handle device, unsigned size, unsigned long long *words) {
    return ask_bits(__func__, device, "cpus", size, words);
}

int nvmlDeviceGetMemoryAffinity(Handle device, unsigned size, unsigned long long *words, unsigned scope) {
    (void)scope;
    return ask_bits(__func__, device, "numa", size, words);
}

int nvmlDeviceGetPciInfo_v3(Handle device, PciInfo *pci) {
    char text[LINE];
    int code = ask(__func__, device, "pci", text);
    return code ? code : fill_address(text, pci);
}

int nvmlDeviceGetCudaComputeCapability(Handle device, int *major, int *minor) {
    char text[LINE];
    int code = ask(__func__, device, "cc", text);
    return code ? code : sscanf(text, "%d.%d", major, minor) == 2 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMemoryInfo(Handle device, Memory *memory) {
    Memory2 all;
    int code = ask_memory(__func__, device, &all);
    if (!code) *memory = (Memory){all.total, all.free, all.used + all.reserved}; /* the older call: reserve is use */
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(Handle device, Memory2 *memory) {
    return memory->version == (sizeof *memory | 2 << 24) ? ask_memory(__func__, device, memory) : VERSION_MISMATCH;
}

int nvmlDeviceGetNvLinkState(Handle device, unsigned link, unsigned *active) {
    char rest[LINE];
    int code = ask_link(__func__, device, link, rest);
    if (!code) *active = number(rest, "state", 1);
    return code;
}

int nvmlDeviceGetNvLinkVersion(Handle device, unsigned link, unsigned *version) {
    char rest[LINE];
    int code = ask_link(__func__, device, link, rest);
    if (!code) *version = number(rest, "version", 0);
    return code;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle device, unsigned link, unsigned *type) {
    char rest[LINE];
    int code = ask_link(__func__, device, link, rest);
    if (!code) *type = strstr(rest, " peer=switch") ? PEER_IS_SWITCH : strstr(rest, " peer=cpu") ? PEER_IS_CPU : PEER_IS_GPU;
    return code;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle device, unsigned link, PciInfo *pci) {
    char rest[LINE], peer[LINE];
    int code = ask_link(__func__, device, link, rest);
    if (code) return code;
    if (!value(peer, rest, "peer")) return NOT_SUPPORTED;
    if (!strcmp(peer, "switch")) return fill_address(SWITCH_ADDRESS, pci);
    if (!strcmp(peer, "cpu")) return fill_address(CPU_ADDRESS, pci);
    return find(rest, 0, "gpu %s", peer) && value(peer, rest, "pci") ? fill_address(peer, pci) : NOT_SUPPORTED;
}

int nvmlDeviceGetTopologyCommonAncestor(Handle device, Handle other, unsigned *level) {
    char rest[LINE];
    int a = index_of(device), b = index_of(other), code = begin(__func__, a, rest);
    if (code) return code;
    *level = a == b ? INTERNAL : SYSTEM;
    if (find(rest, 0, "ancestor %d %d", a < b ? a : b, a < b ? b : a)) *level = atoi(rest);
    return SUCCESS;
}

/* Versions 2 and 3 differ in nothing but the name; drivers before 510 have version 2 only. */
int nvmlDeviceGetComputeRunningProcesses_v2(Handle device, unsigned *count, Process *processes) {
    return ask_compute_processes(__func__, device, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned *count, Process *processes) {
    return ask_compute_processes(__func__, device, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Handle device, unsigned *count, Process *processes) {
    return ask_processes(__func__, device, "graphics", count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle device, unsigned *count, Process *processes) {
    return ask_processes(__func__, device, "graphics", count, processes);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle device, unsigned *count, Process *processes) {
    return ask_processes(__func__, device, "mps", count, processes);
}

#include "usage.h"
#include "health.h"

/* A link's own speed and state as the drivers of Hopper answer, and one speed for all as those before do. */
int nvmlDeviceGetFieldValues(Handle device, int count, Field *fields) {
    char rest[LINE];
    int code = begin(__func__, index_of(device), rest);
    const Facts *now = facts();
    for (int i = 0; !code && i < count; i++) {
        Field *field = &fields[i];
        if ((field->result = fill_usage(now, index_of(device), field)) != NOT_FOUND) continue;
        if ((field->result = fill_health(index_of(device), field)) != NOT_FOUND) continue;
        char *key = field->field == LINK_STATE_OF ? "state" : "speed";
        unsigned link = field->field == LINK_SPEED ? 0 : field->scope;
        field->result = find_link(index_of(device), link, rest);
        char text[LINE];
        int newer = field->field != LINK_SPEED;
        if (!field->result && (!value(text, rest, key) || newer != !!strstr(rest, " hopper"))) field->result = NOT_SUPPORTED;
        if (!field->result) field->value.ui = number(rest, key, 0);
        if (field->field != LINK_COUNT) continue;
        for (field->value.ui = 0; find(rest, field->value.ui, "nvlink %d", index_of(device));) field->value.ui++;
        field->result = SUCCESS;
    }
    return code;
}
