/* SPDX-License-Identifier: Apache-2.0 */
/* Notes for the user about a running session, on stderr. */
#ifndef RUNTIME_CLI_CLI_NOTES_H
#define RUNTIME_CLI_CLI_NOTES_H

#include "runtime/eng.h"

/* Prints why the engine's own kernels replace the libraries that it was built with, if they do. */
void cli_note_fallback(const struct eng_session *session);

#endif
