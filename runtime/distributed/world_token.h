/* SPDX-License-Identifier: Apache-2.0 */
/* Proofs between processes of a job that they hold the same secret text, the job token, without sending it: HMAC-SHA-256
 * over fresh nonces of both sides and the joining process's hello. */
#ifndef RUNTIME_DISTRIBUTED_WORLD_TOKEN_H
#define RUNTIME_DISTRIBUTED_WORLD_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

enum { WORLD_NONCE_BYTES = 32, WORLD_PROOF_BYTES = 32, WORLD_TOKEN_BYTES = 256 };

/* Who proves: the two sides' proofs differ, so that none can be sent back as the other's. */
enum world_side { WORLD_SIDE_FIRST, WORLD_SIDE_OTHER }; /* process 0; the process that joins it */

struct world_nonces {
    uint8_t of_first[WORLD_NONCE_BYTES], of_other[WORLD_NONCE_BYTES];
};

/* Random bytes of the kernel. */
bool world_token_draw_nonce(uint8_t nonce[WORLD_NONCE_BYTES], struct status *status);

/* hello [hello_bytes]: a header of a fixed size and its name, as the joining process sent them. */
void world_token_prove(const char *token, enum world_side side, const struct world_nonces *nonces, const void *hello,
                       size_t hello_bytes, uint8_t proof[WORLD_PROOF_BYTES]);

/* Whether `proof` is that side's. The time it takes does not depend on where a wrong one differs. */
bool world_token_check(const char *token, enum world_side side, const struct world_nonces *nonces, const void *hello,
                       size_t hello_bytes, const uint8_t proof[WORLD_PROOF_BYTES]);

#endif
