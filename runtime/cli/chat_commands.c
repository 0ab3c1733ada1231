/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a command acts on. */
struct call {
    struct conversation *conversation;
    const struct chat_style *style;
    const char *text; /* after the command's name, without white space at both ends */
};

static enum chat_command run_help(const struct call *call)
{
    chat_reply("/help          shows this\n"
               "/system TEXT   sets the system message; without TEXT shows it; \"\" removes it\n"
               "/clear         forgets all turns; the system message stays\n"
               "/save FILE     saves the conversation as JSON\n"
               "/load FILE     goes on with a saved conversation\n"
               "/exit          leaves, as Ctrl-D does\n"
               "\n"
               "A line that ends with \\ goes on with the next line. \"\"\" begins a message of\n"
               "several lines, and \"\"\" ends it. A space before / makes a message of it.\n"
               "Ctrl-C ends an answer, or discards what was typed; twice in an empty line it\n"
               "leaves.%s",
               call->style->can_edit ? " Pasted lines stay together. Alt-Enter begins another line. Up and\n"
                                       "Ctrl-R find earlier messages."
                                     : "");
    return CHAT_COMMAND_DONE;
}

static enum chat_command run_system(const struct call *call)
{
    struct status status = {0};
    const char *now = conversation_system(call->conversation);
    if (!*call->text && now) {
        chat_reply("The system message is: %s", now);
    } else if (!*call->text) {
        chat_reply("There is no system message.");
    } else {
        const char *text = strcmp(call->text, "\"\"") != 0 ? call->text : NULL;
        if (!conversation_set_system(call->conversation, text, &status))
            chat_complain(&status);
        else
            chat_reply(text ? "The system message is set." : "There is no system message now.");
    }
    return CHAT_COMMAND_DONE;
}

/* "3 turns", what happened to them, and the file. */
static void reply_turns(const struct call *call, const char *after)
{
    const size_t turns = conversation_turns(call->conversation);
    chat_reply("%zu turn%s%s%s", turns, turns == 1 ? "" : "s", after, call->text);
}

static enum chat_command run_clear(const struct call *call)
{
    const size_t turns = conversation_turns(call->conversation);
    conversation_drop(call->conversation, turns);
    chat_reply("%zu turn%s forgotten%s.", turns, turns == 1 ? " is" : "s are",
               conversation_system(call->conversation) ? "; the system message stays" : "");
    return CHAT_COMMAND_DONE;
}

/* The name of a file as a shell would read it: "~/" is the home folder. Owned; NULL: out of memory. */
static char *expand_path(const char *text)
{
    const char *home = getenv("HOME");
    char *path = NULL;
    if (strncmp(text, "~/", 2) != 0 || !home) return strdup(text);
    return asprintf(&path, "%s%s", home, text + 1) < 0 ? NULL : path;
}

/* Calls what saves or loads, if a file is named. */
static bool with_file(const struct call *call, const char *name,
                      bool (*use)(const struct call *call, const char *path, struct status *status))
{
    struct status status = {0};
    char *path = *call->text ? expand_path(call->text) : NULL;
    if (!*call->text)
        status_fail(&status, STATUS_USAGE, "%s: expected the name of a file, found none", name);
    else if (!path)
        status_fail(&status, STATUS_MACHINE, "out of memory");
    const bool ok = path && use(call, path, &status);
    if (!ok) chat_complain(&status);
    free(path);
    return ok;
}

static bool save(const struct call *call, const char *path, struct status *status)
{
    bool replaced = false;
    if (call->conversation->count == 0)
        return status_fail(status, STATUS_USAGE, "/save: the conversation is empty: there is nothing to save");
    if (!conversation_save(call->conversation, path, &replaced, status)) return false;
    reply_turns(call, replaced ? " saved, in place of the chat that was in " : " saved to ");
    return true;
}

static enum chat_command run_save(const struct call *call)
{
    with_file(call, "/save", save);
    return CHAT_COMMAND_DONE;
}

static bool load(const struct call *call, const char *path, struct status *status)
{
    return conversation_load(call->conversation, path, status);
}

static enum chat_command run_load(const struct call *call)
{
    if (!with_file(call, "/load", load)) return CHAT_COMMAND_DONE;
    reply_turns(call, " loaded from ");
    if (conversation_turns(call->conversation) > 0)
        chat_reply("The last answer is: %s", call->conversation->messages[call->conversation->count - 1].content);
    return CHAT_COMMAND_DONE;
}

static enum chat_command run_exit(const struct call *call)
{
    (void)call;
    return CHAT_COMMAND_EXIT;
}

static const struct {
    const char *name;
    enum chat_command (*run)(const struct call *call);
    bool takes_text;
} commands[] = {
    {"/help", run_help, false}, {"/system", run_system, true}, {"/clear", run_clear, false}, {"/save", run_save, true},
    {"/load", run_load, true},  {"/exit", run_exit, false},    {"/quit", run_exit, false},
};

/* Length of a slash and a word of small letters at the beginning of the text, with a space or nothing after them; 0: it begins in
 * another way. */
static size_t name_length(const char *text)
{
    const size_t letters = *text == '/' ? strspn(text + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
    const char after = letters ? text[1 + letters] : 'x';
    return after == '\0' || after == ' ' || after == '\t' ? 1 + letters : 0;
}

static char *trimmed(const char *text)
{
    text += strspn(text, " \t\n");
    size_t size = strlen(text);
    while (size && strchr(" \t\n", text[size - 1])) size--;
    return strndup(text, size);
}

enum chat_command chat_command_run(struct conversation *conversation, const struct chat_style *style, const char *text)
{
    enum { COMMANDS = sizeof commands / sizeof *commands };
    struct status status = {0};
    enum chat_command result = CHAT_COMMAND_DONE;
    const size_t length = name_length(text);
    size_t i = 0;
    if (!length) return CHAT_NO_COMMAND;
    while (i < COMMANDS && (strlen(commands[i].name) != length || strncmp(commands[i].name, text, length) != 0)) i++;
    char *rest = trimmed(text + length);
    if (!rest)
        status_fail(&status, STATUS_MACHINE, "out of memory");
    else if (i == COMMANDS)
        status_fail(&status, STATUS_USAGE,
                    "unknown command %.*s; /help shows all, a space before it makes it a message", (int)length, text);
    else if (*rest && !commands[i].takes_text)
        status_fail(&status, STATUS_USAGE, "%s: expected nothing after it, found '%.80s'", commands[i].name, rest);
    else
        result = commands[i].run(&(struct call){conversation, style, rest});
    if (status.code) chat_complain(&status);
    free(rest);
    return result;
}
