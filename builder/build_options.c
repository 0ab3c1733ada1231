/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_options.h"

#include <string.h>

void build_options_init(struct build_options *options)
{
    memset(options, 0, sizeof *options);
    options->output = "model.eng";
    options->target = TARGET_CPU;
    options->gpus = 1;
    options->tune = TUNE_QUICK;
    options->out = stdout;
}
