/* SPDX-License-Identifier: Apache-2.0 */
/* What reports say of activations in 8 bits, of matrices without their codes, and of calibration. */
#include "builder/report.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

static const struct machine machine;
static const struct tactics tactics;
static const struct channel_scales_summary channels;
static struct manifest manifest = {.model_type = "llama",
                                   .model_name = "m",
                                   .target = TARGET_CUDA,
                                   .target_name = "GPU",
                                   .target_capability = 90,
                                   .weight_encoding = ENCODING_E4M3_CHANNEL,
                                   .kv_dtype = ENCODING_BF16,
                                   .geometry = {.max_context = 64, .page_tokens = 16, .pages_per_slot = 4}};
static struct build_report report = {.manifest = &manifest,
                                     .machine = &machine,
                                     .tactics = &tactics,
                                     .channels = &channels,
                                     .quantised = "fp8"};

/* The text has `present` and lacks `absent`; NULL: nothing. `text` is freed. */
static void expect_words(char *text, const char *present, const char *absent)
{
    assert_non_null(text);
    if (present && !strstr(text, present)) fail_msg("'%s' is not in: %s", present, text);
    if (absent && strstr(text, absent)) fail_msg("'%s' is in: %s", absent, text);
    free(text);
}

static char *print(void)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    report_print(&report, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

TEST(compute_is_reported)
{
    struct status status = {0};
    manifest.eight_bit_rows = 0;
    expect_words(print(), "codes are kept, activations are not quantised\n", "compute  ");
    expect_words(report_json(&report, &status), NULL, "\"compute\"");
    manifest.eight_bit_rows = 32;
    manifest.eight_bit_inputs = DTYPE_I8;
    expect_words(print(), "\ncompute    int8 from 32 rows on (as the checkpoint's activations), else bf16\n",
                 "fp8 from");
    expect_words(report_json(&report, &status), "\"int8_from_rows\": 32,\n    \"as_checkpoint\": true",
                 "fp8_from_rows");
    manifest.eight_bit_inputs = DTYPE_F8_E4M3;
    expect_words(print(), "\ncompute    fp8 from 32 rows on (as the checkpoint's activations), else bf16\n",
                 "not quantised");
    expect_words(report_json(&report, &status), "\"fp8_from_rows\": 32,\n    \"as_checkpoint\": true", NULL);
    report.compute_given = true;
    expect_words(print(), "\ncompute    fp8 from 32 rows on, else bf16\n", "as the checkpoint");
    expect_words(report_json(&report, &status), "\"as_checkpoint\": false", NULL);
}

TEST(decoded_matrices_are_reported)
{
    struct status status = {0};
    expect_words(print(), NULL, "act-order");
    expect_words(report_json(&report, &status), NULL, "dequantised");
    report.decoded[0] = (struct decoded_matrices){"in act-order", 1};
    expect_words(print(), "\n           1 matrix in act-order is dequantised\n", NULL);
    report.decoded[0].count = 12;
    report.decoded[1] = (struct decoded_matrices){"with zero points between codes", 3};
    expect_words(print(),
                 "\n           12 matrices in act-order are dequantised\n"
                 "           3 matrices with zero points between codes are dequantised\n",
                 NULL);
    expect_words(report_json(&report, &status),
                 "\"reason\": \"with zero points between codes\",\n      \"matrices\": 3", NULL);
    report.decoded[0].count = report.decoded[1].count = 0;
}

TEST(calibration_is_reported)
{
    struct status status = {0};
    manifest.accuracy.tokens = 2048;
    expect_words(print(), "2048 tokens are the unquantised", "calibrated");
    manifest.accuracy.calibration_tokens = 4096;
    expect_words(print(), "\n           calibrated with 4096 tokens\n", NULL);
    expect_words(report_json(&report, &status), "\"calibration_tokens\": 4096", NULL);
    manifest.accuracy.tokens = manifest.accuracy.calibration_tokens = 0;
}

TEST(matrices_left_in_bf16_are_reported)
{
    static const char *const lines[] =
        {NULL, "\n           matrices of experts are multiplied in bf16\n",
         "\n           matrices of blocks of latent attention are multiplied in bf16\n",
         "\n           matrices of experts and blocks of latent attention are multiplied "
         "in bf16\n"};
    struct status status = {0};
    manifest.eight_bit_rows = 32;
    manifest.eight_bit_inputs = DTYPE_F8_E4M3;
    for (int kind = 0; kind < 4; kind++) {
        report.plain_experts = kind & 1;
        report.plain_blocks = kind & 2;
        expect_words(print(), lines[kind], kind ? NULL : "are multiplied in bf16");
        expect_words(report_json(&report, &status), kind & 1 ? "\"bf16_experts\": true" : "\"bf16_experts\": false",
                     kind & 2 ? "\"bf16_latent_blocks\": false" : "\"bf16_latent_blocks\": true");
    }
    manifest.eight_bit_rows = 0;
    expect_words(print(), NULL, "are multiplied in bf16");
}

int main(void) { return test_run(); }
