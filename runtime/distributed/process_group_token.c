/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/distributed/process_group_token.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(PROCESS_GROUP_PROOF_BYTES == crypto_auth_hmacsha256_BYTES, "HMAC-SHA-256");
_Static_assert(PROCESS_GROUP_PROOF_BYTES == crypto_verify_32_BYTES, "compared whole");

bool process_group_token_draw_nonce(uint8_t nonce[PROCESS_GROUP_NONCE_BYTES], struct status *status)
{
    /* Not randombytes_buf of libsodium: it aborts the process on failure. */
    ssize_t got;
    do {
        got = getrandom(nonce, PROCESS_GROUP_NONCE_BYTES, 0);
    } while (got < 0 && errno == EINTR);
    return got == PROCESS_GROUP_NONCE_BYTES ||
           status_fail_errno(status, STATUS_MACHINE, got < 0 ? errno : EIO, "cannot get random bytes from the kernel");
}

/* These functions of libsodium need no sodium_init: they draw no random numbers and have one implementation each. */
void process_group_token_prove(const char *token, enum process_group_side side,
                               const struct process_group_nonces *nonces, const void *hello, size_t hello_bytes,
                               uint8_t proof[PROCESS_GROUP_PROOF_BYTES])
{
    static const char labels[2][16] = {"eng: process 0", "eng: process n"};
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, (const uint8_t *)token, strlen(token));
    crypto_auth_hmacsha256_update(&state, (const uint8_t *)labels[side == PROCESS_GROUP_SIDE_OTHER], sizeof labels[0]);
    crypto_auth_hmacsha256_update(&state, nonces->of_first, sizeof nonces->of_first);
    crypto_auth_hmacsha256_update(&state, nonces->of_other, sizeof nonces->of_other);
    crypto_auth_hmacsha256_update(&state, hello, hello_bytes);
    crypto_auth_hmacsha256_final(&state, proof);
}

bool process_group_token_check(const char *token, enum process_group_side side,
                               const struct process_group_nonces *nonces, const void *hello, size_t hello_bytes,
                               const uint8_t proof[PROCESS_GROUP_PROOF_BYTES])
{
    uint8_t expected[PROCESS_GROUP_PROOF_BYTES];
    process_group_token_prove(token, side, nonces, hello, hello_bytes, expected);
    return crypto_verify_32(expected, proof) == 0;
}
