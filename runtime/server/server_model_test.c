/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_model.h"

#include "formats/base/test_support.h"

TEST(test_prompt_step)
{
    static const struct {
        const char *info;
        uint32_t step;
    } cases[] = {
        {"{'plans': [{'kind': 'prefill', 'rows': 32}, {'kind': 'prefill', 'rows': 512}, {'kind': 'prefill', 'rows': "
         "128}]}",
         128},
        {"{'plans': [{'kind': 'decode', 'rows': 512}, {'kind': 'prefill', 'rows': 64}]}", 16},
        {"{'plans': [{'kind': 'prefill', 'rows': 16}]}", 16},
        {"{'plans': [{'kind': 'prefill', 'rows': 70}]}", 17},
        {"{'plans': []}", 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(server_model_prompt_step(test_json(cases[i].info)), cases[i].step);
}

int main(void) { return test_run(); }
