/* SPDX-License-Identifier: Apache-2.0 */
/* The symbols eng_*_init, for languages that cannot use the inline functions of that name in eng.h. Each sets the struct as it was in the
 * release in which its symbol appeared, since the caller's struct may be as old: `last` below is the last field then, for ever. */
#include "runtime/eng.h"

void eng_struct_init(void *given, size_t size)
{
    if (!given || size < sizeof size) return;
    memset(given, 0, size);
    memcpy(given, &size, sizeof size);
}

#define SIZE_TO(type, last) (offsetof(struct type, last) + sizeof((struct type *)NULL)->last)
/* A struct's size is a multiple of that of its size field. */
#define ROUNDED(size) (((size) + sizeof(size_t) - 1) / sizeof(size_t) * sizeof(size_t))
#define INIT(type, last)                                                        \
    ENG_API void type##_init_symbol(struct type *given) __asm__(#type "_init"); \
    void type##_init_symbol(struct type *given) { eng_struct_init(given, ROUNDED(SIZE_TO(type, last))); }

INIT(eng_open_options, memory_context)
INIT(eng_engine_facts, hidden_size)
INIT(eng_session_options, draft)
INIT(eng_session_facts, speculate)
INIT(eng_sampling, logit_bias)
INIT(eng_sequence_options, prompt_logprobs)
INIT(eng_selftest_result, left_out)
INIT(eng_selftest_plan, kind)
