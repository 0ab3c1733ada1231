/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_sampling.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/cli/cli_args.h"
#include "formats/cli/cli_process.h"

bool cli_read_presence_penalty(const char *text, void *to)
{
    return cli_read_real("--presence-penalty", text, -2, 2, to);
}

bool cli_read_frequency_penalty(const char *text, void *to)
{
    return cli_read_real("--frequency-penalty", text, -2, 2, to);
}

/* An entry of the list, without the comma. */
static bool read_entry(const char *text, size_t size, struct eng_logit_bias *entry)
{
    enum { LONGEST = 63 };
    char copy[LONGEST + 1];
    uint64_t token;
    double bias;
    char *colon = memchr(text, ':', size);
    if (!colon || size > LONGEST) {
        cli_usage("--logit-bias: expected entries like 42:-1.5, separated by commas, found '%.*s'",
                  size > LONGEST ? LONGEST : (int)size, text);
        return false;
    }
    memcpy(copy, text, size);
    copy[size] = '\0';
    copy[colon - text] = '\0';
    if (!cli_read_number("--logit-bias", copy, 0, INT32_MAX, &token) ||
        !cli_read_real("--logit-bias", copy + (colon - text) + 1, -100, 100, &bias))
        return false;
    *entry = (struct eng_logit_bias){(int32_t)token, (float)bias};
    return true;
}

bool cli_read_logit_bias(const char *text, void *to)
{
    struct cli_logit_biases *biases = to;
    biases->count = 0;
    for (const char *at = text, *end; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        if (biases->count == ENG_MAX_LOGIT_BIASES) {
            cli_usage("--logit-bias: expected at most %d entries, found more", ENG_MAX_LOGIT_BIASES);
            return false;
        }
        if (!read_entry(at, (size_t)(end - at), &biases->entries[biases->count++])) return false;
    }
    return true;
}

/* Appends one entry to `line`. */
static int put(char *line, size_t room, const char *before, const struct eng_logprob *entry, const char *after)
{
    if (isfinite(entry->logprob))
        return snprintf(line, room, "%s\"token\": %" PRId32 ", \"logprob\": %.7g%s", before, entry->token,
                        (double)entry->logprob, after);
    return snprintf(line, room, "%s\"token\": %" PRId32 ", \"logprob\": null%s", before, entry->token, after);
}

bool cli_write_logprobs(const struct eng_logprob *drawn, const struct eng_logprob *top, size_t count,
                        struct status *status)
{
    enum { ENTRY = 80 }; /* longest text of one */
    char line[(ENG_MAX_LOGPROBS + 2) * ENTRY];
    size_t used = (size_t)put(line, sizeof line, "{", drawn, ", \"top\": [");
    for (size_t i = 0; i < count && top[i].token >= 0; i++)
        used += (size_t)put(line + used, sizeof line - used, i ? ", {" : "{", &top[i], "}");
    used += (size_t)snprintf(line + used, sizeof line - used, "]}\n");
    return cli_write(line, used, status);
}
