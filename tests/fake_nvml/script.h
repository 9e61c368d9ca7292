/*
 * What the file says of the time: values that change, and calls that fail or linger. Part of nvml.c, whose
 * head tells the form. A text is read once into Facts, which nothing changes or frees afterwards: other threads may
 * still be reading the last one.
 */

#include <limits.h>
#include <time.h>

enum { SM, OCCUPANCY, DRAM, ACTIVE, MEMACTIVE, POWER, USED_MIB, LINK_RX };
static const char *const KEYS[] = {"sm", "occupancy", "dram", "active", "memactive", "power", "used_mib"};
enum { LINK_TX = LINK_RX + 1, PER_LINK = 2, MAX_LINKS = 72 }; /* link 3 sends: LINK_TX + 3 * PER_LINK */

typedef struct { double from, value, before; } Point; /* before: the integral from 0 to where this value begins */
typedef struct { int gpu, key, count; double period; Point *points; } Script;
typedef struct { char kind, function[64]; int gpu; double number; } Rule; /* e(rror), s(low) or c(ost) */
typedef struct {
    char *text;
    struct stat read_from;
    double began, frozen; /* below 0: not said */
    int script_count, rule_count;
    Script *scripts; /* by GPU, then key */
    Rule *rules;     /* in the order of the file */
} Facts;

typedef unsigned long long Count;

static Count whole(double number) { return (Count)(number + 0.5); }

static int key_of(const char *word) {
    int link, end = 0;
    char way;
    for (int key = 0; key < LINK_RX; key++)
        if (!strcmp(word, KEYS[key])) return key;
    if (sscanf(word, "link:%d:%c%n", &link, &way, &end) == 2 && !strcmp(word + end, "x") && link >= 0 && link < MAX_LINKS)
        return (way == 't' ? LINK_TX : LINK_RX) + PER_LINK * link;
    fprintf(stderr, "fake nvml: no such key: %s\n", word);
    return -1;
}

/* A line after "script": GPU KEY T:V,T:V period P */
static void read_script(Facts *facts, const char *line) {
    char word[64], *at;
    int start = 0;
    Script script = {0};
    if (sscanf(line, "%d %63s %n", &script.gpu, word, &start) != 2 || (script.key = key_of(word)) < 0) return;
    Point point = {0}, last = {0};
    for (at = (char *)line + start - 1; at == line + start - 1 || *at == ','; last = point) {
        point.from = strtod(at + 1, &at);
        point.value = strtod(at + 1, &at);
        point.before = last.before + (point.from - last.from) * last.value;
        script.points = realloc(script.points, (script.count + 1) * sizeof point);
        script.points[script.count++] = point;
    }
    if (!strncmp(at, " period ", 8)) script.period = strtod(at + 8, NULL);
    facts->scripts = realloc(facts->scripts, (facts->script_count + 1) * sizeof script);
    facts->scripts[facts->script_count++] = script;
}

/* A line that begins with error, slow or cost: FUNCTION GPU NUMBER */
static void read_rule(Facts *facts, const char *line) {
    char text[512];
    Rule rule = {.kind = *line};
    snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\n"), line);
    if (sscanf(text, "%*s %63s %d %lf", rule.function, &rule.gpu, &rule.number) != 3) return;
    facts->rules = realloc(facts->rules, (facts->rule_count + 1) * sizeof rule);
    facts->rules[facts->rule_count++] = rule;
}

static int compare_scripts(const void *a, const void *b) {
    const Script *x = a, *y = b;
    return x->gpu != y->gpu ? x->gpu - y->gpu : x->key - y->key;
}

/* The lines about time are taken out of the text, so that finding the others stays quick. */
static void read_facts(Facts *facts) {
    char *kept = facts->text, *next;
    facts->began = facts->frozen = -1;
    for (char *line = facts->text; *line; line = next) {
        next = line + strcspn(line, "\n");
        next += *next == '\n';
        if (!strncmp(line, "script ", 7)) {
            read_script(facts, line + 7);
            continue;
        }
        int is_rule = !strncmp(line, "error ", 6) || !strncmp(line, "slow ", 5) || !strncmp(line, "cost ", 5);
        if (is_rule) read_rule(facts, line);
        if (!strncmp(line, "clock frozen ", 13)) facts->frozen = strtod(line + 13, NULL);
        else if (!strncmp(line, "clock ", 6)) facts->began = strtod(line + 6, NULL);
        memmove(kept, line, next - line);
        kept += next - line;
    }
    *kept = '\0';
    if (facts->scripts) qsort(facts->scripts, facts->script_count, sizeof *facts->scripts, compare_scripts);
}

/* Seconds since the script began; 0 before. */
static double script_time(const Facts *facts) {
    struct timespec now;
    if (facts->frozen >= 0 || facts->began < 0) return facts->frozen >= 0 ? facts->frozen : 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double time = now.tv_sec + now.tv_nsec / 1e9 - facts->began;
    return time > 0 ? time : 0;
}

/* The script of a key of a GPU, or NULL. */
static const Script *script_of(const Facts *facts, int gpu, int key) {
    Script wanted = {.gpu = gpu, .key = key};
    return facts->scripts ? bsearch(&wanted, facts->scripts, facts->script_count, sizeof wanted, compare_scripts) : NULL;
}

/* The value that holds at a time within the first period; 0 before the first. */
static Point point_at(const Script *script, double time) {
    for (int i = script->count - 1; i >= 0; i--)
        if (script->points[i].from <= time) return script->points[i];
    return (Point){0};
}

static double within_period(const Script *script, double time, long long *periods) {
    *periods = script->period > 0 ? (long long)(time / script->period) : 0;
    return time - *periods * script->period;
}

static double value_at(const Script *script, double time) {
    long long periods;
    return point_at(script, within_period(script, time, &periods)).value;
}

static double first_integral(const Script *script, double time) {
    Point point = point_at(script, time);
    return point.before + (time - point.from) * point.value;
}

/* The integral over the time from 0; before 0 the value at 0 held. */
static double integral(const Script *script, double time) {
    long long periods;
    if (time < 0) return value_at(script, 0) * time;
    time = within_period(script, time, &periods);
    return (periods ? periods * first_integral(script, script->period) : 0) + first_integral(script, time);
}

static double mean(const Script *script, double from, double to) {
    return (integral(script, to) - integral(script, from)) / (to - from);
}

/* The first rule of this kind for a function ("*": every one) and a GPU, or NULL. */
static const Rule *rule_of(const Facts *facts, char kind, const char *function, int gpu) {
    for (const Rule *rule = facts->rules; rule < facts->rules + facts->rule_count; rule++)
        if (rule->kind == kind && rule->gpu == gpu &&
            (!strcmp(rule->function, function) || !strcmp(rule->function, "*")))
            return rule;
    return NULL;
}

/* Sleep, as a driver does that hangs: a signal does not end it. */
static void linger(double seconds) {
    struct timespec rest = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&rest, &rest)) continue;
}

static double used_cpu(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec + used.tv_nsec / 1e9;
}

static void burn(double seconds) {
    for (double end = used_cpu() + seconds; used_cpu() < end;) continue;
}
