/* SPDX-License-Identifier: Apache-2.0 */
/* The names section: the file's own names are returned, and damage is refused. */
#define TEST_ENGINE_MAKE test_engine_make_device
#include "formats/engine/test_engine_frame.h"

enum { TEXT_BYTES = 4096 };

/* Names of all ops but `missing`: "tun1", "tun2", ...; `tail` follows the object of ops. */
static void make_names(char text[TEXT_BYTES], unsigned missing, const char *tail)
{
    size_t used = (size_t)snprintf(text, TEXT_BYTES, "{\"ops\":{");
    for (unsigned op = 1; op < OP_COUNT; op++)
        if (op != missing)
            used +=
                (size_t)snprintf(text + used, TEXT_BYTES - used,
                                 "\"%u\":{\"name\":\"tun%u\",\"operands\":[\"zahlen\"],\"params\":{\"3\":\"breite\"}},",
                                 op, op);
    snprintf(text + used - 1, TEXT_BYTES - used + 1, "}%s", tail);
}

/* The sample with this text as its names; free() it. */
static uint8_t *with_names(const char *text, size_t *size)
{
    uint8_t *bytes = written(false, size);
    struct engine_section_entry *entry = test_engine_entry(bytes, *size, SECTION_NAMES);
    entry->type = 77;
    entry->flags = 0;
    entry->raw_bytes = entry->stored_bytes;
    engine_fix_checksums(bytes, *size);
    expect_refused(bytes, *size, "section 'names' is missing");
    uint8_t *whole = test_engine_with_section(bytes, size, SECTION_NAMES, text, strlen(text));
    free(bytes);
    return whole;
}

TEST(the_file_names_its_ops)
{
    char text[TEXT_BYTES];
    size_t size;
    make_names(text, 0, ",\"kernels\":{\"matmul_head\":{\"operands\":[],\"params\":{\"3\":\"hoehe\"}}},\"later\":1}");
    uint8_t *bytes = with_names(text, &size);
    if (!engine_open_memory(&engine, bytes, size, "test", &status)) fail_msg("%s", status.message);
    const struct plan *plan = &engine.plans[0];
    for (uint32_t n = 0; n < plan->header.launch_count; n++) {
        const struct plan_launch *launch = &plan->launches[n];
        const bool is_head = launch->op == OP_MATMUL;
        int64_t value = 0;
        const char *expected = test_text("tun%u", launch->op);
        assert_string_equal(engine_op_name(&engine, launch->op), expected);
        assert_string_equal(engine_kernel_name(&engine, launch), is_head ? "matmul_head" : "rows");
        assert_true(engine_param(&engine, plan, launch, is_head ? "HOEHE" : "BREITE", &value));
        assert_int_equal(value, plan->params[launch->first_param + 2].value);
        assert_false(engine_param(&engine, plan, launch, is_head ? "breite" : "hoehe", &value));
    }
    engine_close(&engine);
    free(bytes);
}

TEST(damaged_names_are_refused)
{
    static const struct {
        unsigned missing;
        const char *tail, *expected;
    } cases[] = {
        {0, ",\"kernels\":{}", "not valid JSON"},
        {0, "}", "expected an object 'kernels'"},
        {OP_EMBED, ",\"kernels\":{}}", "op 1, which a plan has, is missing"},
        {0, ",\"kernels\":{\"a\":1}}", "kernels: 'a': expected an array 'operands'"},
        {0, ",\"kernels\":{\"a\":{\"operands\":[1],\"params\":{}}}}", "operand 0: the name is not a text"},
        {0, ",\"kernels\":{\"a\":{\"operands\":[\"\\u001b\"],\"params\":{}}}}", "operand 0: the name is not a text"},
        {0, ",\"kernels\":{\"a\":{\"operands\":[],\"params\":{\"0\":\"x\"}}}}", "parameter '0': not an id with a text"},
        {0, ",\"kernels\":{\"a\":{\"operands\":[],\"params\":{\"01\":\"x\"}}}}", "parameter '01': not an id"},
        {0, ",\"kernels\":{\"a\":{\"operands\":[],\"params\":{\"65536\":\"x\"}}}}", "parameter '65536': not an id"},
        {0, ",\"kernels\":{\"a\":{\"operands\":[],\"params\":{\"1\":\"\"}}}}", "parameter '1': not an id with a text"},
        {0, ",\"kernels\":{},\"calls\":[1]}", "calls: element 0 is not a text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[TEXT_BYTES];
        size_t size;
        make_names(text, cases[i].missing, cases[i].tail);
        uint8_t *bytes = with_names(text, &size);
        expect_refused(bytes, size, "section 'names': ");
        expect_refused(bytes, size, cases[i].expected);
        free(bytes);
    }
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
