/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "runtime/cli/chat_commands.h"
#include "runtime/cli/chat_input.h"
#include "runtime/cli/chat_turn.h"

/* At a terminal the conversation goes on after an answer that Ctrl-C ended, and after a message that was refused. */
static int take_message(struct chat_model *model, const char *text)
{
    const int code = chat_answer(model, text);
    if (!code && model->style->can_edit) fputs("\n", stdout); /* between answer and prompt */
    if (!model->style->is_interactive) return code;
    if (code) return model->can_go_on ? CLI_DONE : code;
    if (cli_caught_signal() == SIGINT) cli_forget_signal();
    return CLI_DONE;
}

static int converse(struct chat_model *model, struct chat_input *input)
{
    int code = CLI_DONE;
    while (!code && !cli_caught_signal()) {
        bool is_block;
        const char *text = chat_input_read(input, &is_block);
        if (!text) break;
        const enum chat_command command = model->style->is_interactive && !is_block
                                              ? chat_command_run(&model->conversation, model->style, text)
                                              : CHAT_NO_COMMAND;
        if (command == CHAT_COMMAND_EXIT) break;
        if (command == CHAT_NO_COMMAND) code = take_message(model, text);
    }
    return code;
}

static int converse_with_input(struct chat_model *model, const struct chat_style *style)
{
    struct chat_input input;
    struct status status = {0};
    if (style->is_interactive) {
        cli_keep_interrupts();
        chat_note(style, "Chat, with a context of %" PRIu32 " tokens. /help shows commands, Ctrl-D leaves.",
                  model->run.facts.max_context);
    }
    if (!chat_input_open(&input, style, !model->run.options->no_history, &status)) return cli_fail_status(&status);
    const int code = converse(model, &input);
    chat_input_close(&input);
    return code;
}

int chat(const struct generate_options *options)
{
    struct chat_style style;
    struct chat_model model;
    chat_style_choose(&style, options->quiet);
    int code = chat_model_open(&model, options, &style);
    if (!code && !cli_caught_signal())
        code = options->prompt ? chat_answer(&model, options->prompt) : converse_with_input(&model, &style);
    return chat_model_end(&model, code);
}
