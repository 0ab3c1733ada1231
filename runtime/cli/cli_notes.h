/* SPDX-License-Identifier: Apache-2.0 */
/* What a user should know of a session that runs, on stderr. */
#ifndef RUNTIME_CLI_CLI_NOTES_H
#define RUNTIME_CLI_CLI_NOTES_H

#include "runtime/eng.h"

/* Says why the engine's own kernels stand in for the libraries that it was built with, if they do. */
void cli_note_fallback(const struct eng_session *session);

#endif
