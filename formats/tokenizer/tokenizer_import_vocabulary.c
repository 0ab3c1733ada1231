/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of tokenizer.json as an object, and affixes of its tokens: of all models but Unigram. */
#include <stdlib.h>
#include <string.h>

#include "formats/tokenizer/tokenizer_import.h"

/* Converts token -> id into a table of texts by id. A hostile file must not get a table of 2^24 entries with one token:
 * unused ids are allowed, but not many more than there are tokens. */
bool tokenizer_import_vocabulary(struct tokenizer_import *import, json_t *vocabulary)
{
    json_int_t highest = -1;
    const char *text;
    json_t *id;
    size_t count = json_object_size(vocabulary);
    if (!json_is_object(vocabulary) || count == 0)
        return tokenizer_import_fail(import, "model: field 'vocab': expected an object with tokens, found %s",
                                     json_is_object(vocabulary) ? "an empty one" : json_type_name(vocabulary));
    json_object_foreach (vocabulary, text, id) {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= TOKENIZER_TOKEN_LIMIT)
            return tokenizer_import_fail(import, "token '%.80s': expected an id from 0 to %d", text,
                                         TOKENIZER_TOKEN_LIMIT - 1);
        if (value > highest) highest = value;
    }
    if ((uint64_t)highest > 2 * (uint64_t)count + 65536)
        return tokenizer_import_fail(import, "the highest id is %lld for a vocabulary of %zu tokens: too many holes",
                                     (long long)highest, count);
    import->vocabulary = vocabulary;
    import->vocabulary_count = count;
    import->vocabulary_ids = import->header.token_count = (uint32_t)highest + 1;
    import->texts = calloc(import->header.token_count, sizeof *import->texts);
    if (!import->texts) return status_fail(import->status, STATUS_MACHINE, "out of memory");
    json_object_foreach (vocabulary, text, id) {
        const char **place = &import->texts[json_integer_value(id)];
        if (*place)
            return tokenizer_import_fail(import, "id %lld is given to both '%.80s' and '%.80s'",
                                         (long long)json_integer_value(id), *place, text);
        if (strlen(text) > TOKENIZER_TEXT_LIMIT)
            return tokenizer_import_fail(import, "token %lld is longer than %d bytes",
                                         (long long)json_integer_value(id), TOKENIZER_TEXT_LIMIT);
        *place = text;
    }
    return true;
}

int64_t tokenizer_import_find(const struct tokenizer_import *import, const char *text)
{
    json_t *id = json_object_get(import->vocabulary, text);
    return id ? (int64_t)json_integer_value(id) : -1;
}

bool tokenizer_import_affix(struct tokenizer_import *import, struct json_reader *reader, const char *key,
                            const char *affix, uint32_t *offset, uint32_t *bytes)
{
    if (!json_reader_string(reader, key, false, &affix, import->status)) return false;
    if (strlen(affix) > TOKENIZER_AFFIX_LIMIT)
        return tokenizer_import_fail(import, "%s: field '%s' has %zu bytes: expected at most %d", reader->path, key,
                                     strlen(affix), TOKENIZER_AFFIX_LIMIT);
    return *affix == '\0' || tokenizer_import_pool(import, affix, strlen(affix), offset, bytes);
}
