/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/build_templates.h"
#include "formats/base/file.h"
#include "formats/checkpoint/checkpoint_others.h"
#include "formats/tokenizer/tokenizer.h"

/* Such an engine is usable, so the build only warns. */
static void warn_of_no_tokenizer(struct build *build)
{
    const char *folder = build->checkpoint.directory, *other = build->checkpoint.other_tokenizer;
    if (build->checkpoint.tokenizer_missing) {
        snprintf(build->no_tokenizer, sizeof build->no_tokenizer, "%s", build->checkpoint.tokenizer_missing);
        progress_warn(&build->progress, "the engine has no tokenizer: %s", build->no_tokenizer);
        return;
    }
    snprintf(build->no_tokenizer, sizeof build->no_tokenizer, "%s%sthe folder holds no tokenizer.json",
             other ? other : "", other ? " is not read, and " : "");
    if (!other && build->options->dry_run)
        return; /* a config.json without checkpoint, for example: the report says
                                                    * so */
    if (!other)
        progress_warn(&build->progress, "the engine has no tokenizer: '%s' holds no tokenizer.json", folder);
    else if (checkpoint_can_convert_tokenizer(other))
        progress_warn(
            &build->progress,
            "the engine has no tokenizer: '%s' holds %s, and only tokenizer.json is read; to make one of it, in that "
            "folder: pip install transformers sentencepiece protobuf; python3 -c \"from transformers import "
            "AutoTokenizer as T; "
            "T.from_pretrained('.').save_pretrained('.')\"",
            folder, other);
    else
        progress_warn(
            &build->progress,
            "the engine has no tokenizer: '%s' holds %s, and only tokenizer.json is read; the Hugging Face hub has one "
            "for most models",
            folder, other);
}

bool build_import_tokenizer(struct build *build, struct status *status)
{
    enum { MAX_TOKENIZER_BYTES = 256 << 20 };
    const char *path = build->checkpoint.tokenizer_path, *own = build->checkpoint.tokenizer_text;
    char *text = NULL;
    size_t text_size;
    if (!path && !own) {
        warn_of_no_tokenizer(build);
        return build_import_templates(build, NULL, status);
    }
    if (own) {
        path = "tokenizer of the GGUF file";
        text_size = strlen(own);
    } else if (!file_read(path, MAX_TOKENIZER_BYTES, &text, &text_size, status)) {
        return false;
    }
    bool ok = tokenizer_import(own ? own : text, text_size, path, &build->tokenizer, &build->tokenizer_bytes, status);
    free(text);
    if (!ok) return false;
    struct tokenizer *tokenizer = tokenizer_open(build->tokenizer, build->tokenizer_bytes, false, status);
    if (!tokenizer) return status_prefix(status, "%s", path);
    uint32_t known = build->tokenizer_tokens = tokenizer_vocab_size(tokenizer);
    /* A prompt with a token of the rows that are left out is refused. */
    if (known > build->manifest.geometry.vocab_size + build->checkpoint.config.unused.embedding_rows)
        ok = status_fail(status, STATUS_BAD_INPUT,
                         "%s: the tokenizer has token ids up to %u, config.json: vocab_size is %" PRIu64, path,
                         known - 1, build->manifest.geometry.vocab_size);
    else
        ok = build_import_templates(build, tokenizer, status);
    tokenizer_close(tokenizer);
    return ok;
}
