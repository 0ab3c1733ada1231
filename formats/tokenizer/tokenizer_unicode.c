/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of characters. utf8proc knows a newer version of Unicode than some libraries of Hugging Face: tables of ranges
 * hold what became a member of a class later, so that such characters are treated as Hugging Face treats them. */
#include <utf8proc.h>

#include "formats/tokenizer/tokenizer_text.h"

struct character_range {
    uint32_t first, last;
};

/* Members of the class in these ranges are newer than Unicode 8 (controls, punctuation, marks without width) or 9. */
static const struct character_range new_punctuation[] = {{0x61D, 0x61D},     {0x9FD, 0xA76},     {0xC77, 0xC84},
                                                         {0x1B7D, 0x1B7E},   {0x2E43, 0x2E5D},   {0x10EAD, 0x10F89},
                                                         {0x1144B, 0x1145D}, {0x11660, 0x116B9}, {0x1183B, 0x11FFF},
                                                         {0x12FF1, 0x12FF2}, {0x16E97, 0x16FE2}, {0x1E95E, 0x1E95F}};
static const struct character_range new_controls[] = {{0x890, 0x8E2}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}};
static const struct character_range new_marks[] =
    {{0x7FD, 0x7FD},     {0x898, 0x8D3},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},     {0xB55, 0xB55},
     {0xC04, 0xC3C},     {0xCF3, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},
     {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
     {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241},
     {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x1182C, 0x11A99}, {0x11D31, 0x11F42}, {0x13440, 0x13455},
     {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FF1}, {0x1CF00, 0x1CF46}, {0x1E08F, 0x1E4EF}};
static const struct character_range new_marks_without_width[] =
    {{0x7FD, 0x7FD},     {0x898, 0x8E1},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},     {0xB55, 0xB55},
     {0xC04, 0xC3C},     {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
     {0xECE, 0xECE},     {0x180F, 0x1886},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFB},   {0xA82C, 0xA82C},
     {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
     {0x110C2, 0x110C2}, {0x111C9, 0x111C9}, {0x111CF, 0x111CF}, {0x1123E, 0x11241}, {0x1133B, 0x1133B},
     {0x11438, 0x1145E}, {0x1182F, 0x11F42}, {0x13440, 0x13455}, {0x16F4F, 0x16F4F}, {0x16FE4, 0x16FE4},
     {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF}, {0x1E944, 0x1E94A}};

#define IN_RANGES(character, ranges) in_ranges(character, ranges, sizeof(ranges) / sizeof *(ranges))
static bool in_ranges(uint32_t character, const struct character_range *ranges, size_t count)
{
    for (size_t i = 0; i < count && ranges[i].first <= character; i++)
        if (character <= ranges[i].last) return true;
    return false;
}

static bool has_category(uint32_t character, uint32_t categories)
{
    return (categories >> (uint32_t)utf8proc_category((utf8proc_int32_t)character) & 1) != 0;
}

#define CATEGORY(name) (1u << UTF8PROC_CATEGORY_##name)
#define LETTERS        (CATEGORY(LU) | CATEGORY(LL) | CATEGORY(LT) | CATEGORY(LM) | CATEGORY(LO))
#define MARKS          (CATEGORY(MN) | CATEGORY(MC) | CATEGORY(ME))
#define PUNCTUATION \
    (CATEGORY(PC) | CATEGORY(PD) | CATEGORY(PS) | CATEGORY(PE) | CATEGORY(PI) | CATEGORY(PF) | CATEGORY(PO))

/* Alphabetic, marks, Nd, Pc and the joiners. Symbols that are Alphabetic: letters in circles and squares. */
bool text_is_word(uint32_t character)
{
    return has_category(character, LETTERS | MARKS | CATEGORY(ND) | CATEGORY(NL) | CATEGORY(PC)) ||
           character == 0x200C || character == 0x200D || (character >= 0x24B6 && character <= 0x24E9) ||
           (character >= 0x1F130 && character <= 0x1F149) || (character >= 0x1F150 && character <= 0x1F169) ||
           (character >= 0x1F170 && character <= 0x1F189);
}

bool text_is_number(uint32_t character)
{
    if (character < 0x80) return character >= '0' && character <= '9';
    return has_category(character, CATEGORY(ND) | CATEGORY(NL) | CATEGORY(NO));
}

bool text_is_punctuation(uint32_t character)
{
    if (character < 0x80)
        return (character >= '!' && character <= '/') || (character >= ':' && character <= '@') ||
               (character >= '[' && character <= '`') || (character >= '{' && character <= '~');
    if (character == 0x166D || character == 0x111C9) return true; /* other classes since */
    return has_category(character, PUNCTUATION) && !IN_RANGES(character, new_punctuation);
}

bool text_is_control(uint32_t character)
{
    return has_category(character, CATEGORY(CC) | CATEGORY(CF) | CATEGORY(CO)) && !IN_RANGES(character, new_controls);
}

bool text_is_mark(uint32_t character)
{
    if (character == 0x1CF2 || character == 0x1CF3) return true; /* letters since */
    return has_category(character, MARKS) && !IN_RANGES(character, new_marks);
}

bool text_is_mark_without_width(uint32_t character)
{
    if (character == 0x1734) return true; /* of another class since */
    return has_category(character, CATEGORY(MN)) && !IN_RANGES(character, new_marks_without_width);
}
