/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/state_space/state_space.h"

/* The state is float32 between rows, as it is between steps. */
static void run_head(const struct op_call *call, int64_t row, int64_t head)
{
    const int64_t *params = call->params;
    const int64_t state_dim = params[STATE_SPACE_STATE_DIM], head_dim = params[STATE_SPACE_HEAD_DIM];
    const struct state_space_head own = state_space_head_of(call, row, head);
    const double softplus = own.dt > 40 ? (double)own.dt : log1p(exp((double)own.dt));
    const double dt = state_space_clamp(params, softplus);
    const double decay = exp(-exp((double)own.a_log) * dt);
    for (int64_t j = 0; j < head_dim; j++) {
        const double x = (double)own.x[j], z = (double)own.z[j];
        double sum = (double)own.d * x;
        for (int64_t i = 0; i < state_dim; i++) {
            float *at = &own.state[i * head_dim + j];
            const double value = (own.begins ? 0 : decay * (double)*at) + dt * (double)own.b[i] * x;
            *at = (float)value;
            sum += value * (double)own.c[i];
        }
        own.out[j] = (float)(sum * z / (1 + exp(-z)));
    }
}

void state_space_reference(const struct op_call *call)
{
    const int64_t rows = op_valid_rows(call);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < call->params[STATE_SPACE_HEADS]; head++) run_head(call, row, head);
}
