/* SPDX-License-Identifier: Apache-2.0 */
/* cubin_verify on a small ELF file: it refuses every table, name, symbol and relocation that leaves its bounds. Real
 * cubins: every test of a device kernel loads some. */
#include <elf.h>

#include "formats/engine/cubin.h"
#include "formats/base/test_support.h"

enum { TEXT = 1, SYMBOLS, STRINGS, RELOCATIONS, NOTHING, SECTIONS };

/* Laid out as a linker would. */
static struct image {
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    uint8_t code[64];
    Elf64_Sym symbols[2];
    Elf64_Rela relocations[1];
    char strings[16];
    Elf64_Shdr sections[SECTIONS];
} image;
static struct status status;

static Elf64_Shdr section(uint32_t name, uint32_t type, size_t offset, size_t size, size_t entry)
{
    return (Elf64_Shdr){.sh_name = name, .sh_type = type, .sh_offset = offset, .sh_size = size, .sh_entsize = entry};
}

static int make_image(void **state)
{
    memset(&image, 0, sizeof image);
    image.header = (Elf64_Ehdr){
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
        .e_type = ET_EXEC,
        .e_machine = 190,
        .e_version = EV_CURRENT,
        .e_phoff = offsetof(struct image, segment),
        .e_shoff = offsetof(struct image, sections),
        .e_ehsize = sizeof(Elf64_Ehdr),
        .e_phentsize = sizeof(Elf64_Phdr),
        .e_phnum = 1,
        .e_shentsize = sizeof(Elf64_Shdr),
        .e_shnum = SECTIONS,
        .e_shstrndx = STRINGS,
    };
    image.segment = (Elf64_Phdr){.p_offset = offsetof(struct image, code), .p_filesz = sizeof image.code};
    memcpy(image.strings, "\0text\0main\0", 11);
    image.symbols[1] = (Elf64_Sym){.st_name = 6, .st_shndx = TEXT};
    image.relocations[0] = (Elf64_Rela){.r_offset = 8, .r_info = ELF64_R_INFO((uint64_t)1, 2)};
    image.sections[TEXT] = section(1, SHT_PROGBITS, offsetof(struct image, code), sizeof image.code, 0);
    image.sections[SYMBOLS] =
        section(1, SHT_SYMTAB, offsetof(struct image, symbols), sizeof image.symbols, sizeof(Elf64_Sym));
    image.sections[SYMBOLS].sh_link = STRINGS;
    image.sections[STRINGS] = section(1, SHT_STRTAB, offsetof(struct image, strings), sizeof image.strings, 0);
    image.sections[RELOCATIONS] =
        section(1, SHT_RELA, offsetof(struct image, relocations), sizeof image.relocations, sizeof(Elf64_Rela));
    image.sections[RELOCATIONS].sh_link = SYMBOLS;
    image.sections[RELOCATIONS].sh_info = TEXT;
    image.sections[NOTHING] = section(1, SHT_NOBITS, UINT64_C(1) << 60, UINT64_C(1) << 60, 0);
    return 0;
}

/* On the heap, so that a sanitizer detects every read after the end. */
static bool verify(size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, &image, size);
    status_clear(&status);
    bool ok = cubin_verify(copy, size, &status);
    free(copy);
    assert_int_equal(ok, status.code == STATUS_OK);
    return ok;
}

TEST(a_sound_file_is_accepted)
{
    if (!verify(sizeof image)) fail_msg("%s", status.message);
    image.header.e_phnum = 0;
    image.header.e_shnum = 0;
    image.header.e_phoff = image.header.e_shoff = 0;
    if (!verify(sizeof image.header)) fail_msg("%s", status.message);
}

#define CHANGE(member, value, expected)                                                                  \
    {                                                                                                    \
        offsetof(struct image, member), sizeof(((struct image *)0)->member), (uint64_t)(value), expected \
    }

TEST(every_damage_is_named)
{
    static const struct {
        size_t offset, bytes;
        uint64_t value;
        const char *expected;
    } changes[] = {
        CHANGE(header.e_ident[0], 0, "expected a 64-bit ELF file for CUDA"),
        CHANGE(header.e_ident[EI_CLASS], ELFCLASS32, "expected a 64-bit ELF file for CUDA"),
        CHANGE(header.e_ident[EI_DATA], ELFDATA2MSB, "expected a 64-bit ELF file for CUDA"),
        CHANGE(header.e_machine, EM_X86_64, "expected a 64-bit ELF file for CUDA"),
        CHANGE(header.e_ehsize, 52, "expected a 64-bit ELF file for CUDA"),
        CHANGE(header.e_phentsize, 32, "1 segments at"),
        CHANGE(header.e_phoff, sizeof image, "1 segments at"),
        CHANGE(header.e_phoff, UINT64_MAX, "1 segments at"),
        CHANGE(header.e_phnum, UINT16_MAX, "65535 segments at"),
        CHANGE(header.e_shentsize, 40, "6 sections at"),
        CHANGE(header.e_shoff, UINT64_MAX - 8, "6 sections at"),
        CHANGE(header.e_shoff, offsetof(struct image, sections) + 1, "6 sections at"),
        CHANGE(header.e_shnum, SECTIONS + 1, "7 sections at"),
        CHANGE(header.e_shstrndx, SECTIONS, "6 sections at"),
        CHANGE(header.e_shstrndx, TEXT, "expected a table of texts for the names of the sections"),
        CHANGE(segment.p_offset, sizeof image, "segment 0 leaves the file"),
        CHANGE(segment.p_filesz, UINT64_MAX, "segment 0 leaves the file"),
        CHANGE(sections[TEXT].sh_offset, UINT64_MAX, "section 1 leaves the file"),
        CHANGE(sections[TEXT].sh_size, sizeof image, "section 1 leaves the file"),
        CHANGE(sections[TEXT].sh_name, 16, "section 1 has no name"),
        CHANGE(sections[STRINGS].sh_size, 0, "expected a table of texts for the names of the sections"),
        CHANGE(strings[15], 'x', "expected a table of texts for the names of the sections"),
        CHANGE(sections[SYMBOLS].sh_entsize, 16, "section 2: not a table of symbols"),
        CHANGE(sections[SYMBOLS].sh_size, 25, "section 2: not a table of symbols"),
        CHANGE(sections[SYMBOLS].sh_link, SECTIONS, "section 2: not a table of symbols"),
        CHANGE(sections[SYMBOLS].sh_link, TEXT, "section 2: expected a table of texts for the names of its symbols"),
        CHANGE(symbols[1].st_name, 16, "section 2: symbol 1: its name or its section does not exist"),
        CHANGE(symbols[1].st_shndx, SECTIONS, "section 2: symbol 1: its name or its section does not exist"),
        CHANGE(sections[RELOCATIONS].sh_entsize, 16, "section 4: not a table of relocations"),
        CHANGE(sections[RELOCATIONS].sh_size, 23, "section 4: not a table of relocations"),
        CHANGE(sections[RELOCATIONS].sh_link, SECTIONS, "section 4: not a table of relocations"),
        CHANGE(sections[RELOCATIONS].sh_info, SECTIONS, "section 4: not a table of relocations"),
        CHANGE(sections[RELOCATIONS].sh_link, TEXT, "section 4: relocation 0: its symbol or its place does not exist"),
        CHANGE(relocations[0].r_offset, sizeof image.code,
               "section 4: relocation 0: its symbol or its place does not exist"),
        CHANGE(relocations[0].r_info, UINT64_C(2) << 32,
               "section 4: relocation 0: its symbol or its place does not exist"),
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        make_image(state);
        memcpy((uint8_t *)&image + changes[i].offset, &changes[i].value, changes[i].bytes);
        test_expect_failure(verify(sizeof image), &status, STATUS_CORRUPT, changes[i].expected);
    }
}

TEST(no_shorter_file_is_accepted)
{
    for (size_t size = 0; size < sizeof image; size++)
        if (verify(size)) fail_msg("accepted: %zu of %zu bytes", size, sizeof image);
}

/* Every bit flipped: no read outside the data. */
TEST(every_bit_may_be_wrong)
{
    for (size_t bit = 0; bit < 8 * sizeof image; bit++) {
        make_image(state);
        ((uint8_t *)&image)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        verify(sizeof image);
    }
}

int main(void) { return test_run_with(NULL, make_image, NULL, NULL); }
