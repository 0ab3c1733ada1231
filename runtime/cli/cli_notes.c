#include "runtime/cli/cli_notes.h"

#include <stdio.h>

#include "runtime/cli/cli_args.h"

void cli_note_fallback(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    if (eng_session_get_facts(session, &facts, NULL) == ENG_OK && facts.fallback)
        fprintf(stderr, "%s: note: the engine's own kernels are used: %s\n", cli_program(), facts.fallback);
}
