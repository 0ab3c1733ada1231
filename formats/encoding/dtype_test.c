/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/encoding/dtype.h"

#include <math.h>

#include "formats/base/test_support.h"

TEST(test_names)
{
    static const struct {
        enum dtype dtype;
        size_t bytes;
        const char *name, *torch_name;
    } cases[] = {
        {DTYPE_F32, 4, "F32", "float32"},
        {DTYPE_F16, 2, "F16", "float16"},
        {DTYPE_BF16, 2, "BF16", "bfloat16"},
        {DTYPE_F8_E4M3, 1, "F8_E4M3", "float8_e4m3fn"},
        {DTYPE_F8_E5M2, 1, "F8_E5M2", "float8_e5m2"},
        {DTYPE_I8, 1, "I8", "int8"},
        {DTYPE_U8, 1, "U8", "uint8"},
        {DTYPE_I32, 4, "I32", "int32"},
        {DTYPE_I64, 8, "I64", "int64"},
        {DTYPE_I16, 2, "I16", "int16"},
        {DTYPE_F8_E8M0, 1, "F8_E8M0", "float8_e8m0fnu"},
    };
    assert_int_equal(sizeof cases / sizeof *cases, DTYPE_COUNT - 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *prefixed = test_text("torch.%s", cases[i].torch_name);
        assert_int_equal(dtype_bytes(cases[i].dtype), cases[i].bytes);
        assert_string_equal(dtype_name(cases[i].dtype), cases[i].name);
        assert_int_equal(dtype_from_name(cases[i].name), cases[i].dtype);
        assert_int_equal(dtype_from_torch_name(cases[i].torch_name), cases[i].dtype);
        assert_int_equal(dtype_from_torch_name(prefixed), cases[i].dtype);
    }
    static const int unknown[] = {DTYPE_NONE, DTYPE_COUNT, -1, 1000};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_int_equal(dtype_bytes((enum dtype)unknown[i]), 0);
        assert_string_equal(dtype_name((enum dtype)unknown[i]), "?");
    }
    assert_int_equal(dtype_from_name("F64"), DTYPE_NONE);
    assert_int_equal(dtype_from_name("f32"), DTYPE_NONE);
    assert_int_equal(dtype_from_name(""), DTYPE_NONE);
    assert_int_equal(dtype_from_torch_name("float"), DTYPE_NONE);
}

TEST(test_bf16_all_values)
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = bf16_to_float((uint16_t)bits);
        uint16_t expected = isnan(value) ? (uint16_t)(bits | 0x40) : (uint16_t)bits;
        assert_int_equal(bf16_from_float(value), expected);
    }
}

/* Value of f16 bits by definition of the format, in double arithmetic. */
static double f16_value(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 0x1f), mantissa = (int)(bits & 0x3ff);
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    return exponent ? sign * ldexp(1024 + mantissa, exponent - 25) : sign * ldexp(mantissa, -24);
}

TEST(test_f16_all_values)
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = f16_to_float((uint16_t)bits);
        if ((bits & 0x7c00) == 0x7c00) {
            assert_int_equal(isnan(value) != 0, (bits & 0x3ff) != 0);
            assert_int_equal(signbit(value) != 0, bits >> 15);
            assert_int_equal(f16_from_float(value) & 0xfc00, bits & 0xfc00);
            assert_int_equal(isnan(value) != 0, isnan(f16_to_float(f16_from_float(value))) != 0);
            continue;
        }
        assert_true((double)value == f16_value(bits));
        assert_int_equal(f16_from_float(value), bits);
    }
}

/* Between two neighbours: the half-way point goes to the even one, anything beside it to the nearer one. */
TEST(test_rounding)
{
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        float middle = (float)((f16_value(bits) + f16_value(bits + 1)) / 2);
        uint32_t even = bits & 1 ? bits + 1 : bits;
        assert_int_equal(f16_from_float(middle), even);
        assert_int_equal(f16_from_float(nextafterf(middle, 0.0f)), bits);
        assert_int_equal(f16_from_float(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(f16_from_float(-middle), even | 0x8000);
    }
    for (uint32_t bits = 0; bits < 0x7f7f; bits++) {
        uint32_t middle = bits << 16 | 0x8000;
        assert_int_equal(bf16_from_float(float_from_bits(middle)), bits & 1 ? bits + 1 : bits);
        assert_int_equal(bf16_from_float(float_from_bits(middle - 1)), bits);
        assert_int_equal(bf16_from_float(float_from_bits(middle + 1)), bits + 1);
    }
    assert_int_equal(f16_from_float(65519.996f), 0x7bff);
    assert_int_equal(f16_from_float(65520.0f), 0x7c00);
    assert_int_equal(f16_from_float(-1e30f), 0xfc00);
    assert_int_equal(bf16_from_float(3.4e38f), 0x7f80);
    assert_int_equal(bf16_from_float(INFINITY), 0x7f80);
}

int main(void) { return test_run(); }
