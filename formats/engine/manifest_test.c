/* SPDX-License-Identifier: Apache-2.0 */
#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"

static struct manifest *const manifest = &sample.manifest;

static char *format(void)
{
    char *text = NULL;
    size_t size = 0;
    if (!manifest_format(manifest, &text, &size, &status)) fail_msg("%s", status.message);
    assert_int_equal(strlen(text), size);
    return text;
}

/* The manifest read from a text, which it gives again. */
static struct manifest parse(const char *text)
{
    struct manifest back;
    memset(&back, 0x5a, sizeof back);
    if (!manifest_parse(&back, text, strlen(text), &status)) fail_msg("%s", status.message);
    const struct manifest kept = *manifest;
    *manifest = kept;
    return back;
}

TEST(text_is_canonical)
{
    char *text = format();
    assert_string_equal(
        text,
        test_json("{'builder_version':'0.1.0-test',"
                  "'kv_cache':{'dtype':'F32','page_bytes':256,'page_tokens':4,'pages_per_slot':3},"
                  "'limits':{'max_context':10,'slots':2},"
                  "'memory':{'arena_bytes':32768,'state_bytes':256,'step_bytes':576,'weights_bytes':2304},"
                  "'model':{'head_dim':8,'heads':2,'hidden_size':16,'intermediate_size':16,'kv_heads':1,'layers':1,"
                  "'name':'test \xc3\xa9ngine','parameters':528,'type':'llama','vocab_size':16,"
                  "'weight_dtype':'F32'},"
                  "'sampling':{'repetition_penalty':1.0,'temperature':0.7,'top_k':40,'top_p':0.95},"
                  "'target':{'kind':'cpu','name':'a processor'},"
                  "'tokens':{'bos':1,'chat_format':'chatml','eos':[2,3],'tokenizer':true}}"));
    free(text);
}

TEST(round_trip_keeps_every_field)
{
    manifest->temperature = 0.1 + 0.2; /* needs 17 digits */
    manifest->pad_token = 15;
    manifest->bos_token = -1;
    manifest->eight_bit_rows = 32;
    manifest->eight_bit_inputs = DTYPE_I8;
    char *text = format();
    const struct manifest back = parse(text); /* which covers the other fields */
    assert_memory_equal(&back.temperature, &manifest->temperature, sizeof(double));
    assert_int_equal(back.bos_token, -1);
    assert_int_equal(back.pad_token, 15);
    assert_int_equal(back.eos_count, 2);
    assert_int_equal(back.eos_tokens[1], 3);
    assert_int_equal(back.chat_format, CHAT_CHATML);
    assert_int_equal(back.kv_dtype, ENCODING_F32);
    assert_int_equal(back.target, TARGET_CPU);
    assert_int_equal(back.target_capability, 0);
    assert_true(back.has_tokenizer);
    assert_int_equal(back.top_k, 40);
    assert_int_equal(back.eight_bit_rows, 32);
    assert_int_equal(back.eight_bit_inputs, DTYPE_I8);
    assert_string_equal(back.model_name, manifest->model_name);
    assert_memory_equal(&back.geometry, &manifest->geometry, offsetof(struct plan_geometry, state));
    free(text);
}

/* A replacement in the canonical text, and the expected message; NULL: still valid. */
struct text_edit {
    const char *from, *to, *expected;
};

static const struct text_edit processor_edits[] = {
    {"{'builder_version'", "[{'builder_version'", "not valid JSON"},
    {"'layers':1", "'layers':0", "layers"},
    {"'layers':1", "'layers':-1", "layers"},
    {"'layers':1", "'layers':1.0", "layers"},
    {"'layers':1", "'layers':'1'", "layers"},
    {"'layers':1", "'layers':5000", "layers"},
    {"'layers':1", "'layers':2", "page_bytes: expected 512 (from the other fields), found 256"},
    {"'layers':1,", "", "layers"},
    {"'layers':1", "'layers':1,'layers':1", "duplicate"},
    {"'layers':1", "'layers':1,'depth':1", "manifest: model: field 'depth' is not understood"},
    {"'heads':2", "'heads':3", NULL},
    {"'heads':2", "'heads':0", "heads"},
    {"'kv_heads':1", "'kv_heads':3", "not a multiple"},
    {"'head_dim':8", "'head_dim':65537", "head_dim"},
    {"'max_context':10", "'max_context':13", "pages_per_slot: expected 4 (from the other fields), found 3"},
    {"'max_context':10", "'max_context':12", NULL},
    {"'slots':2", "'rope_original':4096,'slots':2", NULL},
    {"'slots':2", "'rope_original':0,'slots':2", "rope_original"},
    {"'slots':2", "'rope_original':2000000000,'slots':2", "rope_original"},
    {"'slots':2", "'slots':99999999999", "slots"},
    {"'page_bytes':256", "'page_bytes':128", "page_bytes: expected 256"},
    {"'page_bytes':256", "'latent_dim':6,'page_bytes':128", NULL},
    {"'page_bytes':256", "'latent_dim':6,'page_bytes':256", "page_bytes: expected 128"},
    {"'page_bytes':256", "'latent_dim':9,'page_bytes':128", "latent_dim: expected at most head_dim (8)"},
    {"'page_bytes':256", "'latent_dim':0,'page_bytes':256", "latent_dim"},
    {"'page_bytes':256", "'all_bytes':640,'page_bytes':640", NULL},
    {"'page_bytes':256", "'all_bytes':640,'page_bytes':256", "page_bytes: expected 640"},
    {"'page_bytes':256", "'all_bytes':0,'page_bytes':256", "all_bytes"},
    {"'page_tokens':4", "'page_tokens':0", "page_tokens"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[4]", NULL},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[0]", NULL},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[10]", NULL},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[11]",
     "kv_cache: windows: element 0: expected 0 to 10 (max_context), found 11"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[]", "windows: expected an array of 1 to 16 integers"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':4", "windows: expected an array of 1 to 16 integers"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[-1]", "windows: element 0: expected an integer"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':['4']", "windows: element 0: expected an integer"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[4.0]", "windows: element 0: expected an integer"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[4294967296]", "windows: element 0: expected an integer"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]",
     "windows: expected an array of 1 to 16 integers, found an array of 17"},
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[4],'windows':[4]", "duplicate"},
    /* Groups divide the layers: one layer makes one group. */
    {"'pages_per_slot':3", "'pages_per_slot':3,'windows':[4,0]",
     "page_bytes: expected those of at least one layer (256) and fewer than those of all (256), found 256"},
    {"'dtype':'F32'", "'dtype':'F31'", "unknown element type 'F31'"},
    {"'dtype':'F32'", "'dtype':'I8'", "unknown element type 'I8'"},
    {"'dtype':'F32','page_bytes':256,'page_tokens':4,'pages_per_slot':3",
     "'dtype':'int8_channel','page_bytes':640,'page_tokens':16,'pages_per_slot':1", NULL},
    {"'dtype':'F32','page_bytes':256,'page_tokens':4,'pages_per_slot':3",
     "'dtype':'e4m3_channel','page_bytes':544,'page_tokens':4,'pages_per_slot':3", "not a multiple of 64"},
    {"'dtype':'F32'", "'dtype':'int8_channel'", "page_bytes: expected 544"},
    {"'dtype':'F32'", "'dtype':'e4m3_channel'", "page_bytes: expected 544"},
    {"'dtype':'F32'", "'dtype':'F16'", "page_bytes: expected 128"},
    {"'state_bytes':256", "'state_bytes':0", "state_bytes': expected an integer from 1"},
    {"'weights_bytes':2304", "'weights_bytes':0", "weights_bytes"},
    {"'weights_bytes':2304", "'weights_bytes':9223372036854775807", "weights_bytes"},
    {"'weights_bytes':2304", "'weights_bytes':18446744073709551616", "JSON"},
    {"'bos':1", "'bos':16", "tokens: bos: expected 0 to 15, found 16"},
    {"'bos':1,", "", NULL},
    {"'bos':1", "'bos':-1", "bos"},
    {"'eos':[2,3]", "'eos':[2,16]", "tokens: eos: expected 0 to 15, found 16"},
    {"'eos':[2,3]", "'eos':[]", NULL},
    {"'eos':[2,3]", "'eos':3", "eos: expected an array"},
    {"'eos':[2,3]", "'eos':[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "eos: expected an array of at most 16"},
    {"'eos':[2,3]", "'eos':[null]", "eos: element 0 is not a token id"},
    {"'chat_format':'chatml'", "'chat_format':'chat'", "chat_format: unknown value"},
    {"'chat_format':'chatml'", "'chat_format':'none'", NULL},
    {"'tokenizer':true", "'tokenizer':1", "tokenizer"},
    {"'temperature':0.7", "'temperature':-0.7", "temperature: expected 0 to"},
    {"'temperature':0.7", "'temperature':0", NULL},
    {"'temperature':0.7", "'temperature':1e999", "JSON"},
    {"'top_p':0.95", "'top_p':0", "top_p"},
    {"'top_p':0.95", "'top_p':1.01", "top_p"},
    {"'repetition_penalty':1.0", "'repetition_penalty':0.0", "repetition_penalty"},
    {"'top_k':40", "'top_k':3000000000", "top_k"},
    {"'kind':'cpu'", "'kind':'tpu'", "kind: expected \"cpu\" or \"cuda\", found \"tpu\""},
    {"'kind':'cpu'", "'kind':'cuda'", "manifest: target: field 'capability': expected an integer"},
    {"'kind':'cpu'", "'kind':'cpu','capability':0", "target: field 'capability' is not understood"},
    {"'kind':'cpu'", "'kind':'cpu','capability':90", "target: field 'capability' is not understood"},
    {"'type':'llama'", "'type':''", "type: expected 1 to 31 bytes"},
    {"'type':'llama'", "'type':'a name that is longer than the array'", "type: expected at most 31"},
    {"'type':'llama'", "'type':'a\\u001bb'", "control character"},
    {"'type':'llama'", "'type':'a\\u009bb'", "control character"},
    {"'type':'llama'", "'type':'a\\u202eb'", "control character"},
    {"'type':'llama'", "'type':'a\\u0000b'", "JSON"},
    {"'target':{", "'target':[{}],'x':{", "target: expected an object, found array"},
    {"'builder_version':", "'future':1,'builder_version':", "field 'future' is not understood"},
    {"'builder_version':", "'extra':{'future':[1]},'builder_version':", NULL},
    {"'builder_version':", "'extra':1,'builder_version':", "extra: expected an object"},
    {"'builder_version':", "'extra':{'accuracy':{'tokens':9,'kl':0.5,'top1':0.25}},'builder_version':", NULL},
    {"'builder_version':", "'extra':{'eight_bit_rows':32},'builder_version':", NULL},
    {"'builder_version':", "'extra':{'eight_bit_rows':0},'builder_version':", "eight_bit_rows: expected an integer"},
    {"'builder_version':", "'extra':{'eight_bit_rows':'x'},'builder_version':",
     "eight_bit_rows: expected an integer from 1 on, found string"},
    {"'builder_version':", "'extra':{'eight_bit_rows':32,'eight_bit_inputs':'I8'},'builder_version':", NULL},
    {"'builder_version':", "'extra':{'eight_bit_rows':32,'eight_bit_inputs':'I5'},'builder_version':", NULL},
    {"'builder_version':", "'extra':{'eight_bit_inputs':'I8'},'builder_version':", NULL},
    {"'builder_version':", "'extra':{'eight_bit_rows':32,'eight_bit_inputs':8},'builder_version':",
     "eight_bit_inputs: expected the name of a type, found integer"},
    {"'builder_version':", "'extra':{'accuracy':1},'builder_version':", "extra: accuracy: expected an object"},
    {"'builder_version':", "'extra':{'accuracy':{'tokens':0,'kl':0.5,'top1':0.25}},'builder_version':", "tokens"},
    {"'builder_version':", "'extra':{'accuracy':{'tokens':9,'kl':'x','top1':0.25}},'builder_version':", "kl"},
    {"'sampling':", "'parallel':{},'sampling':", "manifest: parallel: field 'ranks': expected"},
    {"'sampling':", "'parallel':{'comm_bytes':0,'ranks':1},'sampling':", "manifest: parallel: field 'ranks'"},
    {"'sampling':", "'parallel':{'comm_bytes':1024,'ranks':2},'sampling':",
     "weights_bytes: 2304 are not 2 regions of a multiple of 4096 bytes"},
};

#define PARALLEL "'parallel':{'comm_bytes':1024,'ranks':2}"
#define SHAPE    "'heads':2,'hidden_size':16,'intermediate_size':16,'kv_heads':1"

/* Replacements in a manifest of two ranks. */
static const struct text_edit parallel_edits[] = {
    {PARALLEL ",", "", NULL}, /* an engine of one rank */
    {PARALLEL, "'parallel':[1024,2]", "manifest: parallel: expected an object, found array"},
    {PARALLEL, "'parallel':null", NULL}, /* likewise: absent, as everywhere */
    {PARALLEL, "'parallel':2", "manifest: parallel: expected an object, found integer"},
    {PARALLEL, "'parallel':{}", "manifest: parallel: field '"},
    {PARALLEL, PARALLEL "," PARALLEL, "duplicate"},
    {"'ranks':2", "'ranks':2,'ranks':2", "duplicate"},
    {"'ranks':2", "'ranks':2,'rank':0", "manifest: parallel: field 'rank' is not understood"},
    {"'ranks':2", "'ranks':-2", "manifest: parallel: field 'ranks'"},
    {"'ranks':2", "'ranks':0", "manifest: parallel: field 'ranks': expected an integer from 2 to 16, found 0"},
    {"'ranks':2", "'ranks':1", "manifest: parallel: field 'ranks': expected an integer from 2 to 16, found 1"},
    {"'ranks':2", "'ranks':17", "manifest: parallel: field 'ranks': expected an integer from 2 to 16, found 17"},
    {"'ranks':2", "'ranks':4294967298", "manifest: parallel: field 'ranks'"},
    {"'ranks':2", "'ranks':2.0", "manifest: parallel: field 'ranks'"},
    {"'ranks':2", "'ranks':'2'", "manifest: parallel: field 'ranks'"},
    {",'ranks':2", "", "manifest: parallel: field 'ranks'"},
    {"'comm_bytes':1024,", "", "manifest: parallel: field 'comm_bytes'"},
    {"'comm_bytes':1024", "'comm_bytes':191",
     "manifest: parallel: field 'comm_bytes': expected an integer from 192 to"},
    {"'comm_bytes':1024", "'comm_bytes':0", "manifest: parallel: field 'comm_bytes': expected an integer from 192 to"},
    {"'comm_bytes':1024", "'comm_bytes':-1024", "manifest: parallel: field 'comm_bytes'"},
    {"'comm_bytes':1024", "'comm_bytes':9223372036854775807", "manifest: parallel: field 'comm_bytes'"},
    {"'comm_bytes':1024", "'comm_bytes':192", NULL},
    {"'ranks':2", "'ranks':3",
     "manifest: parallel: ranks: 3 ranks cannot share 2 heads, 1 kv_heads and an intermediate_size of 16"},
    {"'ranks':2", "'ranks':4", "4 ranks cannot share 2 heads"},
    {"'ranks':2", "'ranks':16", "16 ranks cannot share 2 heads"},
    {"'heads':2", "'heads':4", NULL},
    {"'heads':2", "'heads':3", "2 ranks cannot share 3 heads"},
    {"'heads':2", "'heads':1", "2 ranks cannot share 1 heads"},
    {"'intermediate_size':16", "'intermediate_size':18", NULL},
    {"'intermediate_size':16", "'intermediate_size':17", "an intermediate_size of 17"},
    {"'intermediate_size':16", "'intermediate_size':1", "an intermediate_size of 1"},
    {"'kv_heads':1", "'kv_heads':2", NULL}, /* one head on each rank, as before */
    {SHAPE, "'heads':4,'hidden_size':16,'intermediate_size':16,'kv_heads':4",
     "page_bytes: expected 512 (from the other fields), found 256"},
    {SHAPE, "'heads':6,'hidden_size':16,'intermediate_size':16,'kv_heads':3",
     "2 ranks cannot share 6 heads, 3 kv_heads"},
    {SHAPE, "'heads':9,'hidden_size':16,'intermediate_size':16,'kv_heads':3", "2 ranks cannot share 9 heads"},
    {"'page_bytes':256", "'page_bytes':128", "page_bytes: expected 256"},
    {"'weights_bytes':8192", "'weights_bytes':16384", NULL},
    {"'weights_bytes':8192", "'weights_bytes':4096",
     "manifest: memory: weights_bytes: 4096 are not 2 regions of a multiple of 4096 bytes"},
    {"'weights_bytes':8192", "'weights_bytes':12288", "12288 are not 2 regions of a multiple"},
    {"'weights_bytes':8192", "'weights_bytes':8193", "8193 are not 2 regions"},
    {"'weights_bytes':8192", "'weights_bytes':8320", "8320 are not 2 regions"},
    {"'weights_bytes':8192", "'weights_bytes':1", "1 are not 2 regions"},
};

/* Replacements in a manifest for a device of compute capability 9.0. */
static const struct text_edit device_edits[] = {
    {"'capability':90", "'capability':50", NULL},
    {"'capability':90", "'capability':120", NULL},
    {"'capability':90", "'capability':999", NULL},
    {"'capability':90,", "", "target: field 'capability': expected an integer"},
    {"'capability':90", "'capability':0", "target: capability: expected 50 to 999, found 0"},
    {"'capability':90", "'capability':49", "target: capability: expected 50 to 999, found 49"},
    {"'capability':90", "'capability':1000", "target: capability: expected 50 to 999, found 1000"},
    {"'capability':90", "'capability':9000000000", "capability"},
    {"'capability':90", "'capability':-90", "capability"},
    {"'capability':90", "'capability':9.0", "capability"},
    {"'capability':90", "'capability':'9.0'", "capability"},
    {"'capability':90", "'capability':90,'sms':132", "target: field 'sms' is not understood"},
    {"'kind':'cuda'", "'kind':'cpu'", "target: field 'capability' is not understood"},
    {"'kind':'cuda'", "'kind':'hip'", "kind: expected \"cpu\" or \"cuda\", found \"hip\""},
    {"'kind':'cuda',", "", "kind"},
};

static void judge_edits(const struct text_edit *edits, size_t count)
{
    char *text = format();
    for (size_t i = 0; i < count; i++) {
        const char *at = strstr(text, test_json(edits[i].from));
        assert_non_null(at);
        char *edited = NULL;
        int size =
            asprintf(&edited, "%.*s%s%s", (int)(at - text), text, test_json(edits[i].to), at + strlen(edits[i].from));
        assert_true(size > 0);
        struct manifest parsed;
        bool good = manifest_parse(&parsed, edited, (size_t)size, &status);
        if (good != (edits[i].expected == NULL)) fail_msg("edit %zu '%s': %s", i, edits[i].to, status.message);
        if (!good && (!strstr(status.message, edits[i].expected) || strncmp(status.message, "manifest", 8) != 0))
            fail_msg("edit %zu: expected '%s', found '%s'", i, edits[i].expected, status.message);
        free(edited);
    }
    free(text);
}

static void become_a_device(void)
{
    if (!test_engine_make_device(&sample, &status)) fail_msg("%s", status.message);
}

static void become_parallel(void)
{
    if (!test_engine_make_ranks(&sample, &status)) fail_msg("%s", status.message);
}

TEST(every_edit_is_judged)
{
    judge_edits(processor_edits, sizeof processor_edits / sizeof processor_edits[0]);
    become_a_device();
    judge_edits(device_edits, sizeof device_edits / sizeof device_edits[0]);
    become_parallel();
    judge_edits(parallel_edits, sizeof parallel_edits / sizeof parallel_edits[0]);
}

TEST(devices_state_their_capability)
{
    become_a_device();
    manifest->target_capability = 103;
    char *text = format();
    assert_non_null(strstr(text, test_json("'target':{'capability':103,'kind':'cuda','name':'a GPU'}")));
    const struct manifest back = parse(text); /* which covers the other fields */
    assert_int_equal(back.target, TARGET_CUDA);
    assert_int_equal(back.target_capability, 103);
    free(text);
}

TEST(ranks_are_a_group_of_their_own)
{
    char *one = format();
    manifest->geometry.ranks = 0; /* counts as 1 */
    char *none = format();
    assert_string_equal(none, one);
    assert_null(strstr(one, "parallel"));
    assert_null(strstr(one, "comm_bytes"));
    free(none);
    struct manifest back = parse(one);
    assert_int_equal(back.geometry.ranks, 1);
    assert_int_equal(back.comm_bytes, 0);
    assert_int_equal(manifest_rank_weights(&back), 2304);
    assert_int_equal(manifest_rank_kv_heads(&back), 1);

    become_parallel();
    char *two = format();
    assert_non_null(strstr(two, test_json("'weight_dtype':'F32'}," PARALLEL ",'sampling':{")));
    /* No other field depends on ranks. */
    char *expected = NULL;
    const char *weights = strstr(one, "2304"), *sampling = strstr(one, test_json("'sampling'"));
    assert_true(asprintf(&expected, test_json("%.*s8192%.*s" PARALLEL ",%s"), (int)(weights - one), one,
                         (int)(sampling - weights - 4), weights + 4, sampling) > 0);
    assert_string_equal(two, expected);
    back = parse(two);
    assert_memory_equal(&back.geometry, &manifest->geometry, offsetof(struct plan_geometry, state));
    assert_int_equal(back.geometry.ranks, 2);
    assert_int_equal(back.comm_bytes, 1024);
    assert_int_equal(back.weights_bytes, 8 << 10);
    assert_int_equal(manifest_rank_weights(&back), 4 << 10);
    free(expected);
    free(two);
    free(one);
}

/* The shape decides which numbers of ranks are valid: equal shares of heads and inner width, KV heads shared or
 * divided. */
TEST(every_number_of_ranks_is_judged)
{
    static const struct {
        uint64_t heads, kv_heads, inner;
    } shapes[] = {{32, 8, 14336}, {14, 2, 4864}, {9, 3, 1536}, {40, 8, 17408},
                  {64, 8, 28672}, {16, 16, 30},  {12, 1, 36},  {36, 6, 36}};
    int good = 0, bad = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (uint64_t ranks = 1; ranks <= PLAN_MAX_RANKS; ranks++) {
            become_parallel();
            manifest->heads = shapes[i].heads;
            manifest->kv_heads = shapes[i].kv_heads;
            manifest->intermediate_size = shapes[i].inner;
            manifest->geometry.ranks = ranks;
            manifest->weights_bytes = ranks * ENGINE_REGION_ALIGNMENT;
            if (ranks == 1) manifest->comm_bytes = 0;
            uint64_t kv_heads = shapes[i].kv_heads % ranks == 0 ? shapes[i].kv_heads / ranks : 1;
            manifest->geometry.page_bytes = 2 * kv_heads * manifest->geometry.page_tokens * manifest->head_dim * 4;
            bool expected = shapes[i].heads % ranks == 0 && shapes[i].inner % ranks == 0 &&
                            (shapes[i].kv_heads % ranks == 0 || ranks % shapes[i].kv_heads == 0);
            char *text = NULL;
            size_t size = 0;
            bool written = manifest_format(manifest, &text, &size, &status);
            if (written != expected) fail_msg("shape %zu, %d ranks: %s", i, (int)ranks, status.message);
            if (!written) assert_non_null(strstr(status.message, "manifest: parallel: ranks: "));
            if (written) assert_int_equal(manifest_rank_kv_heads(manifest), kv_heads);
            struct manifest back;
            if (written) assert_true(manifest_parse(&back, text, size, &status));
            free(text);
            good += written;
            bad += !written;
        }
    assert_true(good > 25 && bad > 25);
}

TEST(every_prefix_is_refused)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        if (ranks == 2) become_parallel();
        char *text = format();
        for (size_t size = 0; size < strlen(text); size++) {
            struct manifest parsed;
            test_expect_failure(manifest_parse(&parsed, text, size, &status), &status, STATUS_BAD_INPUT, "");
        }
        free(text);
    }
}

static void expect_not_written(const char *expected)
{
    char *text = NULL;
    size_t size = 0;
    assert_false(manifest_format(manifest, &text, &size, &status));
    if (!strstr(status.message, expected)) fail_msg("expected '%s', found '%s'", expected, status.message);
    assert_null(text);
    assert_int_equal(make_sample(NULL), 0);
}

static void make_page_groups(uint64_t groups, uint64_t page_bytes)
{
    manifest->layers = 6;
    manifest->geometry.page_groups = groups;
    manifest->geometry.page_window[0] = 4;
    manifest->geometry.page_bytes = page_bytes;
}

TEST(round_trip_keeps_page_groups)
{
    enum { LAYER = 256 };
    make_page_groups(3, 2 * LAYER);
    char *text = format();
    assert_non_null(strstr(text, test_json("'windows':[4,0,0]")));
    const struct manifest back = parse(text);
    assert_int_equal(back.geometry.page_groups, 3);
    assert_memory_equal(back.geometry.page_window, manifest->geometry.page_window, sizeof back.geometry.page_window);
    free(text);
    make_page_groups(3, LAYER - PLAN_ALIGNMENT);
    expect_not_written("manifest: kv_cache: page_bytes: expected those of at least one layer (256)");
    make_page_groups(3, 6 * LAYER);
    expect_not_written("fewer than those of all (1536), found 1536");
    make_page_groups(3, LAYER + PLAN_ALIGNMENT / 2);
    expect_not_written("is not a multiple of 64");
    make_page_groups(PLAN_MAX_PAGE_GROUPS + 1, LAYER);
    expect_not_written("windows: expected 1 to 16 page groups, found 17");
}

TEST(bad_manifests_are_not_written)
{
    manifest->state_bytes = 0;
    expect_not_written("manifest: memory: state_bytes");
    manifest->eos_count = MANIFEST_MAX_EOS + 1;
    expect_not_written("");
    manifest->model_name[0] = (char)0xff; /* not UTF-8 */
    expect_not_written("");
    memset(manifest->model_type, 'x', sizeof manifest->model_type); /* no NUL */
    expect_not_written("");
    static const struct {
        enum engine_target target;
        uint64_t capability;
        const char *expected;
    } targets[] = {
        {TARGET_CPU, 90, "manifest: target: capability: expected none for a CPU, found 90"},
        {TARGET_CUDA, 0, "manifest: target: capability: expected 50 to 999, found 0"},
        {TARGET_CUDA, 1000, "manifest: target: capability: expected 50 to 999, found 1000"},
        {TARGET_CUDA, UINT64_MAX, "manifest: target: capability: expected 50 to 999, found 18446744073709551615"},
        {(enum engine_target)3, 90, "manifest: target: kind: unknown value 3"},
    };
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        manifest->target = targets[i].target;
        manifest->target_capability = targets[i].capability;
        expect_not_written(targets[i].expected);
    }
    static const struct {
        uint64_t ranks, comm_bytes, weights_bytes;
        const char *expected;
    } shares[] = {
        {1, 1024, 2304, "manifest: parallel: comm_bytes: expected 0 (from the other fields), found 1024"},
        {0, 1, 2304, "manifest: parallel: comm_bytes: expected 0 (from the other fields), found 1"},
        {2, 0, 8 << 20, "manifest: parallel: comm_bytes: expected 192 to 1125899906842624, found 0"},
        {2, 191, 8 << 20, "manifest: parallel: comm_bytes: expected 192 to 1125899906842624, found 191"},
        {2, UINT64_MAX, 8 << 20,
         "manifest: parallel: comm_bytes: expected 192 to 1125899906842624, found 18446744073709551615"},
        {17, 1024, 8 << 20, "manifest: parallel: ranks: expected 2 to 16, found 17"},
        {UINT64_MAX, 1024, 8 << 20, "manifest: parallel: ranks: expected 2 to 16, found 18446744073709551615"},
        {2, 1024, (8 << 10) - 64,
         "manifest: memory: weights_bytes: 8128 are not 2 regions of a multiple of 4096 bytes"},
    };
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        manifest->geometry.ranks = shares[i].ranks;
        manifest->comm_bytes = shares[i].comm_bytes;
        manifest->weights_bytes = shares[i].weights_bytes;
        expect_not_written(shares[i].expected);
    }
}

int main(void) { return test_run_with(setup, make_sample, NULL, remove_folder); }
