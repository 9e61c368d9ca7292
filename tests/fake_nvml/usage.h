/*
 * The calls about what a GPU does over time. Part of nvml.c. Counters have counted before the script begins, as those
 * of a real GPU have since its driver was loaded.
 */

#define EPOCH 1700000000.0 /* the CPU's time when the script begins, s */
#define WINDOW (1 / 6.0)   /* over which the driver takes a utilization, s */
#define SHORTEST 0.1       /* between the two samples of a GPM metric, s: NVML API reference, nvmlGpmMetricsGet */
#define NEARLY 1e-6        /* what a sum of fractions may lack of a whole number */
enum { ENERGY_BEFORE = 5000000 };   /* mJ */
#define BYTES_BEFORE (1ULL << 40)
enum { FI_LINK_KIB_TX = 138, FI_LINK_KIB_RX, FI_LINK_TX = 202, FI_LINK_RX = 204 };
enum { UNSIGNED_LONG_LONG = 3 }; /* nvmlValueType_t */
enum { GPM_SM = 2, GPM_OCCUPANCY, GPM_DRAM = 10 };
enum { GPM_VERSION = 1, GPU_INSTANCES = 16 };

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { int gpu; double time; } *GpmSample;
typedef struct { unsigned id; int result; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample first, second; GpmMetric metrics[]; } GpmMetrics;
typedef struct { unsigned version, supported; } GpmSupport;

/* A scripted key and the time; a MIG instance has none of what a card has, as NVML says of it. */
static int ask_script(const char *function, Handle device, int key, const Script **script, double *time) {
    char rest[LINE];
    int gpu = index_of(device), code = begin(function, gpu, rest);
    if (code) return code;
    *time = script_time(facts());
    *script = gpu < INSTANCES ? script_of(facts(), gpu, key) : NULL;
    return *script ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetUtilizationRates(Handle device, Utilization *utilization) {
    const Script *script;
    char rest[LINE];
    double time;
    int code = ask_script(__func__, device, ACTIVE, &script, &time);
    if (code) return code;
    if (find(rest, 0, "gpu %d", index_of(device)) && number(rest, "mig", 0)) return NOT_SUPPORTED;
    utilization->gpu = mean(script, time - WINDOW, time) + NEARLY;
    script = script_of(facts(), index_of(device), MEMACTIVE);
    utilization->memory = script ? mean(script, time - WINDOW, time) + NEARLY : 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Handle device, unsigned *milliwatts) {
    const Script *script;
    double time;
    int code = ask_script(__func__, device, POWER, &script, &time);
    if (!code) *milliwatts = whole(value_at(script, time) * 1000);
    return code;
}

int nvmlDeviceGetTotalEnergyConsumption(Handle device, Count *millijoules) {
    const Script *script;
    double time;
    int code = ask_script(__func__, device, POWER, &script, &time);
    if (!code) *millijoules = ENERGY_BEFORE + whole(integral(script, time) * 1000);
    return code;
}

int nvmlDeviceGetEnforcedPowerLimit(Handle device, unsigned *milliwatts) {
    int code = ask_number(__func__, device, "limit", milliwatts);
    if (!code) *milliwatts *= 1000;
    return code;
}

int nvmlDeviceGetTemperature(Handle device, int sensor, unsigned *celsius) {
    return sensor ? INVALID_ARGUMENT : ask_number(__func__, device, "temp", celsius);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Handle device, Count *reasons) {
    unsigned faults;
    int code = ask_number(__func__, device, "throttle", &faults);
    if (!code) *reasons = faults;
    return code;
}

/* A field that counts a link's traffic; NOT_FOUND if it is none of these. */
static int fill_usage(const Facts *now, int gpu, Field *field) {
    static const struct { unsigned id; int key; double unit; } FIELDS[] = {
        {FI_LINK_KIB_TX, LINK_TX, 1024},
        {FI_LINK_KIB_RX, LINK_RX, 1024},
        {FI_LINK_TX, LINK_TX, 1},
        {FI_LINK_RX, LINK_RX, 1},
    };
    double time = script_time(now);
    char name[32];
    unsigned i = 0;
    while (i < sizeof FIELDS / sizeof *FIELDS && FIELDS[i].id != field->field) i++;
    if (i == sizeof FIELDS / sizeof *FIELDS) return NOT_FOUND;
    snprintf(name, sizeof name, "field:%u", field->field);
    const Rule *error = rule_of(now, 'e', name, gpu);
    if (error) return error->number;
    const Script *script = script_of(now, gpu, FIELDS[i].key + PER_LINK * field->scope);
    if (!script) return NOT_SUPPORTED;
    field->type = UNSIGNED_LONG_LONG;
    field->value.ull = BYTES_BEFORE / FIELDS[i].unit + whole(integral(script, time) * 1e9 / FIELDS[i].unit);
    field->timestamp = whole((EPOCH + time) * 1e6);
    return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------ GPM */

static int has_gpm(int gpu) {
    char rest[LINE];
    return find(rest, 0, "gpu %d", gpu) && number(rest, "gpm", 0);
}

int nvmlGpmQueryDeviceSupport(Handle device, GpmSupport *support) {
    char rest[LINE];
    int code = begin(__func__, index_of(device), rest);
    if (code || support->version != GPM_VERSION) return code ? code : VERSION_MISMATCH;
    support->supported = has_gpm(index_of(device));
    return SUCCESS;
}

int nvmlGpmSampleAlloc(GpmSample *sample) {
    char rest[LINE];
    int code = begin(__func__, NO_GPU, rest);
    if (code) return code;
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(GpmSample sample) {
    char rest[LINE];
    int code = begin(__func__, NO_GPU, rest);
    if (!code) free(sample);
    return code;
}

int nvmlGpmSampleGet(Handle device, GpmSample sample) {
    char rest[LINE];
    int gpu = index_of(device), code = begin(__func__, gpu, rest);
    if (code || !sample || gpu >= INSTANCES) return code ? code : INVALID_ARGUMENT;
    sample->gpu = gpu;
    sample->time = script_time(facts());
    return has_gpm(gpu) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstanceId(Handle device, unsigned *id) {
    char rest[LINE];
    int gpu = index_of(device), code = begin(__func__, gpu, rest);
    if (code || gpu < INSTANCES) return code ? code : NOT_SUPPORTED;
    *id = number(rest, "gi", gpu % INSTANCES);
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle instance, Handle *card) {
    char rest[LINE];
    int gpu = index_of(instance), code = begin(__func__, gpu, rest);
    if (code || gpu < INSTANCES) return code ? code : NOT_SUPPORTED;
    *card = (Handle)(intptr_t)(gpu / INSTANCES);
    return SUCCESS;
}

/* The index of the MIG instance of a card whose GPU instance has this id, or of no GPU. */
static int instance_of(int card, unsigned id) {
    char rest[LINE];
    for (int nth = 0; nth < GPU_INSTANCES; nth++)
        if (find(rest, 0, "gpu %d", INSTANCES * (card + 1) + nth) && number(rest, "gi", nth) == id)
            return INSTANCES * (card + 1) + nth;
    return NO_GPU;
}

int nvmlGpmMigSampleGet(Handle device, unsigned instance, GpmSample sample) {
    char rest[LINE];
    int card = index_of(device), code = begin(__func__, card, rest);
    if (code || !sample || card >= INSTANCES) return code ? code : INVALID_ARGUMENT;
    sample->gpu = instance_of(card, instance);
    sample->time = script_time(facts());
    return sample->gpu == NO_GPU ? INVALID_ARGUMENT : has_gpm(card) ? SUCCESS : NOT_SUPPORTED;
}

static int metric_key(unsigned id) {
    switch (id) {
        case GPM_SM: return SM;
        case GPM_OCCUPANCY: return OCCUPANCY;
        case GPM_DRAM: return DRAM;
        default: return -1;
    }
}

static int fill_metric(const Facts *now, GpmMetric *metric, int gpu, double from, double to) {
    char name[32];
    snprintf(name, sizeof name, "gpm:%u", metric->id);
    const Rule *error = rule_of(now, 'e', name, gpu);
    if (error) return error->number;
    int key = metric_key(metric->id);
    const Script *script = key < 0 ? NULL : script_of(now, gpu, key);
    if (!script) return NOT_SUPPORTED;
    metric->value = mean(script, from, to);
    return SUCCESS;
}

/* No more of the array than the caller counts: how long it is differs between versions of nvidia-ml-py. */
int nvmlGpmMetricsGet(GpmMetrics *asked) {
    char rest[LINE];
    if (asked->version != GPM_VERSION) return VERSION_MISMATCH;
    if (!asked->first || !asked->second || asked->first->gpu != asked->second->gpu) return INVALID_ARGUMENT;
    int gpu = asked->first->gpu, code = begin(__func__, gpu, rest);
    double from = asked->first->time, to = asked->second->time;
    if (code || to - from < SHORTEST - NEARLY) return code ? code : INVALID_ARGUMENT;
    const Facts *now = facts();
    for (GpmMetric *metric = asked->metrics; metric < asked->metrics + asked->count; metric++)
        metric->result = fill_metric(now, metric, gpu, from, to);
    return SUCCESS;
}
