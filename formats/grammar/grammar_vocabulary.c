/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/grammar/grammar_vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "formats/grammar/grammar_automaton.h"

static int compare_tokens(const void *left, const void *right, void *argument)
{
    const struct grammar_token *tokens = argument, *a = &tokens[*(const uint32_t *)left],
                               *b = &tokens[*(const uint32_t *)right];
    const uint32_t size = a->size < b->size ? a->size : b->size;
    const int order = size ? memcmp(a->bytes, b->bytes, size) : 0;
    if (order) return order;
    if (a->size != b->size) return a->size < b->size ? -1 : 1;
    return (*(const uint32_t *)left > *(const uint32_t *)right) - (*(const uint32_t *)left < *(const uint32_t *)right);
}

static uint32_t common_bytes(const struct grammar_token *a, const struct grammar_token *b)
{
    uint32_t common = 0;
    while (common < a->size && common < b->size && a->bytes[common] == b->bytes[common]) common++;
    return common;
}

/* Tells the nodes above the one at `depth` of its byte. Above a node that is not plain, none is. */
static void note_byte(struct vocabulary_tree *tree, const uint32_t *path, uint32_t depth, bool is_plain)
{
    for (uint32_t above = depth; above-- > 0;) {
        uint16_t *plain = &tree->plain[path[above]];
        if (*plain == VOCABULARY_NOT_PLAIN || (is_plain && *plain >= depth - above)) return;
        *plain = is_plain ? (uint16_t)(depth - above) : VOCABULARY_NOT_PLAIN;
    }
}

/* Takes the array of sorted ids. */
static bool build_tree(struct vocabulary_tree *tree, const struct grammar_token *tokens, uint32_t *ids, uint32_t count)
{
    uint64_t nodes = 1;
    uint32_t path[GRAMMAR_MOST_TOKEN_BYTES + 1] = {0}, depth = 0; /* the nodes from the root, not yet ended */
    tree->tokens = ids;
    for (uint32_t i = 0; i < count; i++)
        nodes += tokens[ids[i]].size - (i ? common_bytes(&tokens[ids[i - 1]], &tokens[ids[i]]) : 0);
    /* Node numbers have 32 bits; the sizes of tokens bound `nodes` below 2^33. */
    if (nodes > UINT32_MAX - 1) return false;
    tree->end = malloc(nodes * sizeof *tree->end);
    tree->first_token = malloc((nodes + 1) * sizeof *tree->first_token);
    tree->depth = malloc(nodes * sizeof *tree->depth);
    tree->byte = malloc(nodes);
    tree->plain = malloc(nodes * sizeof *tree->plain);
    if (!tree->end || !tree->first_token || !tree->depth || !tree->byte || !tree->plain) return false;
    tree->depth[0] = tree->byte[0] = 0;
    tree->plain[0] = 0;
    tree->first_token[0] = 0;
    tree->count = 1;
    for (uint32_t i = 0; i < count; i++) {
        const struct grammar_token *token = &tokens[ids[i]];
        const uint32_t common = i ? common_bytes(&tokens[ids[i - 1]], token) : 0;
        while (depth > common) tree->end[path[depth--]] = tree->count;
        while (depth < token->size) {
            const uint32_t node = tree->count++;
            tree->byte[node] = (uint8_t)token->bytes[depth];
            tree->plain[node] = 0;
            path[++depth] = node;
            tree->depth[node] = (uint16_t)depth;
            tree->first_token[node] = i;
            note_byte(tree, path, depth, vocabulary_is_plain(tree->byte[node]));
        }
    }
    while (depth > 0) tree->end[path[depth--]] = tree->count;
    tree->end[0] = tree->count;
    tree->first_token[tree->count] = count;
    return true;
}

static void free_tree(struct vocabulary_tree *tree)
{
    free(tree->end);
    free(tree->first_token);
    free(tree->tokens);
    free(tree->depth);
    free(tree->byte);
    free(tree->plain);
}

/* Whether a grammar can ask for the token's bytes. An end token may be a marker, too. */
static bool has_place(const struct grammar_token *token)
{
    if (token->size == 0 || token->kind == GRAMMAR_TOKEN_SPECIAL) return false;
    return token->kind == GRAMMAR_TOKEN_TEXT || (uint8_t)*token->bytes == GRAMMAR_SPECIAL_BYTE;
}

struct grammar_vocabulary *grammar_vocabulary_open(const struct grammar_token *tokens, size_t count,
                                                   struct status *status)
{
    struct grammar_vocabulary *vocabulary = NULL;
    uint32_t *shorts = NULL, *longs = NULL, short_count = 0, long_count = 0;
    bool done = false;
    if (count == 0 || count > GRAMMAR_MOST_TOKENS) {
        status_fail(status, STATUS_BAD_INPUT, "vocabulary: expected 1 to %d tokens, found %zu", GRAMMAR_MOST_TOKENS,
                    count);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (tokens[i].size > GRAMMAR_MOST_TOKEN_BYTES) {
            status_fail(status, STATUS_BAD_INPUT, "vocabulary: token %zu has %u bytes; expected at most %d", i,
                        tokens[i].size, GRAMMAR_MOST_TOKEN_BYTES);
            return NULL;
        }
    }
    vocabulary = calloc(1, sizeof *vocabulary);
    shorts = malloc(count * sizeof *shorts);
    longs = malloc(count * sizeof *longs);
    if (!vocabulary || !shorts || !longs) goto done;
    for (uint32_t i = 0; i < count; i++) vocabulary->end_count += tokens[i].kind == GRAMMAR_TOKEN_END;
    vocabulary->ends = malloc(((size_t)vocabulary->end_count + 1) * sizeof *vocabulary->ends);
    if (!vocabulary->ends) goto done;
    vocabulary->end_count = 0;
    vocabulary->token_count = (uint32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        if (tokens[i].kind == GRAMMAR_TOKEN_END) vocabulary->ends[vocabulary->end_count++] = i;
        if (!has_place(&tokens[i])) continue;
        if (tokens[i].size > vocabulary->longest) vocabulary->longest = tokens[i].size;
        if (tokens[i].size <= AUTOMATON_FAR)
            shorts[short_count++] = i;
        else
            longs[long_count++] = i;
    }
    qsort_r(shorts, short_count, sizeof *shorts, compare_tokens, (void *)(uintptr_t)tokens);
    qsort_r(longs, long_count, sizeof *longs, compare_tokens, (void *)(uintptr_t)tokens);
    done = build_tree(&vocabulary->shorts, tokens, shorts, short_count);
    shorts = NULL;
    if (!done) goto done;
    done = build_tree(&vocabulary->longs, tokens, longs, long_count);
    longs = NULL;
done:
    free(shorts);
    free(longs);
    if (done) return vocabulary;
    status_fail(status, STATUS_MACHINE, "vocabulary: out of memory");
    grammar_vocabulary_close(vocabulary);
    return NULL;
}

void grammar_vocabulary_close(struct grammar_vocabulary *vocabulary)
{
    if (!vocabulary) return;
    free_tree(&vocabulary->shorts);
    free_tree(&vocabulary->longs);
    free(vocabulary->ends);
    free(vocabulary);
}

static uint64_t tree_bytes(const struct vocabulary_tree *tree, uint32_t tokens)
{
    return (uint64_t)tree->count * (sizeof *tree->end + sizeof *tree->first_token + sizeof *tree->depth +
                                    sizeof *tree->byte + sizeof *tree->plain) +
           (uint64_t)tokens * sizeof *tree->tokens;
}

uint64_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary)
{
    return sizeof *vocabulary + (uint64_t)vocabulary->end_count * sizeof *vocabulary->ends +
           tree_bytes(&vocabulary->shorts, vocabulary->token_count) +
           tree_bytes(&vocabulary->longs, vocabulary->token_count);
}
