/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/engine/cubin.h"

#include <elf.h>
#include <inttypes.h>
#include <string.h>

#include "formats/base/checked.h"

enum { MACHINE_CUDA = 190 }; /* EM_CUDA */

struct cubin {
    const uint8_t *bytes;
    uint64_t size;
    Elf64_Ehdr header;
};

static Elf64_Shdr section_at(const struct cubin *cubin, uint32_t index)
{
    Elf64_Shdr section;
    memcpy(&section, cubin->bytes + cubin->header.e_shoff + (uint64_t)index * sizeof section, sizeof section);
    return section;
}

static bool verify_header(struct cubin *cubin, struct status *status)
{
    static const unsigned char ident[] = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
    const Elf64_Ehdr *header = &cubin->header;
    if (cubin->size < sizeof *header)
        return status_fail(status, STATUS_CORRUPT, "expected an ELF file, found %" PRIu64 " bytes", cubin->size);
    memcpy(&cubin->header, cubin->bytes, sizeof cubin->header);
    if (memcmp(header->e_ident, ident, sizeof ident) != 0 || header->e_machine != MACHINE_CUDA ||
        header->e_ehsize != sizeof *header)
        return status_fail(status, STATUS_CORRUPT, "expected a 64-bit ELF file for CUDA, found another format");
    const uint64_t segments = (uint64_t)header->e_phnum * sizeof(Elf64_Phdr);
    const uint64_t sections = (uint64_t)header->e_shnum * sizeof(Elf64_Shdr);
    if ((header->e_phnum && header->e_phentsize != sizeof(Elf64_Phdr)) ||
        !checked_range(header->e_phoff, segments, cubin->size))
        return status_fail(status, STATUS_CORRUPT, "%u segments at %" PRIu64 " do not fit into %" PRIu64 " bytes",
                           header->e_phnum, header->e_phoff, cubin->size);
    if ((header->e_shnum && (header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shstrndx >= header->e_shnum)) ||
        !checked_range(header->e_shoff, sections, cubin->size))
        return status_fail(status, STATUS_CORRUPT, "%u sections at %" PRIu64 " do not fit into %" PRIu64 " bytes",
                           header->e_shnum, header->e_shoff, cubin->size);
    return true;
}

static bool verify_segments(const struct cubin *cubin, struct status *status)
{
    for (uint32_t i = 0; i < cubin->header.e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, cubin->bytes + cubin->header.e_phoff + (uint64_t)i * sizeof segment, sizeof segment);
        if (!checked_range(segment.p_offset, segment.p_filesz, cubin->size))
            return status_fail(status, STATUS_CORRUPT, "segment %" PRIu32 " leaves the file", i);
    }
    return true;
}

/* A section of texts must end with a NUL, so that every text ends inside it. */
static bool is_text(const struct cubin *cubin, const Elf64_Shdr *section)
{
    return section->sh_type == SHT_STRTAB && section->sh_size > 0 &&
           cubin->bytes[section->sh_offset + section->sh_size - 1] == '\0';
}

static bool verify_symbols(const struct cubin *cubin, const Elf64_Shdr *section, struct status *status)
{
    if (section->sh_entsize != sizeof(Elf64_Sym) || section->sh_size % sizeof(Elf64_Sym) != 0 ||
        section->sh_link >= cubin->header.e_shnum)
        return status_fail(status, STATUS_CORRUPT, "not a table of symbols");
    const Elf64_Shdr names = section_at(cubin, section->sh_link);
    if (!is_text(cubin, &names))
        return status_fail(status, STATUS_CORRUPT, "expected a table of texts for the names of its symbols");
    for (uint64_t at = 0; at < section->sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        memcpy(&symbol, cubin->bytes + section->sh_offset + at, sizeof symbol);
        bool placed = symbol.st_shndx < cubin->header.e_shnum || symbol.st_shndx >= SHN_LORESERVE;
        if (symbol.st_name >= names.sh_size || !placed)
            return status_fail(status, STATUS_CORRUPT, "symbol %" PRIu64 ": its name or its section does not exist",
                               at / sizeof symbol);
    }
    return true;
}

/* Each relocation names a symbol, and a place inside the section that it changes. */
static bool verify_relocations(const struct cubin *cubin, const Elf64_Shdr *section, struct status *status)
{
    const uint64_t entry_bytes = section->sh_type == SHT_RELA ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
    if (section->sh_entsize != entry_bytes || section->sh_size % entry_bytes != 0 ||
        section->sh_link >= cubin->header.e_shnum || section->sh_info >= cubin->header.e_shnum)
        return status_fail(status, STATUS_CORRUPT, "not a table of relocations");
    const Elf64_Shdr symbols = section_at(cubin, section->sh_link), target = section_at(cubin, section->sh_info);
    for (uint64_t at = 0; at < section->sh_size; at += entry_bytes) {
        Elf64_Rel relocation; /* also the start of an Elf64_Rela */
        memcpy(&relocation, cubin->bytes + section->sh_offset + at, sizeof relocation);
        if (symbols.sh_type != SHT_SYMTAB || ELF64_R_SYM(relocation.r_info) >= symbols.sh_size / sizeof(Elf64_Sym) ||
            relocation.r_offset >= target.sh_size)
            return status_fail(status, STATUS_CORRUPT, "relocation %" PRIu64 ": its symbol or its place does not exist",
                               at / entry_bytes);
    }
    return true;
}

static bool verify_section(const struct cubin *cubin, const Elf64_Shdr *section, struct status *status)
{
    switch (section->sh_type) {
    case SHT_STRTAB:
        return section->sh_size == 0 || is_text(cubin, section) ||
               status_fail(status, STATUS_CORRUPT, "its last text does not end with a NUL");
    case SHT_SYMTAB: return verify_symbols(cubin, section, status);
    case SHT_REL:
    case SHT_RELA: return verify_relocations(cubin, section, status);
    default: return true;
    }
}

static bool is_table(const Elf64_Shdr *section)
{
    return section->sh_type == SHT_SYMTAB || section->sh_type == SHT_REL || section->sh_type == SHT_RELA;
}

/* Tables that do not overlap have at most as many bytes as the file, so the time to check them is bounded by its
 * size. */
static bool verify_sections(const struct cubin *cubin, struct status *status)
{
    uint64_t table_bytes = 0;
    if (cubin->header.e_shnum == 0) return true;
    for (uint32_t i = 0; i < cubin->header.e_shnum; i++) {
        const Elf64_Shdr section = section_at(cubin, i);
        bool in_file = section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS;
        if (in_file && !checked_range(section.sh_offset, section.sh_size, cubin->size))
            return status_fail(status, STATUS_CORRUPT, "section %" PRIu32 " leaves the file", i);
    }
    const Elf64_Shdr names = section_at(cubin, cubin->header.e_shstrndx);
    if (!is_text(cubin, &names))
        return status_fail(status, STATUS_CORRUPT, "expected a table of texts for the names of the sections");
    for (uint32_t i = 0; i < cubin->header.e_shnum; i++) {
        const Elf64_Shdr section = section_at(cubin, i);
        if (section.sh_name >= names.sh_size)
            return status_fail(status, STATUS_CORRUPT, "section %" PRIu32 " has no name", i);
        if (is_table(&section) &&
            (!checked_add(table_bytes, section.sh_size, &table_bytes) || table_bytes > cubin->size))
            return status_fail(status, STATUS_CORRUPT,
                               "section %" PRIu32 ": the tables of symbols and relocations overlap", i);
        if (!verify_section(cubin, &section, status)) return status_prefix(status, "section %" PRIu32, i);
    }
    return true;
}

bool cubin_verify(const void *bytes, uint64_t size, struct status *status)
{
    struct cubin cubin = {.bytes = bytes, .size = size};
    return verify_header(&cubin, status) && verify_segments(&cubin, status) && verify_sections(&cubin, status);
}
