/* SPDX-License-Identifier: Apache-2.0 */
/* News of sequences: a list of those that got tokens or ended, a file descriptor that becomes readable with the first of them, and the
 * caller's function, which eng_step calls for each. */
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/session/session.h"

void news_note(struct eng_sequence *sequence)
{
    struct session_news *news = &sequence->session->news;
    if (sequence->has_news) return;
    sequence->has_news = true;
    if (sequence->is_in_news) return; /* destroyed and created anew since */
    sequence->is_in_news = true;
    sequence->next_news = NULL;
    if (news->last)
        news->last->next_news = sequence;
    else
        news->first = sequence;
    news->last = sequence;
}

void news_signal(struct eng_session *session)
{
    static const uint64_t one = 1;
    if (!session->news.first || !session->news.has_descriptor) return;
    /* It fails only where the counter is full, and then the descriptor is readable. */
    if (write(session->news.descriptor, &one, sizeof one) < 0) return;
}

void news_tell(struct eng_session *session)
{
    struct session_news *news = &session->news;
    news_signal(session);
    news->is_telling = true;
    while (news->first) {
        struct eng_sequence *sequence = news->first;
        news->first = sequence->next_news;
        if (!news->first) news->last = NULL;
        const bool is_told = sequence->has_news && sequence->exists;
        sequence->is_in_news = sequence->has_news = false;
        if (is_told && news->callback) news->callback(news->context, sequence);
    }
    news->is_telling = false;
}

enum eng_status eng_session_wake_fd(struct eng_session *session, int *descriptor, struct eng_error *error)
{
    static const char function[] = "eng_session_wake_fd";
    struct status status = {0};
    if (!report_not_null(session, function, "session", &status) ||
        !report_not_null(descriptor, function, "descriptor", &status) || !session_usable(session, &status))
        return report_status(&status, error);
    struct session_news *news = &session->news;
    if (!news->has_descriptor) {
        const int made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (made < 0) {
            status_fail_errno(&status, STATUS_MACHINE, errno, "%s: cannot make a file descriptor", function);
            return report_status(&status, error);
        }
        news->descriptor = made;
        news->has_descriptor = true;
        news_signal(session);
    }
    *descriptor = news->descriptor;
    return report_ok(error);
}

enum eng_status eng_session_set_callback(struct eng_session *session, eng_sequence_callback *callback, void *context,
                                         struct eng_error *error)
{
    struct status status = {0};
    if (!report_not_null(session, "eng_session_set_callback", "session", &status) || !session_usable(session, &status))
        return report_status(&status, error);
    session->news.callback = callback;
    session->news.context = context;
    return report_ok(error);
}
