#include "runtime/cli/cli_notes.h"

#include <jansson.h>
#include <stdio.h>

#include "runtime/cli/cli_args.h"

void cli_note_fallback(const struct eng_engine *engine)
{
    const char *reason = NULL;
    json_t *info = json_loads(eng_info(engine), 0, NULL), *load = NULL;
    if (info && json_unpack(info, "{s:o}", "load", &load) == 0 &&
        json_unpack(load, "{s:{s:s}}", "libraries", "reason", &reason) == 0 && reason)
        fprintf(stderr, "%s: note: the engine's own kernels are used: %s\n", cli_program(), reason);
    json_decref(info);
}
