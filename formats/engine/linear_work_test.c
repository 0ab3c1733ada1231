/* SPDX-License-Identifier: Apache-2.0 */
/* Work that grows with the square of a count in a careless reader: counts for which that would take minutes, and a
 * limit of processor time far above the real need. */
#include <elf.h>
#include <time.h>

#include "formats/engine/cubin.h"
#include "formats/engine/engine_verify.h"
#include "formats/base/test_support.h"
#include "formats/tuning/tuning_record.h"

static struct status status;

enum { MOST_SECONDS = 30 };

static void expect_in_time(clock_t start, const char *what, size_t done, size_t all)
{
    if (clock() - start > (clock_t)MOST_SECONDS * CLOCKS_PER_SEC)
        fail_msg("%s: %zu of %zu in %d s of processor time", what, done, all, MOST_SECONDS);
}

/* Every library plan has a counterpart: the last plans are found as fast as the first. */
TEST(twins_of_many_plans)
{
    enum { PLANS = 600000 };
    struct plan *plans = calloc(PLANS, sizeof *plans);
    assert_non_null(plans);
    for (uint32_t i = 0; i < PLANS; i++)
        plans[i].header = (struct plan_header){.kind = i < PLANS / 2 ? PLAN_DECODE : PLAN_PREFILL, .rows = i + 1};
    const clock_t start = clock();
    size_t next = 0;
    for (size_t i = 0; i < PLANS; i++) {
        if (engine_plan_twin(plans, PLANS, next, &plans[i].header) != i) fail_msg("plan %zu is not its own twin", i);
        next = i + 1;
        if (i % 1000 == 0) expect_in_time(start, "plans", i, PLANS);
    }
    /* A missing one, or one before the start: none. */
    const struct plan_header absent = {.kind = PLAN_DECODE, .rows = PLANS}, before = {.kind = PLAN_DECODE, .rows = 5};
    assert_int_equal(engine_plan_twin(plans, PLANS, 0, &absent), PLANS);
    assert_int_equal(engine_plan_twin(plans, PLANS, 0, &before), 4);
    assert_int_equal(engine_plan_twin(plans, PLANS, 5, &before), PLANS);
    assert_int_equal(engine_plan_twin(plans, PLANS, PLANS, &before), PLANS);
    free(plans);
}

/* A file of 24 MB whose 65,000 section headers name one table of a million symbols. */
TEST(one_table_named_by_many_sections)
{
    enum { SECTIONS = 65000, SYMBOLS = 1000000, NAMES = 1, FIRST_TABLE = 2, NAME_BYTES = 64 };
    const size_t names_at = sizeof(Elf64_Ehdr) + SECTIONS * sizeof(Elf64_Shdr), symbols_at = names_at + NAME_BYTES,
                 size = symbols_at + SYMBOLS * sizeof(Elf64_Sym);
    uint8_t *bytes = calloc(1, size);
    assert_non_null(bytes);
    const Elf64_Ehdr header = {
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
        .e_type = ET_EXEC,
        .e_machine = 190,
        .e_version = EV_CURRENT,
        .e_shoff = sizeof header,
        .e_ehsize = sizeof header,
        .e_shentsize = sizeof(Elf64_Shdr),
        .e_shnum = SECTIONS,
        .e_shstrndx = NAMES,
    };
    memcpy(bytes, &header, sizeof header);
    Elf64_Shdr *sections = (Elf64_Shdr *)(void *)(bytes + sizeof header);
    sections[NAMES] = (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = names_at, .sh_size = NAME_BYTES};
    const Elf64_Shdr table = {.sh_type = SHT_SYMTAB,
                              .sh_offset = symbols_at,
                              .sh_size = SYMBOLS * sizeof(Elf64_Sym),
                              .sh_link = NAMES,
                              .sh_entsize = sizeof(Elf64_Sym)};
    sections[FIRST_TABLE] = table;
    test_expect_success(cubin_verify(bytes, size, &status), &status);
    for (int i = FIRST_TABLE; i < SECTIONS; i++) sections[i] = table;
    const clock_t start = clock();
    test_expect_failure(cubin_verify(bytes, size, &status), &status, STATUS_CORRUPT,
                        "section 3: the tables of symbols and relocations overlap");
    expect_in_time(start, "sections", SECTIONS, SECTIONS);
    free(bytes);
}

static void fill_key(struct tuning_record *record, uint32_t i)
{
    snprintf(record->key, sizeof record->key, "device matmul %08x", i * 2654435761u); /* in no order */
}

TEST(a_large_tuning_cache)
{
    enum { RECORDS = 80000 };
    struct tuning_cache cache;
    struct tuning_record record = {.median_us = 1, .level = "quick", .candidates = 1};
    test_expect_success(tuning_cache_open(&cache, NULL, &status), &status);
    const clock_t start = clock();
    for (uint32_t i = 0; i < RECORDS; i++) {
        fill_key(&record, i);
        record.flops = i;
        test_expect_success(tuning_cache_add(&cache, &record, &status), &status);
        if (i % 1000 == 0) expect_in_time(start, "records", i, RECORDS);
    }
    assert_int_equal(cache.count, RECORDS);
    for (uint32_t i = 0; i < RECORDS; i++) {
        fill_key(&record, i);
        const struct tuning_record *found = tuning_cache_find(&cache, record.key);
        assert_non_null(found);
        assert_int_equal(found->flops, i);
    }
    assert_null(tuning_cache_find(&cache, "device matmul"));
    /* The last record of a key wins. */
    fill_key(&record, 777);
    record.flops = 1;
    test_expect_success(tuning_cache_add(&cache, &record, &status), &status);
    assert_int_equal(cache.count, RECORDS);
    assert_int_equal(tuning_cache_find(&cache, record.key)->flops, 1);
    tuning_cache_close(&cache);
}

int main(void) { return test_run(); }
