/* SPDX-License-Identifier: Apache-2.0 */
/* The body of state_space over the vectors of one instruction set. A head of all rows is one thread's work, so that its state stays in
 * the cache while a chunk's rows follow each other. */
#ifndef KERNELS_STATE_SPACE_STATE_SPACE_VECTOR_H
#define KERNELS_STATE_SPACE_STATE_SPACE_VECTOR_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/share.h"
#include "kernels/state_space/state_space.h"

op_run state_space_run_avx2, state_space_run_avx512;

/* The state after a row, and out without its gate: one pass over the state. `scaled`: B times dt. */
static inline void state_space_update(const struct state_space_head *own, const float *scaled, int64_t state_dim,
                                      int64_t head_dim, float decay)
{
    const vec kept = vec_set(decay);
    for (int64_t j = 0; j < head_dim; j += VEC_WIDTH) {
        const int64_t count = head_dim - j < VEC_WIDTH ? head_dim - j : VEC_WIDTH;
        const vec x = vec_load_dtype(own->x, j, count, DTYPE_F32);
        vec made = vec_set(own->d) * x;
        for (int64_t i = 0; i < state_dim; i++) {
            float *at = own->state + i * head_dim + j;
            const vec value = vec_fma(x, vec_set(scaled[i]), kept * vec_load_dtype(at, 0, count, DTYPE_F32));
            if (count == VEC_WIDTH)
                vec_store(at, value);
            else
                vec_store_part(at, count, value);
            made = vec_fma(value, vec_set(own->c[i]), made);
        }
        if (count == VEC_WIDTH)
            vec_store(own->out + j, made);
        else
            vec_store_part(own->out + j, count, made);
    }
}

static inline void state_space_run_head(const struct op_call *call, int64_t row, int64_t head)
{
    const int64_t *params = call->params;
    const int64_t state_dim = params[STATE_SPACE_STATE_DIM], head_dim = params[STATE_SPACE_HEAD_DIM];
    const struct state_space_head own = state_space_head_of(call, row, head);
    float scaled[STATE_SPACE_MAX_DIM];
    if (own.begins) memset(own.state, 0, (size_t)(state_dim * head_dim) * sizeof *own.state);
    const float softplus = own.dt > 40 ? own.dt : log1pf(expf(own.dt));
    const float dt = (float)state_space_clamp(params, (double)softplus);
    for (int64_t i = 0; i < state_dim; i++) scaled[i] = dt * own.b[i];
    state_space_update(&own, scaled, state_dim, head_dim, expf(-expf(own.a_log) * dt));
    for (int64_t j = 0; j < head_dim; j++) own.out[j] *= own.z[j] / (1 + expf(-own.z[j]));
}

static inline void state_space_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t rows = op_valid_rows(call), *params = call->params;
    const struct share heads =
        team_share_rows(member, params[STATE_SPACE_HEADS],
                        (rows > 0 ? rows : 1) * params[STATE_SPACE_STATE_DIM] * params[STATE_SPACE_HEAD_DIM]);
    for (int64_t head = heads.first; head < heads.last; head++)
        for (int64_t row = 0; row < rows; row++) state_space_run_head(call, row, head);
}

#endif
