/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_style.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/cli/cli_process.h"

void chat_style_choose(struct chat_style *style, bool is_quiet)
{
    const char *terminal = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    *style = (struct chat_style){.is_interactive = isatty(STDIN_FILENO), .is_quiet = is_quiet};
    style->can_edit =
        style->is_interactive && isatty(STDOUT_FILENO) && terminal && *terminal && strcmp(terminal, "dumb") != 0;
    style->has_colours = style->can_edit && isatty(STDERR_FILENO) && !(no_colour && *no_colour);
}

const char *chat_style_colour(const struct chat_style *style, enum chat_colour colour)
{
    static const char *const codes[] =
        {[CHAT_PROMPT_COLOUR] = "\033[1;36m", [CHAT_NOTE_COLOUR] = "\033[2m", [CHAT_COLOUR_END] = "\033[0m"};
    return style->has_colours ? codes[colour] : "";
}

/* The text may hold names and texts of files, which must not control the terminal. */
static void print_lines(const char *format, va_list arguments)
{
    char *text = NULL;
    const int size = vasprintf(&text, format, arguments);
    if (size < 0) return;
    cli_print_text(stderr, text, (size_t)size);
    free(text);
}

void chat_note(const struct chat_style *style, const char *format, ...)
{
    va_list arguments;
    if (style->is_quiet) return;
    fputs(chat_style_colour(style, CHAT_NOTE_COLOUR), stderr);
    if (!style->is_interactive) fprintf(stderr, "%s: note: ", cli_program());
    va_start(arguments, format);
    print_lines(format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s\n", chat_style_colour(style, CHAT_COLOUR_END));
}

void chat_reply(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_lines(format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void chat_complain(const struct status *status)
{
    fprintf(stderr, "%s: ", cli_program());
    cli_print_text(stderr, status->message, strlen(status->message));
    fputc('\n', stderr);
}
