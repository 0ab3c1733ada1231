/* SPDX-License-Identifier: Apache-2.0 */
/* Every character that controls a terminal or changes the direction of text, and its printable neighbours. */
#include "formats/base/test_support.h"

#include "formats/base/printable.h"

static size_t encode(uint32_t value, char text[5])
{
    size_t length = value < 0x80 ? 1 : value < 0x800 ? 2 : value < 0x10000 ? 3 : 4;
    memset(text, 0, 5);
    for (size_t i = length; i-- > 1; value >>= 6) text[i] = (char)(0x80 | (value & 0x3f));
    text[0] = (char)(length == 1 ? value : (0xf00u >> length & 0xff) | value);
    return length;
}

TEST(test_every_character)
{
    static const uint32_t ranges[][2] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},
                                         {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
    char text[5], escape[PRINTABLE_ESCAPE_BYTES], expected[16];
    for (uint32_t value = 0; value < 0x110000; value++) {
        if (value >= 0xd800 && value < 0xe000) continue; /* surrogates */
        size_t length = encode(value, text);
        bool harmful = false;
        for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
            harmful = harmful || (value >= ranges[r][0] && value <= ranges[r][1]);
        if (printable_utf8(text, length) != length || printable_length(text, length) != (harmful ? 0 : length) ||
            printable_text(text, length) != !harmful || (length > 1 && printable_utf8(text, length - 1) != 0))
            fail_msg("U+%04X", value);
        if (!harmful) continue;
        assert_int_equal(printable_escape(text, length, escape), length);
        snprintf(expected, sizeof expected, "\\u%04x", value);
        assert_string_equal(escape, expected);
    }
}

TEST(test_what_is_no_character)
{
    static const char *const bad[] = {"\xff",    "\x80", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\xe2\x82"};
    char escape[PRINTABLE_ESCAPE_BYTES], expected[16];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(printable_length(bad[i], strlen(bad[i])), 0);
        assert_int_equal(printable_escape(bad[i], strlen(bad[i]), escape), 1);
        snprintf(expected, sizeof expected, "\\x%02x", (unsigned char)bad[i][0]);
        assert_string_equal(escape, expected);
    }
    assert_int_equal(printable_length("a", 0), 0);
    assert_true(printable_text("", 0));
    assert_true(printable_text("na\xc3\xafve", 6));
    assert_false(printable_text("a\0b", 3));
}

int main(void) { return test_run(); }
