/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_launch.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/op/activation.h"

static void append(char *text, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Truncates text that does not fit. */
static void append(char *text, size_t capacity, const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, capacity - used, format, arguments);
    va_end(arguments);
}

/* Sizes that tell launches of an op apart, by the names of parameters in the file, in the order in which they are printed, with
 * the text before each: as the first size of a launch, and after others. */
static const struct {
    const char *param, *first, *next;
} shape_sizes[] = {
    {"vocab", " ", " x "}, {"n", " ", " x "},     {"k", " ", " x "},      {"hidden", " ", " x "},
    {"width", " ", " x "}, {"heads", " ", " x "}, {"kv_heads", " ", "/"}, {"head_dim", " ", " heads of "},
};

static const struct {
    const char *param, *text;
} extras[] = {{"has_norm", " +norm"}, {"has_bias", " +bias"}, {"has_residual", " +residual"}};

void launch_shape(const struct engine *file, const struct plan *plan, const struct plan_launch *launch,
                  char text[LAUNCH_TEXT_BYTES])
{
    int64_t value;
    snprintf(text, LAUNCH_TEXT_BYTES, "%s", engine_op_name(file, launch->op));
    bool is_first = true;
    for (size_t i = 0; i < sizeof shape_sizes / sizeof *shape_sizes; i++) {
        if (!engine_param(file, plan, launch, shape_sizes[i].param, &value)) continue;
        append(text, LAUNCH_TEXT_BYTES, "%s%" PRId64, is_first ? shape_sizes[i].first : shape_sizes[i].next, value);
        is_first = false;
    }
    if (engine_param(file, plan, launch, "epilogue", &value) && value != ACTIVATION_NONE) {
        const char *name = epilogue_name(value);
        append(text, LAUNCH_TEXT_BYTES, " +%s", name ? name : "gated");
    }
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++)
        if (engine_param(file, plan, launch, extras[i].param, &value) && value != 0)
            append(text, LAUNCH_TEXT_BYTES, "%s", extras[i].text);
    if (engine_param(file, plan, launch, "window", &value) && value != 0)
        append(text, LAUNCH_TEXT_BYTES, " window %" PRId64, value);
    if (engine_param(file, plan, launch, "rows", &value) && value != (int64_t)plan->header.rows)
        append(text, LAUNCH_TEXT_BYTES, ", %" PRId64 " row%s", value, value == 1 ? "" : "s");
}

const char *tactic_kernel(const struct tuning_value *values, int count, enum engine_target target)
{
    return target == TARGET_CUDA && count > 0 ? values[0].name : NULL;
}

void tactic_tunables(const struct tuning_value *values, int count, enum engine_target target,
                     const struct tuning_value *other, int other_count, char text[LAUNCH_TUNABLES_BYTES])
{
    text[0] = '\0';
    for (int i = tactic_kernel(values, count, target) != NULL; i < count; i++) {
        if (other && i < other_count && strcmp(other[i].name, values[i].name) == 0 && other[i].value == values[i].value)
            continue;
        append(text, LAUNCH_TUNABLES_BYTES, "%s%s=%" PRId64, *text ? " " : "", values[i].name, values[i].value);
    }
    for (char *at = text; *at; at++) *at = (char)tolower((unsigned char)*at);
}
