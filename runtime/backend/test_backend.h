/* SPDX-License-Identifier: Apache-2.0 */
/* A device for tests, made of the CPU backend: it has its own spaces, copies inputs and state, delays replays, leaves
 * the next step's inputs in the step block, has two copies of each slot's recurrent state (kernels/op/recurrent.h), and copies logits on request. It fails the test if the session breaks the
 * rules of runtime/backend/backend.h. */
#ifndef RUNTIME_BACKEND_TEST_BACKEND_H
#define RUNTIME_BACKEND_TEST_BACKEND_H

#include <stdatomic.h>

#include "runtime/backend/backend.h"

enum test_backend_pace {
    PACE_EAGER,  /* replays run when they are submitted */
    PACE_LAZY,   /* replays run when they are waited for */
    PACE_RANDOM, /* either */
};

/* For all such backends of the program; set before a session is created. The test resets the counters. */
struct test_backend_settings {
    enum test_backend_pace pace;
    int fail_submit, fail_sample, fail_wait, fail_logits; /* the n-th call from now fails; 0: none */
    int not_finite; /* the n-th step that is waited for from now has no finite logits in any row; 0: none */
    bool undivided; /* no replay may stop before its sampler */
    /* Ranks count from threads of their own. */
    _Atomic uint64_t submits, submits_ahead, submits_up_to_sampler, abandoned, waits;
    atomic_int alive; /* backends created and not destroyed */
};
extern struct test_backend_settings test_backend_settings;

extern const struct backend_type test_backend;

#endif
