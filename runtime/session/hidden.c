/* SPDX-License-Identifier: Apache-2.0 */
/* Hidden states of rows that drew: what embeddings are made of. */
#include <string.h>

#include "runtime/session/session.h"

bool hidden_exist(const struct eng_session *session, const char *function, struct status *status)
{
    return session->geometry->hidden_size ||
           status_fail(status, STATUS_VERSION, "%s: the engine gives no hidden states; build it with engbuild --hidden",
                       function);
}

const float *eng_sequence_hidden(const struct eng_sequence *sequence)
{
    if (!sequence || sequence->drawn_step != sequence->session->steps) return NULL;
    return sequence->hidden;
}

enum eng_status eng_slot_hidden(struct eng_session *session, uint32_t slot, float *hidden, struct eng_error *error)
{
    static const char function[] = "eng_slot_hidden";
    struct status status = {0};
    const float *from = NULL;
    if (report_not_null(session, function, "session", &status) &&
        report_not_null(hidden, function, "hidden", &status) && session_usable(session, &status) &&
        hidden_exist(session, function, &status)) {
        const struct session_slot *own = slots_find_drawn(session, slot, function, &status);
        if (own) from = replay_hidden(session, own->drawn_row, 1, &status);
    }
    if (from) memcpy(hidden, from, session->geometry->hidden_size * sizeof *hidden);
    return from ? report_ok(error) : report_status(&status, error);
}
