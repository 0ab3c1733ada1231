/* SPDX-License-Identifier: Apache-2.0 */
/* eng_chat: the built-in chat formats, as the published templates of the model families write them.
 *
 *   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n ...                          answer: <|im_start|>assistant\n
 *   llama3   BOS <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>  answer: the header of 'assistant'
 *   mistral  BOS [INST] SYSTEM\n\nUSER[/INST] ANSWER</s> ...                    answer: nothing
 *
 * Text between special tokens is encoded piece by piece. A piece is a content with the format's text around it, so that its
 * ids are those of the whole text. The format's own text has no markers, so the piece can be encoded as plain text. */
#include <string.h>

#include "formats/tokenizer/tokenizer_text.h"
#include "runtime/load/load.h"

enum { FORMAT_MARKERS = 3, MOST_MARKERS = FORMAT_MARKERS + 1 + MANIFEST_MAX_EOS };

/* The tokens of each format; the first one ends an answer. */
static const char *const format_markers[][FORMAT_MARKERS] = {
    [CHAT_NONE] = {NULL},
    [CHAT_CHATML] = {"<|im_end|>", "<|im_start|>"},
    [CHAT_LLAMA3] = {"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"},
    [CHAT_MISTRAL] = {"</s>", "[INST]", "[/INST]"},
};

struct chat {
    const struct eng_engine *engine;
    bool plain; /* special tokens in contents are text */
    int32_t markers[MOST_MARKERS];
    size_t marker_count;
    struct token_buffer tokens; /* the result */
    struct token_buffer piece;
    struct text_buffer text; /* not yet encoded */
    struct status *status;
};

static bool add_token(struct chat *chat, int32_t token)
{
    return tokenizer_token_append(&chat->tokens, token, chat->status);
}

static bool add_bytes(struct chat *chat, const char *bytes, size_t size)
{
    return tokenizer_text_append(&chat->text, bytes, size, chat->status);
}

static bool add_text(struct chat *chat, const char *text) { return add_bytes(chat, text, strlen(text)); }

/* Strips white space at both ends, as the llama3 and mistral templates do. */
static bool add_trimmed(struct chat *chat, const char *text)
{
    static const char space[] = " \t\n\v\f\r";
    text += strspn(text, space);
    size_t size = strlen(text);
    while (size && strchr(space, text[size - 1])) size--;
    return add_bytes(chat, text, size);
}

/* Encodes the collected text and appends it to the tokens. */
static bool flush(struct chat *chat)
{
    if (!chat->text.size) return true;
    const struct tokenizer *tokenizer = chat->engine->tokenizer;
    bool encoded =
        chat->plain ? tokenizer_encode_plain(tokenizer, chat->text.text, chat->text.size, false, chat->markers,
                                             chat->marker_count, &chat->piece, chat->status)
                    : tokenizer_encode(tokenizer, chat->text.text, chat->text.size, false, &chat->piece, chat->status);
    if (!encoded) return false;
    chat->text.size = 0;
    for (size_t i = 0; i < chat->piece.count; i++)
        if (!add_token(chat, chat->piece.ids[i])) return false;
    return true;
}

static bool add_special(struct chat *chat, const char *name)
{
    int32_t token = tokenizer_find(chat->engine->tokenizer, name, strlen(name));
    if (token < 0)
        return status_fail(chat->status, STATUS_BAD_INPUT,
                           "chat format '%s' needs the token '%s', which the engine's "
                           "tokenizer does not have",
                           chat_format_name(chat->engine->file.manifest.chat_format), name);
    return flush(chat) && add_token(chat, token);
}

static bool add_bos(struct chat *chat)
{
    int64_t token = chat->engine->file.manifest.bos_token;
    return token < 0 || add_token(chat, (int32_t)token);
}

static bool chatml(struct chat *chat, const struct eng_message *messages, size_t count, uint32_t flags)
{
    if ((flags & ENG_CHAT_CLOSE) && !add_special(chat, "<|im_end|>")) return false;
    if ((flags & ENG_CHAT_CONTINUE) && !add_text(chat, "\n")) return false;
    for (size_t i = 0; i < count; i++)
        if (!add_special(chat, "<|im_start|>") || !add_text(chat, messages[i].role) || !add_text(chat, "\n") ||
            !add_text(chat, messages[i].content) || !add_special(chat, "<|im_end|>") || !add_text(chat, "\n"))
            return false;
    return !(flags & ENG_CHAT_ANSWER) || (add_special(chat, "<|im_start|>") && add_text(chat, "assistant\n"));
}

static bool llama3_header(struct chat *chat, const char *role)
{
    return add_special(chat, "<|start_header_id|>") && add_text(chat, role) && add_special(chat, "<|end_header_id|>") &&
           add_text(chat, "\n\n");
}

static bool llama3(struct chat *chat, const struct eng_message *messages, size_t count, uint32_t flags)
{
    if ((flags & ENG_CHAT_CLOSE) && !add_special(chat, "<|eot_id|>")) return false;
    if (!(flags & ENG_CHAT_CONTINUE) && !add_bos(chat)) return false;
    for (size_t i = 0; i < count; i++)
        if (!llama3_header(chat, messages[i].role) || !add_trimmed(chat, messages[i].content) ||
            !add_special(chat, "<|eot_id|>"))
            return false;
    return !(flags & ENG_CHAT_ANSWER) || llama3_header(chat, "assistant");
}

static bool mistral(struct chat *chat, const struct eng_message *messages, size_t count, uint32_t flags)
{
    const char *system = NULL; /* becomes part of the next user message */
    if ((flags & ENG_CHAT_CLOSE) && !add_special(chat, "</s>")) return false;
    if (!(flags & ENG_CHAT_CONTINUE) && !add_bos(chat)) return false;
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(messages[i].role, "system")) {
            system = messages[i].content;
        } else if (!strcmp(messages[i].role, "user")) {
            if (!add_special(chat, "[INST]") || !add_text(chat, " ") ||
                (system && (!add_trimmed(chat, system) || !add_text(chat, "\n\n"))) ||
                !add_trimmed(chat, messages[i].content) || !add_special(chat, "[/INST]"))
                return false;
            system = NULL;
        } else if (!add_text(chat, " ") || !add_trimmed(chat, messages[i].content) || !add_special(chat, "</s>")) {
            return false;
        }
    }
    return true;
}

int32_t chat_end_token(const struct eng_engine *engine)
{
    const char *name = format_markers[engine->file.manifest.chat_format][0];
    return name && engine->tokenizer ? tokenizer_find(engine->tokenizer, name, strlen(name)) : -1;
}

/* Tokens that begin and end turns and texts; some checkpoints do not mark them as special. */
static void find_markers(struct chat *chat)
{
    const struct manifest *manifest = &chat->engine->file.manifest;
    for (size_t i = 0; i < FORMAT_MARKERS; i++) {
        const char *name = format_markers[manifest->chat_format][i];
        int32_t token = name ? tokenizer_find(chat->engine->tokenizer, name, strlen(name)) : -1;
        if (token >= 0) chat->markers[chat->marker_count++] = token;
    }
    if (manifest->bos_token >= 0) chat->markers[chat->marker_count++] = (int32_t)manifest->bos_token;
    for (size_t i = 0; i < (size_t)manifest->eos_count; i++)
        chat->markers[chat->marker_count++] = (int32_t)manifest->eos_tokens[i];
}

static bool check_messages(const struct eng_message *messages, size_t count, struct status *status)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    for (size_t i = 0; i < count; i++) {
        if (!report_not_null(messages[i].role, "eng_chat", "role", status) ||
            !report_not_null(messages[i].content, "eng_chat", "content", status))
            return false;
        size_t k = 0;
        while (k < 3 && strcmp(messages[i].role, roles[k]) != 0) k++;
        if (k == 3)
            return status_fail(status, STATUS_BAD_INPUT,
                               "eng_chat: message %zu: expected role system, user or assistant, found '%s'", i,
                               messages[i].role);
    }
    return true;
}

static bool format(struct chat *chat, const struct eng_message *messages, size_t count, uint32_t flags)
{
    switch (chat->engine->file.manifest.chat_format) {
    case CHAT_CHATML: return chatml(chat, messages, count, flags) && flush(chat);
    case CHAT_LLAMA3: return llama3(chat, messages, count, flags) && flush(chat);
    case CHAT_MISTRAL: return mistral(chat, messages, count, flags) && flush(chat);
    case CHAT_NONE: break;
    }
    return status_fail(
        chat->status, STATUS_BAD_INPUT,
        "eng_chat: expected an engine with a chat format (chatml, llama3 or mistral), found none: the checkpoint "
        "has no chat template or an unknown one");
}

enum eng_status eng_chat(const struct eng_engine *engine, const struct eng_message *messages, size_t message_count,
                         uint32_t flags, int32_t *tokens, size_t capacity, size_t *count, struct eng_error *error)
{
    static const char function[] = "eng_chat";
    const uint32_t known = ENG_CHAT_ANSWER | ENG_CHAT_CONTINUE | ENG_CHAT_CLOSE | ENG_CHAT_CONTENT_SPECIAL;
    struct status status = {0};
    struct chat chat = {.engine = engine, .status = &status};
    if (!report_not_null(engine, function, "engine", &status) ||
        !report_not_null(messages, function, "messages", &status) ||
        !report_not_null(count, function, "count", &status) ||
        !report_not_null(capacity ? (const void *)tokens : "", function, "tokens", &status) ||
        !check_messages(messages, message_count, &status))
        goto done;
    if (flags & ~known) {
        status_fail(&status, STATUS_USAGE, "%s: flags are %#x, expected only bits of %#x", function, flags, known);
        goto done;
    }
    if (!engine->tokenizer) {
        status_fail(&status, STATUS_BAD_INPUT, "%s: the engine has no tokenizer", function);
        goto done;
    }
    chat.plain = !(flags & ENG_CHAT_CONTENT_SPECIAL);
    find_markers(&chat);
    if (!format(&chat, messages, message_count, flags)) goto done;
    *count = chat.tokens.count;
    if (chat.tokens.count > capacity)
        status_fail(&status, STATUS_TOO_LONG, "%s: %zu tokens, room for %zu", function, chat.tokens.count, capacity);
    else if (chat.tokens.count)
        memcpy(tokens, chat.tokens.ids, chat.tokens.count * sizeof *tokens);

done:
    token_buffer_free(&chat.tokens);
    token_buffer_free(&chat.piece);
    text_buffer_free(&chat.text);
    return report_result(status.code == STATUS_OK, &status, error);
}
