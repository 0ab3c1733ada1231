/* SPDX-License-Identifier: Apache-2.0 */
/* An engine as another release of the same format may write it: STEP and STATE fields in another order, a parameter that this
 * release does not know, names of its own. It runs, enginfo prints the file's names, and once the parameter is essential it is
 * refused with one sentence. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"

#include "formats/base/file.h"
#include "formats/engine/engine_layout.h"
#include "formats/engine/test_engine.h"
#include "runtime/eng.h"

enum { FOREIGN_ID = 900, MOST_PLANS = 16, OUTPUT_BYTES = 1 << 16 };

static const char released[] = "formats/testdata/engine_2_0_cpu";

/* Sizes stay, the last field comes first. */
static void reverse_fields(const struct plan_field *fields, int count, struct plan_field *reversed)
{
    uint64_t next = 0;
    for (int i = count - 1; i >= 0; i--) {
        reversed[i] = (struct plan_field){next, fields[i].bytes};
        next += (fields[i].bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
    }
}

static void move(struct plan_operand *operand, const struct plan_field *from, const struct plan_field *to, int count)
{
    for (int i = 0; i < count; i++) {
        if (operand->offset < from[i].offset || operand->offset >= from[i].offset + from[i].bytes) continue;
        operand->offset = operand->offset - from[i].offset + to[i].offset;
        return;
    }
    fail_msg("an operand lies in no field");
}

/* A copy with arrays of its own, to be freed with plan_free. */
static struct plan foreign_plan(const struct plan *plan, const struct plan_geometry *geometry,
                                const struct plan_field *state, uint16_t flags)
{
    const struct plan_header *header = &plan->header;
    struct plan copy = *plan;
    struct plan_launch *launches = calloc(header->launch_count, sizeof *launches);
    struct plan_operand *operands = calloc(header->operand_count, sizeof *operands);
    struct plan_param *params = calloc(header->param_count + header->launch_count, sizeof *params);
    uint32_t *dependencies = calloc(header->dependency_count + 1, sizeof *dependencies);
    assert_true(launches && operands && params && dependencies);
    memcpy(operands, plan->operands, header->operand_count * sizeof *operands);
    memcpy(dependencies, plan->dependencies, header->dependency_count * sizeof *dependencies);
    reverse_fields(plan->step, STEP_FIELD_COUNT, copy.step);
    for (uint32_t i = 0; i < header->operand_count; i++) {
        if (operands[i].space == SPACE_STEP) move(&operands[i], plan->step, copy.step, STEP_FIELD_COUNT);
        if (operands[i].space == SPACE_STATE) move(&operands[i], geometry->state, state, STATE_FIELD_COUNT);
    }
    uint32_t used = 0;
    for (uint32_t n = 0; n < header->launch_count; n++) {
        launches[n] = plan->launches[n];
        memcpy(params + used, plan->params + launches[n].first_param, launches[n].param_count * sizeof *params);
        launches[n].first_param = used;
        used += launches[n].param_count++;
        params[used++] = (struct plan_param){.id = FOREIGN_ID, .flags = flags, .value = INT64_MIN};
    }
    copy.header.param_count = used;
    copy.launches = launches;
    copy.operands = operands;
    copy.params = params;
    copy.tensor_maps = NULL;
    copy.dependencies = dependencies;
    return copy;
}

static bool write_names(struct engine_writer *writer, const struct engine *file, struct status *status)
{
    static const struct engine_param_name params[] = {{1, "first"}, {2, "second"}, {3, "third"}};
    struct engine_name_table tables[OP_COUNT];
    char names[OP_COUNT][64];
    size_t count = 0;
    for (unsigned op = 1; op < OP_COUNT; op++) {
        if (!engine_op_name(file, op)) continue;
        snprintf(names[op], sizeof names[op], "foreign %u", op);
        tables[count++] = (struct engine_name_table){.op = op, .name = names[op], .params = params, .param_count = 3};
    }
    return engine_writer_names(writer, tables, count, NULL, 0, NULL, 0, status);
}

static void write_foreign(const char *path, uint16_t flags)
{
    struct engine file;
    struct engine_header header;
    struct plan plans[MOST_PLANS];
    struct status status = {0};
    size_t size;
    test_expect_success(engine_open(&file, released, &status), &status);
    assert_true(file.plan_count <= MOST_PLANS);
    struct plan_geometry geometry = file.manifest.geometry;
    reverse_fields(file.manifest.geometry.state, STATE_FIELD_COUNT, geometry.state);
    for (size_t p = 0; p < file.plan_count; p++)
        plans[p] = foreign_plan(&file.plans[p], &file.manifest.geometry, geometry.state, flags);
    struct engine_writer *writer = engine_writer_begin(path, &status);
    bool ok =
        writer &&
        engine_writer_section(writer, SECTION_MANIFEST, file.manifest_text, file.manifest_text_size, false, &status) &&
        engine_writer_tensors(writer, file.tensors, file.tensor_count, &status) &&
        engine_writer_weights_begin(writer, file.manifest.weights_bytes, 1, &status) &&
        engine_writer_weights_put(writer, 0, file.weights, file.manifest.weights_bytes, &status) &&
        engine_writer_weights_end(writer, &status) &&
        engine_writer_plans(writer, plans, file.plan_count, &geometry, &status) &&
        write_names(writer, &file, &status) &&
        engine_writer_section(writer, SECTION_TACTICS, file.tactics, file.tactics_size, true, &status) &&
        engine_writer_section(writer, SECTION_TOKENIZER, file.tokenizer, file.tokenizer_size, true, &status) &&
        engine_writer_golden(writer, &file.golden, &status) && engine_writer_commit(writer, &status);
    if (!ok) fail_msg("%s", status.message);
    for (size_t p = 0; p < file.plan_count; p++) plan_free(&plans[p]);
    engine_close(&file);
    uint8_t *bytes = test_engine_read(path, &size);
    assert_non_null(bytes);
    memcpy(&header, bytes, sizeof header);
    header.minor = 0;
    memcpy(bytes, &header, sizeof header);
    engine_fix_checksums(bytes, size);
    FILE *out = fopen(path, "wb");
    assert_true(out && fwrite(bytes, 1, size, out) == size && fclose(out) == 0);
    free(bytes);
}

/* What enginfo prints; the caller frees it. */
static char *info(const char *path, const char *flags, int *code)
{
    char command[4096], *text = calloc(1, OUTPUT_BYTES);
    assert_non_null(text);
    snprintf(command, sizeof command, "runtime/enginfo %s %s 2>&1", path, flags);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    text[fread(text, 1, OUTPUT_BYTES - 1, pipe)] = 0;
    *code = pclose(pipe);
    return text;
}

TEST(it_runs_and_is_printed_by_its_own_names)
{
    char *folder = test_folder(), path[4096], expected[64];
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    struct eng_session_options options;
    struct eng_error error;
    struct engine file;
    struct status status = {0};
    int code;
    snprintf(path, sizeof path, "%s", test_path(folder, "foreign.eng"));
    write_foreign(path, 0);
    eng_session_options_init(&options);
    options.threads = 1;
    if (eng_open(path, NULL, &engine, &error) != ENG_OK ||
        eng_session_create(engine, &options, &session, &error) != ENG_OK ||
        eng_selftest(session, NULL, &error) != ENG_OK) /* golden tokens and logits */
        fail_msg("%s", error.message);
    eng_session_destroy(&session);
    eng_close(&engine);

    char *text = info(path, "--verify --tactics", &code);
    if (code != 0) fail_msg("%s", text);
    test_expect_success(engine_open(&file, path, &status), &status);
    assert_int_not_equal(file.plans[0].step[STEP_COUNTS].offset, 0);
    for (uint32_t n = 0; n < file.plans[0].header.launch_count; n++) {
        const unsigned op = file.plans[0].launches[n].op;
        snprintf(expected, sizeof expected, "foreign %u", op);
        assert_string_equal(engine_op_name(&file, op), expected);
        if (!strstr(text, expected)) fail_msg("'%s' is not in: %s", expected, text);
        if (strstr(text, plan_op_name(op))) fail_msg("'%s' is in: %s", plan_op_name(op), text);
    }
    engine_close(&file);
    free(text);
    test_folder_remove(folder);
}

TEST(an_essential_parameter_is_refused)
{
    char *folder = test_folder(), path[4096];
    struct eng_engine *engine = NULL;
    struct eng_error error;
    int code;
    snprintf(path, sizeof path, "%s", test_path(folder, "essential.eng"));
    write_foreign(path, PLAN_PARAM_ESSENTIAL);
    assert_int_not_equal(eng_open(path, NULL, &engine, &error), ENG_OK);
    assert_null(engine);
    if (!strstr(error.message, "needs a newer runtime") || !strstr(error.message, "id 900") ||
        strchr(error.message, '\n'))
        fail_msg("%s", error.message);
    char *text = info(path, "--verify", &code);
    assert_int_not_equal(code, 0);
    if (!strstr(text, "needs a newer runtime")) fail_msg("%s", text);
    free(text);
    test_folder_remove(folder);
}

int main(void) { return test_run(); }
