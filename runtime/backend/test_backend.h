/* SPDX-License-Identifier: Apache-2.0 */
/* A device for tests, made of the CPU backend: spaces of its own, copies of inputs and state, replays that run late, the
 * next step's inputs left in the step block, logits that must be fetched. It fails the test when the session breaks the
 * rules of runtime/backend/backend.h. */
#ifndef RUNTIME_BACKEND_TEST_BACKEND_H
#define RUNTIME_BACKEND_TEST_BACKEND_H

#include "runtime/backend/backend.h"

enum test_backend_pace {
    PACE_EAGER,  /* replays run when they are submitted */
    PACE_LAZY,   /* when they are waited for */
    PACE_RANDOM, /* either */
};

/* For all such backends of the program; set before a session is created. Counters are the test's to reset. */
struct test_backend_settings {
    enum test_backend_pace pace;
    int fail_submit, fail_wait, fail_logits; /* the n-th call from now fails; 0: none */
    uint64_t submits, submits_ahead, waits;
    int alive; /* backends created and not destroyed */
};
extern struct test_backend_settings test_backend_settings;

extern const struct backend_type test_backend;

#endif
