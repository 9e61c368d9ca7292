/*
 * The calls about what a GPU does over time. Part of nvml.c. Counters have counted before the script begins, as those
 * of a real GPU have since its driver was loaded.
 */

#define MIB_PER_GB (1e9 / (1 << 20))
#define EPOCH 1700000000.0 /* the CPU's time when the script begins, s */
#define WINDOW (1 / 6.0)   /* over which the driver takes a utilization, s */
#define PCIE_WINDOW 0.02   /* over which the driver counts PCIe traffic, s */
#define SHORTEST 0.1       /* between the two samples of a GPM metric, s: NVML API reference, nvmlGpmMetricsGet */
#define NEARLY 1e-6        /* what a sum of fractions may lack of a whole number */
enum { ENERGY_BEFORE = 5000000, CAPPED_BEFORE = 7000000 };   /* mJ, ns */
#define BYTES_BEFORE (1ULL << 40)
enum { POWER_POLICY = 0, POWER_CAP_REASON = 4 };
enum { FI_CAPPED = 74, FI_ENERGY = 83, FI_LINK_KIB_TX = 138, FI_LINK_KIB_RX, FI_POWER = 186, FI_PCIE_TX = 197, FI_PCIE_RX,
       FI_LINK_TX = 202, FI_LINK_RX = 204, ALL_LINKS = -1 };
enum { UNSIGNED = 1, UNSIGNED_LONG_LONG = 3 }; /* nvmlValueType_t */
enum { GPM_ACTIVE = 1, GPM_SM, GPM_OCCUPANCY, GPM_DRAM = 10, GPM_PCIE_TX = 20, GPM_PCIE_RX, GPM_LINKS_RX = 60, GPM_LINKS_TX };
enum { GPM_VERSION = 1, GPU_INSTANCES = 16 };

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { Count reference_us, violation_ns; } Violation;
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

int nvmlDeviceGetViolationStatus(Handle device, int policy, Violation *violation) {
    const Script *script;
    double time;
    int code = ask_script(__func__, device, CAPPED, &script, &time);
    if (code || policy != POWER_POLICY) return code ? code : NOT_SUPPORTED;
    *violation = (Violation){whole((EPOCH + time) * 1e6), CAPPED_BEFORE + whole(integral(script, time) * 1e9)};
    return SUCCESS;
}

static int ask_reasons(const char *function, Handle device, Count *reasons) {
    const Script *script;
    double time;
    int code = ask_script(function, device, CAPPED, &script, &time);
    char rest[LINE];
    Count faults = find(rest, 0, "gpu %d", index_of(device)) ? number(rest, "throttle", 0) : 0;
    if (code && !(code == NOT_SUPPORTED && faults)) return code;
    *reasons = faults | (script && value_at(script, time) > 0 ? POWER_CAP_REASON : 0);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Handle d, Count *reasons) { return ask_reasons(__func__, d, reasons); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Handle d, Count *reasons) { return ask_reasons(__func__, d, reasons); }

int nvmlDeviceGetPcieThroughput(Handle device, int receives, unsigned *kilobytes) {
    const Script *script;
    double time;
    int code = ask_script(__func__, device, receives ? PCIE_RX : PCIE_TX, &script, &time);
    if (!code) *kilobytes = whole(mean(script, time - PCIE_WINDOW, time) * 1e6);
    return code;
}

/* The integral of one link's traffic or of all, in GB; false if none is scripted. */
static int link_integral(const Facts *now, int gpu, int way, int link, double time, double *sum) {
    int found = 0, last = link == ALL_LINKS ? MAX_LINKS - 1 : link;
    *sum = 0;
    for (int i = link == ALL_LINKS ? 0 : link; i <= last; i++) {
        const Script *script = script_of(now, gpu, way + PER_LINK * i);
        if (script) *sum += integral(script, time), found = 1;
    }
    return found;
}

/* A field that counts or tells of the moment; NOT_FOUND if it is none of these. */
static int fill_usage(const Facts *now, int gpu, Field *field) {
    static const struct { unsigned id; int key; double scale; Count before; } FIELDS[] = {
        {FI_CAPPED, CAPPED, 1e9, CAPPED_BEFORE},
        {FI_ENERGY, POWER, 1e3, ENERGY_BEFORE},
        {FI_POWER, POWER, 1e3, 0},
        {FI_PCIE_TX, PCIE_TX, 1e9, BYTES_BEFORE},
        {FI_PCIE_RX, PCIE_RX, 1e9, BYTES_BEFORE},
        {FI_LINK_KIB_TX, LINK_TX, 1e9 / 1024, BYTES_BEFORE / 1024},
        {FI_LINK_KIB_RX, LINK_RX, 1e9 / 1024, BYTES_BEFORE / 1024},
        {FI_LINK_TX, LINK_TX, 1e9, BYTES_BEFORE},
        {FI_LINK_RX, LINK_RX, 1e9, BYTES_BEFORE},
    };
    double time = script_time(now), sum = 0;
    char name[32];
    unsigned i = 0;
    while (i < sizeof FIELDS / sizeof *FIELDS && FIELDS[i].id != field->field) i++;
    if (i == sizeof FIELDS / sizeof *FIELDS) return NOT_FOUND;
    snprintf(name, sizeof name, "field:%u", field->field);
    const Rule *error = rule_of(now, 'e', name, gpu, time);
    if (error) return error->number;
    const Script *script = script_of(now, gpu, FIELDS[i].key);
    int is_link = FIELDS[i].key >= LINK_RX;
    if (is_link ? !link_integral(now, gpu, FIELDS[i].key, field->scope, time, &sum) : !script) return NOT_SUPPORTED;
    if (!is_link) sum = field->field == FI_POWER ? value_at(script, time) : integral(script, time);
    field->type = field->field == FI_POWER ? UNSIGNED : UNSIGNED_LONG_LONG;
    field->value.ull = FIELDS[i].before + whole(sum * FIELDS[i].scale);
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

/* The key of a link's metric, as nvml.h numbers them: 18 links, 18 more, and 36 more. */
static int link_key(unsigned id) {
    static const struct { unsigned first, link, links; } RUNS[] = {{62, 0, 18}, {212, 18, 18}, {405, 36, 36}};
    for (int i = 0; i < 3; i++)
        if (id >= RUNS[i].first && id < RUNS[i].first + PER_LINK * RUNS[i].links)
            return LINK_RX + PER_LINK * RUNS[i].link + (id - RUNS[i].first); /* RX comes first in both */
    return -1;
}

static int metric_key(unsigned id) {
    switch (id) {
        case GPM_ACTIVE: return ACTIVE;
        case GPM_SM: return SM;
        case GPM_OCCUPANCY: return OCCUPANCY;
        case GPM_DRAM: return DRAM;
        case GPM_PCIE_TX: return PCIE_TX;
        case GPM_PCIE_RX: return PCIE_RX;
        default: return link_key(id);
    }
}

static int fill_metric(const Facts *now, GpmMetric *metric, int gpu, double from, double to) {
    char name[32];
    double before, after;
    snprintf(name, sizeof name, "gpm:%u", metric->id);
    const Rule *error = rule_of(now, 'e', name, gpu, to);
    if (error) return error->number;
    if (metric->id == GPM_LINKS_RX || metric->id == GPM_LINKS_TX) {
        int way = metric->id == GPM_LINKS_RX ? LINK_RX : LINK_TX;
        if (!link_integral(now, gpu, way, ALL_LINKS, from, &before)) return NOT_SUPPORTED;
        link_integral(now, gpu, way, ALL_LINKS, to, &after);
        metric->value = (after - before) / (to - from) * MIB_PER_GB;
        return SUCCESS;
    }
    int key = metric_key(metric->id);
    const Script *script = key < 0 ? NULL : script_of(now, gpu, key);
    if (!script) return NOT_SUPPORTED;
    metric->value = mean(script, from, to) * (key >= PCIE_TX ? MIB_PER_GB : 1);
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
