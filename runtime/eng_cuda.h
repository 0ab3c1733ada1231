/* SPDX-License-Identifier: Apache-2.0 */
/* For programs that use a GPU themselves: results where they are, in an order that CUDA keeps. An engine for GPUs works in the primary
 * context of its GPU, which is that of the CUDA runtime, so that pointers, streams and events are valid on either side. This header
 * needs none of CUDA's: a stream is a cudaStream_t (CUstream), an event a cudaEvent_t (CUevent).
 *
 * All functions return ENG_USAGE for engines that do not run on one GPU alone. Marks at the end of a description as in eng.h. */
#ifndef ENG_CUDA_H
#define ENG_CUDA_H

#include "eng.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a session whose steps are queued on `stream`, after what was queued there before; `options` as of eng_session_create, NULL for the
 * defaults. The stream is one that cudaStreamCreateWithFlags or cuStreamCreate made for the engine's GPU, in the primary context and no default
 * stream (else ENG_USAGE). It is not captured while a function of the session runs, and is destroyed after the session. A kernel that waits
 * for another kernel, or for the session, must not run while a step does: steps may need the whole GPU at once; wait with events. The
 * draft engine of a session has a stream of its own. [any] */
ENG_API enum eng_status eng_session_create_on_stream(struct eng_engine *engine,
                                                     const struct eng_session_options *options, void *stream,
                                                     struct eng_session **session, struct eng_error *error);

/* Sets *stream to the stream on which the session's work is queued: that of eng_session_create_on_stream, or its own, which lives as
 * long as the session; *device to the number that the CUDA runtime has for the GPU. NULL: not wanted. What the caller queues on the
 * stream, or lets it wait for, runs before the steps that are queued later; eng_step may have queued one already, functions for slots have
 * not. [session] */
ENG_API enum eng_status eng_session_cuda_stream(const struct eng_session *session, void **stream, int *device,
                                                struct eng_error *error);

/* Sets *logits to the logits, float [vocab_size], from which the session's last step drew the slot's token, on the GPU, and *ready (NULL: not
 * wanted) to an event that is recorded when they are there, of CU_EVENT_BLOCKING_SYNC. Requires: as eng_slot_hidden; with `next_token` alone nothing but the token is
 * copied to the host. Both are borrowed until the session's next step, which overwrites the logits
 * when its turn comes on the stream of eng_session_cuda_stream: let that wait for what reads them elsewhere. [session] [no allocation] */
ENG_API enum eng_status eng_slot_cuda_logits(struct eng_session *session, uint32_t slot, const float **logits,
                                             void **ready, struct eng_error *error);

/* The same for the hidden state, float [hidden_size], that eng_slot_hidden copies. ENG_VERSION: the engine gives none. [session]
 * [no allocation] */
ENG_API enum eng_status eng_slot_cuda_hidden(struct eng_session *session, uint32_t slot, const float **hidden,
                                             void **ready, struct eng_error *error);

#ifdef __cplusplus
}
#endif

#endif
