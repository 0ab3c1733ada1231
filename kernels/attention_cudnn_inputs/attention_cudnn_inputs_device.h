/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of attention_cudnn_inputs. */
#ifndef KERNELS_ATTENTION_CUDNN_INPUTS_ATTENTION_CUDNN_INPUTS_DEVICE_H
#define KERNELS_ATTENTION_CUDNN_INPUTS_ATTENTION_CUDNN_INPUTS_DEVICE_H

#include "kernels/attention_cudnn_inputs/attention_cudnn_inputs.h"
#include "kernels/cuda/kernel.h"

extern const struct device_kernel device_attention_cudnn_inputs;

/* params[ATTENTION_CUDNN_INPUTS_PARAMS] of the launch before a call for a problem of attention. */
void attention_cudnn_inputs_params(const int64_t *attention_params, int64_t *params);

#endif
