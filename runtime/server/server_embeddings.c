/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_embeddings.h"

#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool server_embeddings_add(const struct server_job *job, struct server_choice *choice, const float *hidden,
                           uint32_t hidden_size, struct eng_error *error)
{
    const size_t width = job->request.dimensions ? (size_t)job->request.dimensions : hidden_size;
    double squares = 0;
    for (size_t i = 0; i < width; i++) squares += (double)hidden[i] * (double)hidden[i];
    const double scale = squares > 0 ? 1 / sqrt(squares) : 0;
    bool ok = isfinite(squares);
    if (!ok) *error = (struct eng_error){.status = ENG_NOT_FINITE, .message = "the model's hidden state is not finite"};
    for (size_t i = 0; ok && i < width; i++) {
        const float number = (float)((double)hidden[i] * scale);
        ok = server_buffer_add(&choice->out, (const char *)&number, sizeof number);
        if (!ok) *error = (struct eng_error){.status = ENG_MACHINE, .message = "out of memory"};
    }
    return ok;
}

static bool print_numbers(const struct server_buffer *numbers, struct server_buffer *out)
{
    bool ok = server_buffer_text(out, "[");
    for (size_t at = 0; ok && at < numbers->size; at += sizeof(float)) {
        float number;
        memcpy(&number, numbers->data + at, sizeof number);
        ok = server_buffer_format(out, at ? ",%.9g" : "%.9g", (double)number);
    }
    return ok && server_buffer_text(out, "]");
}

static bool print_base64(const struct server_buffer *numbers, struct server_buffer *out)
{
    const size_t size = sodium_base64_encoded_len(numbers->size, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(size);
    if (!text) return false;
    sodium_bin2base64(text, size, (const unsigned char *)numbers->data, numbers->size, sodium_base64_VARIANT_ORIGINAL);
    bool ok = server_buffer_format(out, "\"") && server_buffer_text(out, text) && server_buffer_text(out, "\"");
    free(text);
    return ok;
}

bool server_embeddings_reply(const char *model, const struct server_job *job, struct server_buffer *out)
{
    bool ok = server_buffer_text(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; ok && i < job->choice_count; i++) {
        const struct server_buffer *numbers = &job->choices[i].out;
        ok = server_buffer_format(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i) &&
             (job->request.is_base64 ? print_base64 : print_numbers)(numbers, out) && server_buffer_text(out, "}");
    }
    return ok && server_buffer_text(out, "],\"model\":") && server_buffer_string(out, model, strlen(model)) &&
           server_buffer_format(out, ",\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"total_tokens\":%" PRIu64 "}}",
                                job->prompt_tokens, job->prompt_tokens);
}
