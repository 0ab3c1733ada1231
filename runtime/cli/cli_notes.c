/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_notes.h"

#include <stdio.h>

#include "runtime/cli/cli_args.h"

void cli_note_fallback(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    if (eng_session_get_facts(session, &facts, NULL) != ENG_OK) return;
    if (facts.fallback)
        fprintf(stderr, "%s: note: the engine's own kernels are used: %s\n", cli_program(), facts.fallback);
    if (facts.detour)
        fprintf(stderr, "%s: note: the GPUs exchange data through host memory: %s\n", cli_program(), facts.detour);
}
