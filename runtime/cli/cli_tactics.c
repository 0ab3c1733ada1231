/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_tactics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/cli/cli_process.h"
#include "runtime/cli/cli_launch.h"

struct records {
    struct tuning_record *records; /* owned, in the order of the file */
    bool *used;                    /* owned: a launch refers to the record */
    size_t count;
};

/* Launches of one plan that have the same description. */
struct group {
    const struct plan_launch *launch;   /* the first */
    const struct tuning_record *record; /* NULL: nothing was tuned */
    uint32_t launches;
};

/* Times of a launch from its record; 0: not measured. */
struct rates {
    double gb_per_second, tflops, roofline_percent;
};

static bool out_of_memory(struct status *status) { return status_fail(status, STATUS_MACHINE, "out of memory"); }

/* Every line with its newline, or the rest. */
static const char *line_end(const char *at, const char *end)
{
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    return newline ? newline : end;
}

static void records_free(struct records *records)
{
    free(records->records);
    free(records->used);
}

static bool records_read(const struct engine *file, struct records *records, struct status *status)
{
    const char *at = file->tactics, *end = at + file->tactics_size;
    size_t lines = 0;
    memset(records, 0, sizeof *records);
    for (size_t i = 0; i < file->tactics_size; i++) lines += file->tactics[i] == '\n';
    records->records = calloc(lines + 1, sizeof *records->records);
    records->used = calloc(lines + 1, sizeof *records->used);
    if (!records->records || !records->used) {
        records_free(records);
        return out_of_memory(status);
    }
    for (; records->count < lines; records->count++) {
        const char *newline = line_end(at, end);
        if (!tuning_record_parse(&records->records[records->count], at, (size_t)(newline - at), status)) {
            records_free(records);
            return status_prefix(status, "tactics: line %zu", records->count);
        }
        at = newline + 1;
    }
    return true;
}

static bool alike(const struct plan *plan, const struct plan_launch *a, const struct plan_launch *b)
{
    return a->op == b->op && a->kernel == b->kernel && a->tactic == b->tactic && a->param_count == b->param_count &&
           a->bytes == b->bytes && a->flops == b->flops &&
           memcmp(plan->params + a->first_param, plan->params + b->first_param,
                  a->param_count * sizeof *plan->params) == 0;
}

/* In the order of first occurrence; the caller frees them. NULL: out of memory. */
static struct group *group_launches(const struct plan *plan, struct records *records, size_t *count)
{
    struct group *groups = calloc((size_t)plan->header.launch_count + 1, sizeof *groups);
    *count = 0;
    for (uint32_t n = 0; groups && n < plan->header.launch_count; n++) {
        const struct plan_launch *launch = &plan->launches[n];
        size_t g = 0;
        while (g < *count && !alike(plan, groups[g].launch, launch)) g++;
        groups[g].launches++;
        if (g < *count) continue;
        groups[(*count)++].launch = launch;
        if (launch->tactic >= records->count) continue;
        groups[g].record = &records->records[launch->tactic];
        records->used[launch->tactic] = true;
    }
    return groups;
}

static bool is_measured(const struct tuning_record *record) { return record && record->median_us > 0; }

static struct rates find_rates(const struct tuning_record *record)
{
    struct rates rates = {0};
    if (!is_measured(record)) return rates;
    rates.gb_per_second = (double)record->bytes / record->median_us * 1e-3;
    rates.tflops = (double)record->flops / record->median_us * 1e-6;
    rates.roofline_percent = 100 * record->roofline_us / record->median_us;
    return rates;
}

static double measured_us(const struct group *groups, size_t count, uint32_t *launches)
{
    double us = 0;
    *launches = 0;
    for (size_t g = 0; g < count; g++) {
        if (!is_measured(groups[g].record)) continue;
        us += groups[g].record->median_us * groups[g].launches;
        *launches += groups[g].launches;
    }
    return us;
}

/* The plan that takes the place of plan p where its libraries are there; NULL: none does. */
static const struct plan *library_plan(const struct engine *file, size_t p)
{
    const struct plan *plan = file->library_plans ? &file->library_plans[p] : NULL;
    return plan && plan->header.launch_count > 0 ? plan : NULL;
}

static bool is_library_plan(const struct engine *file, const struct plan *plan)
{
    return file->library_plans && plan >= file->library_plans && plan < file->library_plans + file->plan_count;
}

/* ---- why a kernel ---- */

enum choice { CHOICE_NONE, CHOICE_ONLY, CHOICE_FASTEST, CHOICE_TIE, CHOICE_PLAN };

static const char *const choice_names[] = {
    [CHOICE_NONE] = "-",  [CHOICE_ONLY] = "only one",    [CHOICE_FASTEST] = "fastest",
    [CHOICE_TIE] = "tie", [CHOICE_PLAN] = "in the plan",
};

/* Finds the race in which the record's kernel was not the fastest: its key is a prefix of the record's. NULL: the
 * record is the winner's. */
static const struct tuning_record *find_race(const struct records *records, const struct tuning_record *record)
{
    for (size_t i = 0; i < records->count; i++) {
        const char *key = records->records[i].key;
        const size_t size = strlen(key);
        if (strncmp(record->key, key, size) == 0 && strncmp(record->key + size, "; ", 2) == 0)
            return &records->records[i];
    }
    return NULL;
}

static enum choice find_choice(const struct tuning_record *record, const struct tuning_record *race)
{
    if (!is_measured(record)) return CHOICE_NONE;
    if (race) return CHOICE_PLAN;
    if (!record->runner_up_count) return CHOICE_ONLY;
    /* A race's winner may have a larger median than another within the spread (tuner/race.h). */
    return record->median_us < record->runner_up_us ? CHOICE_FASTEST : CHOICE_TIE;
}

/* ---- for people ---- */

enum { TERMINAL_COLUMNS = 132, INDENT = 6, WIDEST_OP = 56 };

enum column { OP, LAUNCHES, US, SPREAD, GB_S, TFLOP_S, ROOFLINE, CHOICE, COLUMNS };
enum { CELL_BYTES = LAUNCH_TEXT_BYTES };

static const char *const titles[COLUMNS] = {
    [OP] = "op",           [LAUNCHES] = "launches",   [US] = "us",         [SPREAD] = "+-", [GB_S] = "GB/s",
    [TFLOP_S] = "TFLOP/s", [ROOFLINE] = "% roofline", [CHOICE] = "choice",
};

typedef char table_row[COLUMNS][CELL_BYTES];

static void fill_row(const struct engine *file, const struct plan *plan, const struct group *group,
                     const struct tuning_record *race, table_row row)
{
    const struct tuning_record *record = group->record;
    for (int c = 0; c < COLUMNS; c++) snprintf(row[c], CELL_BYTES, "-");
    launch_shape(file, plan, group->launch, row[OP]);
    snprintf(row[LAUNCHES], CELL_BYTES, "%" PRIu32, group->launches);
    if (!is_measured(record)) {
        snprintf(row[US], CELL_BYTES, "%s", record ? "not measured" : "not tuned");
        return;
    }
    struct rates rates = find_rates(record);
    snprintf(row[US], CELL_BYTES, "%.2f", record->median_us);
    snprintf(row[SPREAD], CELL_BYTES, "%.2f", record->spread_us);
    snprintf(row[GB_S], CELL_BYTES, "%.1f", rates.gb_per_second);
    snprintf(row[TFLOP_S], CELL_BYTES, "%.3f", rates.tflops);
    snprintf(row[CHOICE], CELL_BYTES, "%s", choice_names[find_choice(record, race)]);
    if (record->roofline_us > record->median_us)
        snprintf(row[ROOFLINE], CELL_BYTES, "cache");
    else if (record->roofline_us > 0)
        snprintf(row[ROOFLINE], CELL_BYTES, "%.1f", rates.roofline_percent);
}

/* The first and last columns are left-aligned. */
static void print_row(const table_row row, const int widths[COLUMNS], FILE *out)
{
    const bool is_wide = strlen(row[OP]) > WIDEST_OP;
    if (is_wide) fprintf(out, "  %s\n", row[OP]);
    fprintf(out, "  %-*s", widths[OP], is_wide ? "" : row[OP]);
    for (int c = OP + 1; c < CHOICE; c++) fprintf(out, "  %*s", widths[c], row[c]);
    fprintf(out, "  %s\n", row[CHOICE]);
}

/* "KERNEL tunables"; for the kernel of `other`, if not NULL, only the tunables that differ. */
static void describe_tactic(const char *kernel, const struct tuning_value *values, int count,
                            const struct tuning_record *other, enum engine_target target, char *text, size_t size)
{
    char tunables[LAUNCH_TUNABLES_BYTES];
    const char *other_kernel = other ? tactic_kernel(other->values, other->value_count, target) : NULL;
    const bool same = other && (!kernel || !other_kernel || strcmp(kernel, other_kernel) == 0);
    tactic_tunables(values, count, target, same ? other->values : NULL, same ? other->value_count : 0, tunables);
    const char *name = same || !kernel ? "" : kernel;
    snprintf(text, size, "%.100s%s%s", name, *name && *tunables ? " " : "", tunables);
}

/* Lines below the row: the kernel with its tunables, unless it is the op's own without any, and its competitor. */
static void print_tactic(const struct engine *file, const struct group *group, const struct tuning_record *race,
                         FILE *out)
{
    enum engine_target target = file->manifest.target;
    const struct tuning_record *record = group->record;
    const char *kernel = engine_kernel_name(file, group->launch);
    char text[LAUNCH_TUNABLES_BYTES + 128], line[sizeof text + 64];
    if (record)
        describe_tactic(kernel, record->values, record->value_count, NULL, target, text, sizeof text);
    else
        snprintf(text, sizeof text, "%.100s", kernel);
    if (strcmp(text, engine_op_name(file, group->launch->op)) != 0)
        cli_print_wrapped(out, TERMINAL_COLUMNS, INDENT, 2 * INDENT, text);
    if (!is_measured(record) || (!race && !record->runner_up_count)) return;
    if (race) {
        describe_tactic(tactic_kernel(race->values, race->value_count, target), race->values, race->value_count, record,
                        target, text, sizeof text);
        snprintf(line, sizeof line, "fastest by itself %.2f us: %s", race->median_us, text);
    } else {
        describe_tactic(tactic_kernel(record->runner_up, record->runner_up_count, target), record->runner_up,
                        record->runner_up_count, record, target, text, sizeof text);
        snprintf(line, sizeof line, "runner-up %.2f us: %s", record->runner_up_us, text);
    }
    cli_print_wrapped(out, TERMINAL_COLUMNS, INDENT, 2 * INDENT, line);
}

static void find_widths(table_row *rows, size_t count, int widths[COLUMNS])
{
    for (size_t r = 0; r < count; r++)
        for (int c = 0; c < COLUMNS; c++) {
            const int width = (int)strlen(rows[r][c]);
            if (width > widths[c] && (c != OP || width <= WIDEST_OP)) widths[c] = width;
        }
}

static bool print_plan(const struct engine *file, const struct plan *plan, struct records *records, FILE *out)
{
    size_t count;
    uint32_t launches;
    int widths[COLUMNS] = {0};
    struct group *groups = group_launches(plan, records, &count);
    table_row *rows = groups ? calloc(count + 1, sizeof *rows) : NULL;
    if (!rows) {
        free(groups);
        return false;
    }
    double us = measured_us(groups, count, &launches);
    fprintf(out, "\n%s of %" PRIu32 " row%s%s: %" PRIu32 " launches", plan_kind_name(plan->header.kind),
            plan->header.rows, plan->header.rows == 1 ? "" : "s", is_library_plan(file, plan) ? " with libraries" : "",
            plan->header.launch_count);
    if (launches)
        fprintf(out, ", %" PRIu32 " of them measured, %.1f us in all\n", launches, us);
    else
        fprintf(out, ", none of them measured\n");
    for (int c = 0; c < COLUMNS; c++) snprintf(rows[0][c], CELL_BYTES, "%s", titles[c]);
    for (size_t g = 0; g < count; g++) {
        const struct tuning_record *race = groups[g].record ? find_race(records, groups[g].record) : NULL;
        fill_row(file, plan, &groups[g], race, rows[g + 1]);
    }
    find_widths(rows, count + 1, widths);
    for (size_t r = 0; r < count + 1; r++) {
        print_row(rows[r], widths, out);
        if (r == 0) continue;
        const struct group *group = &groups[r - 1];
        print_tactic(file, group, group->record ? find_race(records, group->record) : NULL, out);
    }
    free(rows);
    free(groups);
    return true;
}

/* Measurements of whole plans against each other. */
static void print_others(const struct records *records, FILE *out)
{
    bool any = false;
    for (size_t i = 0; i < records->count; i++) {
        const struct tuning_record *record = &records->records[i];
        if (records->used[i]) continue;
        if (!any) fprintf(out, "\nother records\n");
        any = true;
        cli_print_wrapped(out, TERMINAL_COLUMNS, 2, INDENT, record->key);
        fprintf(out, "%*s%s, ", INDENT, "", record->value_count ? record->values[0].name : "no values");
        if (is_measured(record))
            fprintf(out, "%.2f us\n", record->median_us);
        else
            fprintf(out, "not measured\n");
    }
}

bool tactics_print(const struct engine *file, FILE *out, struct status *status)
{
    static const char *const words[] = {
        "us, +-: of a launch as the tuner measured it by itself, and half the distance between the quartiles",
        "% roofline: of what its bytes and operations allow; cache: faster than memory delivers, the data lay in a "
        "cache",
        "choice: fastest: of its race; only one: there was no other; tie: the spread does not tell the runner-up "
        "apart;",
        "        in the plan: another is faster by itself, this one in the whole plan",
    };
    char line[512];
    struct records records;
    if (!records_read(file, &records, status)) return false;
    snprintf(line, sizeof line, "%s (%s)", file->manifest.target_name, engine_target_name(file->manifest.target));
    cli_print_wrapped(out, TERMINAL_COLUMNS, 0, INDENT, line);
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++)
        cli_print_wrapped(out, TERMINAL_COLUMNS, 0, INDENT, words[w]);
    bool ok = true;
    for (size_t p = 0; ok && p < file->plan_count; p++) {
        const struct plan *library = library_plan(file, p);
        ok = print_plan(file, &file->plans[p], &records, out) && (!library || print_plan(file, library, &records, out));
    }
    if (ok) print_others(&records, out);
    records_free(&records);
    return ok || out_of_memory(status);
}

/* ---- for programs ---- */

static bool put_tactic(json_t *object, const char *kernel_key, const char *tunables_key,
                       const struct tuning_value *values, int count, enum engine_target target)
{
    const char *kernel = tactic_kernel(values, count, target);
    json_t *tunables = json_object();
    bool ok = tunables != NULL;
    if (kernel) ok = ok && json_put(object, kernel_key, json_string_or_null(kernel));
    for (int i = kernel != NULL; i < count; i++)
        ok = ok && json_put(tunables, values[i].name, json_integer(values[i].value));
    return json_put(object, tunables_key, tunables) && ok;
}

/* The winner of the race in which the kernel was not the fastest; race NULL: it was the fastest. */
static bool put_race(json_t *object, const struct tuning_record *race, enum engine_target target)
{
    if (!race) return true;
    json_t *winner = json_pack("{s:f}", "median_us", race->median_us);
    bool ok = winner && put_tactic(winner, "kernel", "tunables", race->values, race->value_count, target);
    return json_put(object, "race_winner", winner) && ok;
}

static bool put_record(json_t *object, const struct tuning_record *record, const struct tuning_record *race,
                       enum engine_target target)
{
    struct rates rates = find_rates(record);
    bool ok = json_put(object, "key", json_string_or_null(record->key)) &&
              json_put(object, "level", json_string_or_null(record->level)) &&
              json_put(object, "candidates", json_integer((json_int_t)record->candidates)) &&
              put_tactic(object, "kernel", "tunables", record->values, record->value_count, target);
    if (!ok || !is_measured(record)) return ok;
    ok = json_put(object, "median_us", json_real(record->median_us)) &&
         json_put(object, "spread_us", json_real(record->spread_us)) &&
         json_put(object, "roofline_us", json_real(record->roofline_us)) &&
         json_put(object, "gb_per_second", json_real(rates.gb_per_second)) &&
         json_put(object, "tflops", json_real(rates.tflops)) &&
         json_put(object, "roofline_percent", json_real(rates.roofline_percent)) &&
         json_put(object, "choice", json_string_or_null(choice_names[find_choice(record, race)])) &&
         put_race(object, race, target);
    if (!ok || !record->runner_up_count) return ok;
    json_t *runner_up = json_pack("{s:f}", "median_us", record->runner_up_us);
    ok = runner_up && put_tactic(runner_up, "kernel", "tunables", record->runner_up, record->runner_up_count, target);
    return json_put(object, "runner_up", runner_up) && ok;
}

static json_t *group_json(const struct engine *file, const struct plan *plan, const struct group *group,
                          const struct records *records)
{
    const struct plan_launch *launch = group->launch;
    char shape[LAUNCH_TEXT_BYTES];
    launch_shape(file, plan, launch, shape);
    json_t *entry = json_object();
    bool ok =
        json_put(entry, "op", json_string(engine_op_name(file, launch->op))) &&
        json_put(entry, "shape", json_string_or_null(shape)) &&
        json_put(entry, "launches", json_integer((json_int_t)group->launches)) &&
        json_put(entry, "kernel", json_string_or_null(engine_kernel_name(file, launch))) &&
        json_put(entry, "bytes", json_integer((json_int_t)launch->bytes)) &&
        json_put(entry, "flops", json_integer((json_int_t)launch->flops)) &&
        json_put(entry, "tuned", json_boolean(group->record)) &&
        json_put(entry, "measured", json_boolean(is_measured(group->record))) &&
        (!group->record || put_record(entry, group->record, find_race(records, group->record), file->manifest.target));
    if (ok) return entry;
    json_decref(entry);
    return NULL;
}

static json_t *plan_json(const struct engine *file, const struct plan *plan, struct records *records)
{
    size_t count;
    uint32_t launches;
    struct group *groups = group_launches(plan, records, &count);
    json_t *list = groups ? json_array() : NULL;
    bool ok = list != NULL;
    for (size_t g = 0; ok && g < count; g++) ok = json_add(list, group_json(file, plan, &groups[g], records));
    double us = groups ? measured_us(groups, count, &launches) : 0;
    free(groups);
    if (!ok) {
        json_decref(list);
        return NULL;
    }
    return json_pack("{s:s, s:I, s:b, s:I, s:I, s:f, s:o}", "kind", plan_kind_name(plan->header.kind), "rows",
                     (json_int_t)plan->header.rows, "with_libraries", is_library_plan(file, plan), "launches",
                     (json_int_t)plan->header.launch_count, "measured_launches", (json_int_t)launches, "measured_us",
                     us, "tactics", list);
}

json_t *tactics_json(const struct engine *file, struct status *status)
{
    struct records records;
    if (!records_read(file, &records, status)) return NULL;
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t p = 0; ok && p < file->plan_count; p++) {
        const struct plan *library = library_plan(file, p);
        ok = json_add(list, plan_json(file, &file->plans[p], &records)) &&
             (!library || json_add(list, plan_json(file, library, &records)));
    }
    records_free(&records);
    if (ok) return list;
    json_decref(list);
    out_of_memory(status);
    return NULL;
}

json_t *records_json(const struct engine *file)
{
    enum { CHECKSUM_DIGITS = 16 };
    json_t *list = json_array();
    const char *at = file->tactics, *end = at + file->tactics_size;
    while (list && at < end) {
        const char *newline = line_end(at, end);
        size_t size = (size_t)(newline - at);
        json_error_t error;
        json_t *record = NULL;
        if (size > CHECKSUM_DIGITS + 1)
            record = json_loadb(at + CHECKSUM_DIGITS + 1, size - CHECKSUM_DIGITS - 1, 0, &error);
        if (record) json_array_append_new(list, record);
        at = newline + 1;
    }
    return list;
}
