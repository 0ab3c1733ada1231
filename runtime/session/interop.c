/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that use the GPU, too: sessions on their streams, results where they are. */
#include "runtime/eng_cuda.h"
#include "runtime/session/session.h"

static bool has_view(const struct backend_type *type, const char *function, struct status *status)
{
    return type->view ||
           status_fail(status, STATUS_USAGE, "%s: expected an engine that runs on one GPU alone", function);
}

enum eng_status eng_session_create_on_stream(struct eng_engine *engine, const struct eng_session_options *options,
                                             void *stream, struct eng_session **session, struct eng_error *error)
{
    static const char function[] = "eng_session_create_on_stream";
    struct status status = {0};
    struct eng_session_options own;
    if (!report_not_null(engine, function, "engine", &status) ||
        !report_not_null(stream, function, "stream", &status) ||
        !report_not_null((const void *)session, function, "session", &status) ||
        !report_read_options(&own, sizeof own, options, "eng_session_options", &status) ||
        !has_view(backend_for(engine), function, &status) || !session_create_on(engine, &own, stream, session, &status))
        return report_status(&status, error);
    return report_ok(error);
}

enum eng_status eng_session_cuda_stream(const struct eng_session *session, void **stream, int *device,
                                        struct eng_error *error)
{
    static const char function[] = "eng_session_cuda_stream";
    struct status status = {0};
    struct backend_view view;
    if (!report_not_null(session, function, "session", &status) || !session_usable(session, &status) ||
        !has_view(session->backend->type, function, &status))
        return report_status(&status, error);
    session->backend->type->view(session->backend, &view);
    if (stream) *stream = view.stream;
    if (device) *device = view.device;
    return report_ok(error);
}

/* Finds the results of the slot's row. */
static bool find_row(const struct eng_session *session, uint32_t slot, const char *function, struct backend_view *view,
                     uint64_t *row, struct status *status)
{
    if (!report_not_null(session, function, "session", status) || !session_usable(session, status) ||
        !has_view(session->backend->type, function, status))
        return false;
    const struct session_slot *own = slots_find_drawn(session, slot, function, status);
    if (!own) return false;
    session->backend->type->view(session->backend, view);
    *row = own->drawn_row;
    return true;
}

enum eng_status eng_slot_cuda_logits(struct eng_session *session, uint32_t slot, const float **logits, void **ready,
                                     struct eng_error *error)
{
    static const char function[] = "eng_slot_cuda_logits";
    struct status status = {0};
    struct backend_view view;
    uint64_t row;
    if (!report_not_null((const void *)logits, function, "logits", &status) ||
        !find_row(session, slot, function, &view, &row, &status))
        return report_status(&status, error);
    *logits = (const float *)(uintptr_t)view.logits + row * session->geometry->vocab_size;
    if (ready) *ready = view.ready;
    return report_ok(error);
}

enum eng_status eng_slot_cuda_hidden(struct eng_session *session, uint32_t slot, const float **hidden, void **ready,
                                     struct eng_error *error)
{
    static const char function[] = "eng_slot_cuda_hidden";
    struct status status = {0};
    struct backend_view view;
    uint64_t row;
    if (!report_not_null((const void *)hidden, function, "hidden", &status) ||
        !find_row(session, slot, function, &view, &row, &status) || !hidden_exist(session, function, &status))
        return report_status(&status, error);
    *hidden = (const float *)(uintptr_t)view.hidden + row * session->geometry->hidden_size;
    if (ready) *ready = view.ready;
    return report_ok(error);
}
