/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_editor.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "formats/cli/cli_process.h"
#include "runtime/cli/chat_history.h"
#include "runtime/cli/chat_message.h"

/* libedit marks with it where codes begin and end that take no place in the line. */
#define CODE_MARK "\001"

enum { READ_BYTES = 4096, PROMPT_BYTES = 64, PROMPT_COLUMNS = 2 };

struct chat_editor {
    EditLine *edit;
    History *history;
    const struct chat_style *style;
    char prompt[PROMPT_BYTES];
    char bytes[READ_BYTES]; /* read from the terminal: [next, end) is not used yet */
    size_t next, end;
    const wchar_t *last_keys; /* of end_keys, still to be given to libedit; NULL: the line goes on */
    struct termios terminal;  /* before the editor changed it: its keys for signals */
    bool is_pasting;
    bool had_text;
};

/* ---- signals while a line is edited ---- */

/* The terminal must be as before while the process is stopped or when it ends; its new size matters after SIGWINCH. */
static const int handled[] = {SIGTSTP, SIGQUIT, SIGWINCH};
enum { HANDLED = sizeof handled / sizeof *handled };

static volatile sig_atomic_t arrived[HANDLED];

static void note_arrival(int number)
{
    for (size_t i = 0; i < HANDLED; i++)
        if (handled[i] == number) arrived[i] = 1;
}

static void set_handlers(struct sigaction before[HANDLED])
{
    /* A write that ended early would be an error of stdio. Waits end nevertheless. */
    struct sigaction action = {.sa_handler = note_arrival, .sa_flags = (int)SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < HANDLED; i++) sigaction(handled[i], &action, &before[i]);
}

static void restore_handlers(const struct sigaction before[HANDLED])
{
    for (size_t i = 0; i < HANDLED; i++) sigaction(handled[i], &before[i], NULL);
}

static void ask_for_marked_pastes(bool on)
{
    fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
    fflush(stdout);
}

/* The default effect of the signal. Returns if the process was stopped and goes on. */
static void take_default(struct chat_editor *editor, int number)
{
    struct sigaction ours, plain = {.sa_handler = SIG_DFL};
    sigemptyset(&plain.sa_mask);
    ask_for_marked_pastes(false);
    el_set(editor->edit, EL_PREP_TERM, 0);
    sigaction(number, &plain, &ours);
    kill(0, number); /* as the terminal would: to all processes of the job */
    sigaction(number, &ours, NULL);
    el_set(editor->edit, EL_PREP_TERM, 1);
    ask_for_marked_pastes(true);
    el_resize(editor->edit);
    el_set(editor->edit, EL_REFRESH);
}

/* The column after a character of the text, and rows that it takes more. */
static int column_after(wchar_t character, int column, int columns, int *rows)
{
    enum { TAB = 8, CONTROL_WIDTH = 2 };
    const int width = wcwidth(character);
    if (character == L'\t') return column / TAB * TAB + TAB;
    if (character != L'\n') column += width < 0 ? CONTROL_WIDTH : width;
    if (character != L'\n' && column < columns) return column;
    ++*rows;
    return character == L'\n' || column == columns ? 0 : width;
}

/* Draws the line again after the terminal has another width, at the place where a terminal that wraps its lines anew has it
 * now. */
static void redraw(struct chat_editor *editor)
{
    const LineInfoW *line = el_wline(editor->edit);
    struct winsize size = {0};
    int rows = 0, column = PROMPT_COLUMNS;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return;
    for (const wchar_t *at = line->buffer; at < line->cursor; at++)
        column = column_after(*at, column, size.ws_col, &rows);
    if (rows > 0) printf("\033[%dA", rows);
    fputs("\r\033[J", stdout);
    fflush(stdout);
    el_resize(editor->edit);
    el_set(editor->edit, EL_REFRESH);
}

static void handle_signals(struct chat_editor *editor)
{
    for (size_t i = 0; i < HANDLED; i++) {
        if (!arrived[i]) continue;
        arrived[i] = 0;
        if (handled[i] == SIGWINCH)
            redraw(editor);
        else
            take_default(editor, handled[i]);
    }
}

/* ---- characters ---- */

/* A signal may arrive just before a wait or be handled by another thread, so waits have a time limit. */
enum { SLICE_MS = 100 };

/* The next byte; false: a signal was caught, or the terminal is gone. */
static bool next_byte(struct chat_editor *editor, char *byte)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (cli_caught_signal()) return false;
    while (editor->next == editor->end) {
        if (cli_caught_signal()) return false;
        handle_signals(editor);
        if (poll(&input, 1, SLICE_MS) <= 0) continue;
        const ssize_t size = read(STDIN_FILENO, editor->bytes, sizeof editor->bytes);
        if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (size <= 0) return false;
        editor->next = 0;
        editor->end = (size_t)size;
    }
    *byte = editor->bytes[editor->next++];
    return true;
}

/* While a line is edited the terminal makes no signals of keys, since a paste may hold the same bytes; but bytes of a paste are
 * followed by others, at least by its end mark. Returns whether the byte is such a key. */
static bool is_signal_key(const struct chat_editor *editor, char byte)
{
    static const int numbers[][2] = {{VINTR, SIGINT}, {VQUIT, SIGQUIT}, {VSUSP, SIGTSTP}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const cc_t key = editor->terminal.c_cc[numbers[i][0]];
        if (key == _POSIX_VDISABLE || key != (unsigned char)byte) continue;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        if (editor->is_pasting && (editor->next < editor->end || poll(&input, 1, SLICE_MS) != 0)) return false;
        raise(numbers[i][1]);
        return true;
    }
    return false;
}

/* A byte that belongs to no UTF-8 character becomes U+FFFD. */
static bool next_character(struct chat_editor *editor, wchar_t *character)
{
    mbstate_t state = {0};
    for (;;) {
        char byte;
        if (!next_byte(editor, &byte)) return false;
        const bool is_first = mbsinit(&state);
        if (is_first && is_signal_key(editor, byte)) continue;
        const size_t used = mbrtowc(character, &byte, 1, &state);
        if (used == (size_t)-2) continue;
        if (used != (size_t)-1) return true;
        /* It may begin the next character. */
        if (!is_first) editor->next--;
        *character = 0xfffd;
        return true;
    }
}

/* No terminal sends it; bound to moving to the end of the text. */
static const wchar_t end_keys[] = L"\033[9999~";

/* Called by libedit: 1, a character; -1, none, and the line ends. What was entered stays visible: before that the cursor goes to
 * its end. */
static int read_character(EditLine *edit, wchar_t *character)
{
    struct chat_editor *editor = NULL;
    el_get(edit, EL_CLIENTDATA, &editor);
    if (!editor->last_keys) {
        if (next_character(editor, character)) return 1;
        if (editor->is_pasting) return -1;
        const LineInfoW *line = el_wline(edit);
        editor->had_text = line->lastchar > line->buffer;
        editor->last_keys = editor->had_text ? end_keys : L"";
    }
    if (!*editor->last_keys) return -1;
    *character = *editor->last_keys++;
    return 1;
}

/* ---- keys ---- */

/* Inserts a text that may hold line feeds; CC_REFRESH or, if there is no room, CC_REFRESH_BEEP. */
static unsigned char insert(EditLine *edit, const wchar_t *text)
{
    return !*text || el_winsertstr(edit, text) == 0 ? CC_REFRESH : CC_REFRESH_BEEP;
}

static unsigned char insert_line_feed(EditLine *edit, wint_t key)
{
    (void)key;
    return insert(edit, L"\n");
}

/* Characters of a paste that would only move the cursor or be invisible are left out. */
static bool is_content(wchar_t character)
{
    return character == '\n' || character == '\t' || (character >= 0x20 && (character < 0x7f || character >= 0xa0));
}

/* A text that grows up to the length of a message. */
struct pasted {
    wchar_t *text;
    size_t size;
    bool is_after_return, is_too_long;
};

/* Adds a character. Line ends become line feeds, whatever the terminal sends. */
static void add_pasted(struct pasted *pasted, wchar_t character)
{
    const bool is_second = pasted->is_after_return && character == '\n';
    pasted->is_after_return = character == '\r';
    if (pasted->is_after_return) character = '\n';
    if (is_second || !is_content(character)) return;
    pasted->is_too_long = pasted->size == CHAT_MESSAGE_MOST_BYTES;
    if (!pasted->is_too_long) pasted->text[pasted->size++] = character;
}

/* Reads a paste up to its end mark. */
static unsigned char paste(EditLine *edit, wint_t key)
{
    static const wchar_t end_mark[] = L"\033[201~";
    enum { MARK = sizeof end_mark / sizeof *end_mark - 1 };
    struct chat_editor *editor = NULL;
    struct pasted pasted = {.text = malloc((CHAT_MESSAGE_MOST_BYTES + 1) * sizeof *pasted.text)};
    size_t marked = 0;
    wchar_t character;
    (void)key;
    if (!pasted.text) return CC_ERROR;
    el_get(edit, EL_CLIENTDATA, &editor);
    editor->is_pasting = true;
    while (marked < MARK && el_wgetc(edit, &character) == 1) {
        if (character == end_mark[marked]) {
            marked++;
            continue;
        }
        for (size_t i = 0; i < marked; i++) add_pasted(&pasted, end_mark[i]);
        marked = character == end_mark[0];
        if (!marked) add_pasted(&pasted, character);
    }
    editor->is_pasting = false;
    pasted.text[pasted.size] = L'\0';
    const unsigned char result = insert(edit, pasted.text);
    free(pasted.text);
    return pasted.is_too_long ? CC_REFRESH_BEEP : result;
}

static unsigned char move_to_end(EditLine *edit, wint_t key)
{
    const LineInfoW *line = el_wline(edit);
    (void)key;
    el_cursor(edit, (int)(line->lastchar - line->cursor));
    return CC_CURSOR;
}

static void bind_keys(EditLine *edit)
{
    static const char *const keys[][2] = {
        {"^R", "em-inc-search-prev"}, {"^W", "ed-delete-prev-word"}, {"\\e[3~", "ed-delete-next-char"},
        {"\\e[H", "ed-move-to-beg"},  {"\\e[1~", "ed-move-to-beg"},  {"\\eOH", "ed-move-to-beg"},
        {"\\e[F", "ed-move-to-end"},  {"\\e[4~", "ed-move-to-end"},  {"\\eOF", "ed-move-to-end"},
        {"\\e[1;5D", "ed-prev-word"}, {"\\e[1;5C", "em-next-word"},  {"\\e[1;3D", "ed-prev-word"},
        {"\\e[1;3C", "em-next-word"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) el_set(edit, EL_BIND, keys[i][0], keys[i][1], NULL);
}

static void bind_own_keys(EditLine *edit)
{
    /* libedit keeps these names, and would never free copies that el_set makes. */
    el_wset(edit, EL_ADDFN, L"eng-paste", L"Insert a marked paste", paste);
    el_wset(edit, EL_ADDFN, L"eng-line-feed", L"Insert a line feed", insert_line_feed);
    el_wset(edit, EL_ADDFN, L"eng-end", L"Move to the end of the text", move_to_end);
    el_set(edit, EL_BIND, "\\e[9999~", "eng-end", NULL);
    el_set(edit, EL_BIND, "\\e[200~", "eng-paste", NULL);
    el_set(edit, EL_BIND, "\\e\\n", "eng-line-feed", NULL);
    el_set(edit, EL_BIND, "\\e\\r", "eng-line-feed", NULL);
}

/* ---- lines ---- */

static char *prompt_of(EditLine *edit)
{
    struct chat_editor *editor = NULL;
    el_get(edit, EL_CLIENTDATA, &editor);
    return editor->prompt;
}

/* libedit converts characters as the locale says; the texts of models are UTF-8 in any locale. */
static bool choose_utf8(void)
{
    static const char *const locales[] = {"", "C.UTF-8", "en_US.UTF-8"};
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++)
        if (setlocale(LC_CTYPE, locales[i]) && strcmp(nl_langinfo(CODESET), "UTF-8") == 0) return true;
    setlocale(LC_CTYPE, "C");
    return false;
}

bool chat_editor_open(struct chat_editor **opened, const struct chat_style *style, struct status *status)
{
    HistEvent event;
    *opened = NULL;
    if (!choose_utf8()) return true;
    struct chat_editor *editor = calloc(1, sizeof *editor);
    if (editor) editor->history = history_init();
    if (editor) editor->edit = el_init(cli_program(), stdin, stdout, stderr);
    if (!editor || !editor->history || !editor->edit) {
        const bool has_memory = editor && editor->history;
        chat_editor_close(editor);
        return has_memory || status_fail(status, STATUS_MACHINE, "out of memory");
    }
    editor->style = style;
    if (tcgetattr(STDIN_FILENO, &editor->terminal) != 0)
        memset(editor->terminal.c_cc, _POSIX_VDISABLE, sizeof editor->terminal.c_cc);
    history(editor->history, &event, H_SETSIZE, CHAT_HISTORY_MOST_ENTRIES);
    history(editor->history, &event, H_SETUNIQUE, 1);
    el_set(editor->edit, EL_CLIENTDATA, editor);
    el_set(editor->edit, EL_PROMPT_ESC, prompt_of, CODE_MARK[0]);
    el_set(editor->edit, EL_HIST, history, editor->history);
    el_set(editor->edit, EL_EDITOR, "emacs");
    bind_keys(editor->edit);
    el_source(editor->edit, NULL); /* ~/.editrc: the user's own keys */
    bind_own_keys(editor->edit);
    el_set(editor->edit, EL_GETCFN, read_character);
    /* See is_signal_key; and a carriage return before a line feed can be told from another line feed. */
    el_set(editor->edit, EL_SETTY, "-d", "-isig", "-icrnl", "-inlcr", NULL);
    *opened = editor;
    return true;
}

void chat_editor_close(struct chat_editor *editor)
{
    if (!editor) return;
    if (editor->edit) el_end(editor->edit);
    if (editor->history) history_end(editor->history);
    free(editor);
}

/* libedit gives codes to the terminal before the character that follows them: the last one must not end the prompt. */
static void set_prompt(struct chat_editor *editor, char sign)
{
    const char *colour = chat_style_colour(editor->style, CHAT_PROMPT_COLOUR);
    const char *end = chat_style_colour(editor->style, CHAT_COLOUR_END);
    if (*colour)
        snprintf(editor->prompt, sizeof editor->prompt, CODE_MARK "%s" CODE_MARK "%c" CODE_MARK "%s" CODE_MARK " ",
                 colour, sign, end);
    else
        snprintf(editor->prompt, sizeof editor->prompt, "%c ", sign);
}

enum chat_line chat_editor_read(struct chat_editor *editor, char sign, const char **line, bool *had_text)
{
    struct sigaction before[HANDLED];
    int count = 0;
    set_prompt(editor, sign);
    editor->had_text = false;
    editor->last_keys = NULL;
    set_handlers(before);
    ask_for_marked_pastes(true);
    el_resize(editor->edit);
    el_set(editor->edit, EL_PREP_TERM,
           1); /* before the prompt is printed: keys after it are not echoed by the terminal */
    const char *text = el_gets(editor->edit, &count);
    ask_for_marked_pastes(false);
    restore_handlers(before);
    *had_text = editor->had_text;
    if (!text || count <= 0) {
        fputc('\n', stdout);
        fflush(stdout);
        return cli_caught_signal() ? CHAT_LINE_INTERRUPTED : CHAT_LINE_END;
    }
    char *end = strchr(text, '\0');
    if (end[-1] == '\n') ((char *)(uintptr_t)text)[end - 1 - text] = '\0';
    *line = text;
    return CHAT_LINE_TEXT;
}

void chat_editor_remember(struct chat_editor *editor, const char *text)
{
    HistEvent event;
    history(editor->history, &event, H_ENTER, text);
}
