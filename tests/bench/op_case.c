/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/op_case.h"

#include <string.h>

static void set(const struct op_setting *settings, int most, const char *name, int64_t *value)
{
    for (int i = 0; i < most && settings[i].name; i++)
        if (strcmp(settings[i].name, name) == 0) *value = settings[i].value;
}

void op_case_params(const struct op_case *c, const struct op_setting *model, const struct plan_geometry *geometry,
                    int64_t *params)
{
    const struct op_descriptor *op = op_find(c->op);
    for (int i = 0; i < op->param_count; i++) {
        const struct op_param *param = &op->params[i];
        params[i] = param->fallback;
        if (param->source == PARAM_OF_ENGINE)
            memcpy(&params[i], (const char *)geometry + param->field, sizeof params[i]);
        else if (param->source == PARAM_OF_ROWS || param->source == PARAM_OF_STEP || param->source == PARAM_OF_DRAWS)
            params[i] = c->rows;
        else
            set(model, INT32_MAX, param->name, &params[i]);
        set(c->settings, OP_CASE_SETTINGS, param->name, &params[i]);
    }
}

void op_case_step(const struct op_case *c, const struct plan_geometry *geometry, enum step_field field, int32_t *values,
                  uint64_t count)
{
    const int last = c->context ? c->context - 1 : 0, first = c->one_slot && c->context ? c->context - c->rows : last;
    const uint64_t decoding = (uint64_t)(c->rows - c->prompt_rows);
    for (uint64_t i = 0; i < count; i++) switch (field) {
        case STEP_COUNTS: values[i] = c->rows; break;
        case STEP_TOKENS: values[i] = (int32_t)((uint32_t)i * 2654435761u % geometry->vocab_size); break;
        case STEP_SLOTS:
            values[i] =
                c->one_slot ? 0 : (int32_t)((i < decoding ? i : decoding) % (uint64_t)c->rows % geometry->slots);
            break;
        case STEP_POSITIONS:
            values[i] = c->one_slot ? first + (int32_t)i : i < decoding ? first : (int32_t)(i - decoding);
            break;
        case STEP_OUT_ROWS: values[i] = (int32_t)i; break;
        default: break;
        }
}

void op_case_state(const struct op_case *c, const struct plan_geometry *geometry, enum state_field field, void *values)
{
    const uint64_t slots = geometry->slots, pages = geometry->pages_per_slot;
    if (field == STATE_PAGE_TABLE)
        for (uint64_t i = 0; i < slots * pages; i++) ((int32_t *)values)[i] = (int32_t)(i % pages * slots + i / pages);
    if (field == STATE_SAMPLERS)
        for (uint64_t i = 0; i < slots; i++) {
            ((struct sampler_state *)values)[i] = c->sampler;
            ((struct sampler_state *)values)[i].seed += i;
        }
}

void op_case_logits(float *values, uint64_t count)
{
    uint64_t state = 1;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = i % 2500 == 17 ? 15.0f : 0;
        for (int j = 0; j < 8; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            values[i] += ((float)(state >> 40) * 0x1p-24f - 0.5f) * 3.06f;
        }
    }
}
