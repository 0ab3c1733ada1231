/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/checkpoint_others.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"

/* Names as patterns: a prefix and a suffix; either may be empty. */
struct other {
    const char *begin, *end;
    const char *what;
    bool convertible; /* transformers can convert it */
    bool file_alone;  /* read where --model names the file */
};

static const struct other weights[] = {
    {"pytorch_model", ".bin", "PyTorch", true, false},
    {"pytorch_model", ".bin.index.json", "PyTorch", true, false},
    {"", ".pt", "PyTorch", false, false},
    {"", ".pth", "PyTorch", false, false},
    {"", ".gguf", "GGUF", false, true},
    {"tf_model", ".h5", "TensorFlow", false, false},
    {"flax_model", ".msgpack", "Flax", false, false},
};

static const struct other tokenizers[] = {
    {"tokenizer.model", "", "SentencePiece", true, false},
    {"spiece.model", "", "SentencePiece", true, false},
    {"sentencepiece", ".model", "SentencePiece", true, false},
    {"vocab.json", "", "GPT-2", true, false},
    {"tekken.json", "", "Tekken", false, false},
    {"tiktoken.model", "", "tiktoken", false, false},
    {"", ".tiktoken", "tiktoken", false, false},
};

static bool is_named(const struct other *other, const char *name)
{
    size_t begin = strlen(other->begin);
    return strncmp(name, other->begin, begin) == 0 && file_has_suffix(name + begin, other->end);
}

static const struct other *find(const struct other *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (is_named(&list[i], name)) return &list[i];
    return NULL;
}

static const struct other *find_weights(const char *name)
{
    return find(weights, sizeof weights / sizeof *weights, name);
}

static const struct other *find_tokenizer(const char *name)
{
    return find(tokenizers, sizeof tokenizers / sizeof *tokenizers, name);
}

bool checkpoint_is_other_weights(const char *folder, const char *name, struct status *status)
{
    const struct other *other = find_weights(name);
    if (!other) return false;
    if (other->file_alone)
        status_fail(status, STATUS_BAD_INPUT,
                    "folder '%s' has its weights in '%s' (%s) and no .safetensors file; to use that file, name it: "
                    "engbuild --model %s/%s",
                    folder, name, other->what, folder, name);
    else if (other->convertible)
        status_fail(
            status, STATUS_BAD_INPUT,
            "folder '%s' has its weights in '%s' (%s), and only .safetensors files are read; to convert them, in that "
            "folder: python3 -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('.', "
            "torch_dtype='auto').save_pretrained('.')\"",
            folder, name, other->what);
    else
        status_fail(status, STATUS_BAD_INPUT,
                    "folder '%s' has its weights in '%s' (%s), and only .safetensors files are read; get the "
                    "checkpoint in that "
                    "format: the Hugging Face hub has one of most models",
                    folder, name, other->what);
    return true;
}

static int is_other_weights(const struct dirent *entry) { return find_weights(entry->d_name) != NULL; }

static int is_other_tokenizer(const struct dirent *entry) { return find_tokenizer(entry->d_name) != NULL; }

/* The first file name of a folder that the filter accepts; owned by the caller. */
static char *first_name(const char *folder, int (*filter)(const struct dirent *entry))
{
    struct dirent **entries = NULL;
    char *name = NULL;
    int count = scandir(folder, &entries, filter, alphasort);
    if (count > 0) name = strdup(entries[0]->d_name);
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    return name;
}

bool checkpoint_has_other_weights(const char *folder, struct status *status)
{
    char *name = first_name(folder, is_other_weights);
    bool found = name && checkpoint_is_other_weights(folder, name, status);
    free(name);
    return found;
}

char *checkpoint_find_other_tokenizer(const char *folder) { return first_name(folder, is_other_tokenizer); }

bool checkpoint_can_convert_tokenizer(const char *name)
{
    const struct other *other = find_tokenizer(name);
    return other && other->convertible;
}

/* Letters, digits, '-', '_' and '.'; neither part of a name begins with '.' or '-'. */
static size_t part_length(const char *text)
{
    size_t length = 0;
    if (*text == '.' || *text == '-') return 0;
    while (isalnum((unsigned char)text[length]) || (text[length] && strchr("-_.", text[length]))) length++;
    return length;
}

bool checkpoint_is_hub_name(const char *path, struct status *status)
{
    static const char *const files[] = {".safetensors", ".json", ".gguf", ".bin", ".pt", ".pth"};
    size_t organisation = part_length(path);
    if (organisation == 0 || path[organisation] != '/') return false;
    const char *name = path + organisation + 1;
    if (part_length(name) == 0 || name[part_length(name)] != '\0') return false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (file_has_suffix(path, files[i])) return false;
    status_fail(status, STATUS_NOT_FOUND,
                "'%s' is no file or folder here; if it is the name of a model on the Hugging Face hub, get it first: "
                "hf download "
                "%s --local-dir %s, then engbuild --model %s",
                path, path, name, name);
    return true;
}
