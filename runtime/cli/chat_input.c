/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_input.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/cli/cli_process.h"

/* Signs of the prompts for a new message, and for one that goes on. */
enum { FIRST_SIGN = '>', NEXT_SIGN = '|' };

static void open_history(struct chat_input *input)
{
    struct status status = {0};
    char *path = chat_history_path();
    if (!path) {
        chat_note(input->style, "no history is kept: neither XDG_STATE_HOME nor HOME names a folder");
        return;
    }
    input->keeps_history = chat_history_open(&input->history, path, &status);
    if (!input->keeps_history) chat_note(input->style, "no history is kept: %s", status.message);
    for (size_t i = 0; input->keeps_history && i < input->history.count; i++)
        chat_editor_remember(input->editor, input->history.entries[i]);
}

bool chat_input_open(struct chat_input *input, const struct chat_style *style, bool keeps_history,
                     struct status *status)
{
    *input = (struct chat_input){.style = style};
    if (style->can_edit && !chat_editor_open(&input->editor, style, status)) return false;
    if (input->editor && keeps_history) open_history(input);
    return true;
}

void chat_input_close(struct chat_input *input)
{
    chat_editor_close(input->editor);
    chat_history_close(&input->history);
    chat_message_reset(&input->message);
    free(input->line);
    *input = (struct chat_input){0};
}

/* A line without an editor. */
static enum chat_line read_plain(struct chat_input *input, char sign, const char **line)
{
    if (input->style->is_interactive) {
        fprintf(stderr, "%c ", sign);
        if (!cli_wait_for_input()) {
            fputc('\n', stderr);
            return CHAT_LINE_INTERRUPTED;
        }
    }
    ssize_t size = getline(&input->line, &input->capacity, stdin);
    if (size < 0 && input->style->is_interactive) fputc('\n', stderr);
    if (size < 0) return cli_caught_signal() ? CHAT_LINE_INTERRUPTED : CHAT_LINE_END;
    while (size && (input->line[size - 1] == '\n' || input->line[size - 1] == '\r')) input->line[--size] = '\0';
    *line = input->line;
    return CHAT_LINE_TEXT;
}

/* Whether the conversation goes on after a signal. */
static bool goes_on(struct chat_input *input, bool had_text)
{
    if (!input->style->is_interactive || cli_caught_signal() != SIGINT) return false;
    had_text = had_text || input->message.is_begun;
    chat_message_reset(&input->message);
    if (!had_text && input->was_interrupted) return false;
    if (!had_text) chat_reply("Ctrl-C again, or Ctrl-D, leaves the chat.");
    input->was_interrupted = !had_text;
    cli_forget_signal();
    return true;
}

static void remember(struct chat_input *input)
{
    struct status status = {0};
    if (input->editor) chat_editor_remember(input->editor, input->message.text);
    if (!input->keeps_history || chat_history_add(&input->history, input->message.text, &status)) return;
    input->keeps_history = false;
    chat_note(input->style, "no history is kept from now on: %s", status.message);
}

/* Takes a line into the message, which then may be complete. */
static void take_line(struct chat_input *input, const char *line)
{
    struct status status = {0};
    input->was_interrupted = false;
    if (!chat_message_add(&input->message, line, &status)) chat_complain(&status);
    if (input->message.is_complete && input->message.text[strspn(input->message.text, " \t\n")] == '\0')
        chat_message_reset(&input->message);
}

/* Every line of a file or pipe is a message. */
static const char *read_from_program(struct chat_input *input)
{
    const char *line = "";
    while (!*line)
        if (read_plain(input, FIRST_SIGN, &line) != CHAT_LINE_TEXT) return NULL;
    return line;
}

const char *chat_input_read(struct chat_input *input, bool *is_block)
{
    *is_block = false;
    if (!input->style->is_interactive) return read_from_program(input);
    chat_message_reset(&input->message);
    while (!input->message.is_complete) {
        const char *line = NULL, sign = input->message.is_begun ? NEXT_SIGN : FIRST_SIGN;
        bool had_text = false;
        const enum chat_line read =
            input->editor ? chat_editor_read(input->editor, sign, &line, &had_text) : read_plain(input, sign, &line);
        if (read == CHAT_LINE_END) return NULL;
        if (read == CHAT_LINE_TEXT) {
            take_line(input, line);
        } else if (!goes_on(input, had_text)) {
            return NULL;
        }
    }
    remember(input);
    *is_block = input->message.is_block;
    return input->message.text;
}
