/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers leave in the environment, and what a process makes of it. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"
#include "runtime/eng.h"

/* process, processes, local_process, processes of the machine */
enum launcher { TORCHRUN, OPEN_MPI, MPICH, LAUNCHERS };
static const char *const names[LAUNCHERS][4] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

static int clear(void **state)
{
    for (int i = 0; i < 3 * 4; i++) unsetenv(names[i / 4][i % 4]);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    unsetenv("PMIX_NAMESPACE");
    unsetenv("ENG_JOB_TOKEN");
    unsetenv("TORCHELASTIC_RUN_ID");
    return 0;
}

/* In their order; NULL: not set. */
static void set_names(const char *const *of, const char *const values[4])
{
    for (int i = 0; i < 4; i++)
        if (values[i])
            setenv(of[i], values[i], 1);
        else
            unsetenv(of[i]);
}

static void torchrun(const char *address, const char *port, const char *const values[4])
{
    set_names(names[0], values);
    setenv("MASTER_ADDR", address, 1);
    setenv("MASTER_PORT", port, 1);
}

static void open_mpi(const char *const values[4]) { set_names(names[1], values); }
static void mpich(const char *const values[4]) { set_names(names[2], values); }
#define VALUES(...) ((const char *const[4]){__VA_ARGS__})

static struct eng_open_options read_options(void)
{
    struct eng_open_options options;
    struct eng_error error;
    memset(&error, 0xff, sizeof error);
    eng_open_options_init(&options);
    if (eng_open_options_from_launcher(&options, &error) != ENG_OK) fail_msg("%s", error.message);
    assert_int_equal(error.status, ENG_OK);
    assert_string_equal(error.message, "");
    assert_int_equal(options.struct_size, sizeof options);
    return options;
}

static void expect_place(uint32_t process, uint32_t processes, uint32_t local_process, const char *address)
{
    struct eng_open_options options = read_options();
    assert_int_equal(options.process, process);
    assert_int_equal(options.processes, processes);
    assert_int_equal(options.local_process, local_process);
    assert_string_equal(options.address, address);
}

/* ENG_USAGE, and the options are as they were. */
static void expect_refusal_of(const struct eng_open_options *given, const char *words)
{
    struct eng_open_options options = *given;
    struct eng_error error;
    assert_int_equal(eng_open_options_from_launcher(&options, &error), ENG_USAGE);
    assert_int_equal(error.status, ENG_USAGE);
    struct status status = {.code = STATUS_USAGE};
    snprintf(status.message, sizeof status.message, "%s", error.message);
    test_expect_message(&status, words);
    assert_memory_equal(&options, given, sizeof options);
    assert_int_equal(eng_open_options_from_launcher(&options, NULL), ENG_USAGE);
}

static void expect_refusal(const char *words)
{
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.threads = 3;
    options.process = 5;
    expect_refusal_of(&options, words);
}

/* ---- launchers ---- */

static void launch(enum launcher by, const char *const values[4], const char *address, const char *port)
{
    clear(NULL);
    set_names(names[by], values);
    if (address) setenv("MASTER_ADDR", address, 1);
    if (port) setenv("MASTER_PORT", port, 1);
}

TEST(places_are_read)
{
    static const struct {
        enum launcher by;
        const char *values[4], *address, *port;
        uint32_t process, processes, local_process, local_processes;
        const char *expected;
    } cases[] = {
        {TORCHRUN, {"5", "8", "1", "4"}, "10.0.0.1", "29500", 5, 8, 1, 4, "10.0.0.1:29501"},
        {TORCHRUN, {"0", "65535", "0", NULL}, "node-7.cluster", "29500", 0, 65535, 0, 0, "node-7.cluster:29501"},
        {TORCHRUN, {"1", "2", "1", "2"}, "host", "65534", 1, 2, 1, 2, "host:65535"},
        {TORCHRUN, {"1", "2", "1", "2"}, "host", "0", 1, 2, 1, 2, "host:1"},
        {TORCHRUN, {"1", "2", "1", "2"}, "::1", "29500", 1, 2, 1, 2, "[::1]:29501"},
        {TORCHRUN, {"1", "2", "1", "2"}, "fe80::1%eth0", "29500", 1, 2, 1, 2, "[fe80::1%eth0]:29501"},
        {OPEN_MPI, {"3", "4", "3", "4"}, NULL, NULL, 3, 4, 3, 4, "127.0.0.1:29401"},
        {OPEN_MPI, {"3", "4", "3", "4"}, NULL, "5000", 3, 4, 3, 4, "127.0.0.1:5001"},
        {OPEN_MPI, {"3", "4", "1", "2"}, "host", "5000", 3, 4, 1, 2, "host:5001"},
        {OPEN_MPI, {"3", "4", "1", "2"}, "host", NULL, 3, 4, 1, 2, "host:29401"},
        {OPEN_MPI, {"3", "4", "1", NULL}, "host", NULL, 3, 4, 1, 0, "host:29401"},
        {MPICH, {"1", "2", "1", "2"}, NULL, NULL, 1, 2, 1, 2, "127.0.0.1:29401"},
        {MPICH, {"1", "2", "0", "1"}, "host", NULL, 1, 2, 0, 1, "host:29401"},
        /* One process needs no address. */
        {OPEN_MPI, {"0", "1", "0", NULL}, NULL, NULL, 0, 1, 0, 0, ""},
        {TORCHRUN, {"0", "1", "0", "1"}, NULL, NULL, 0, 1, 0, 1, ""},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        launch(cases[c].by, cases[c].values, cases[c].address, cases[c].port);
        print_message("case %zu\n", c);
        expect_place(cases[c].process, cases[c].processes, cases[c].local_process, cases[c].expected);
        assert_int_equal(read_options().local_processes, cases[c].local_processes);
    }
}

TEST(incomplete_places_are_refused)
{
    static const char no_address[] = "Open MPI: expected the host of process 0 in MASTER_ADDR|found nothing|mpirun -x "
                                     "MASTER_ADDR=HOST|or give an address";
    static const struct {
        enum launcher by;
        const char *values[4], *address, *port, *words;
    } cases[] = {
        {TORCHRUN, {"0", "2", NULL, "2"}, "host", "1", "LOCAL_RANK: expected a number from 0 to 65535, found nothing"},
        {TORCHRUN, {"0", "2", "0", "2"}, "host", NULL, "MASTER_PORT: expected a number from 0 to 65534, found nothing"},
        {TORCHRUN, {"3", "4", "1", "4"}, NULL, "1", "MASTER_ADDR"},
        {TORCHRUN, {"0", "8", "0", "x"}, "host", "1", "LOCAL_WORLD_SIZE: expected a number from 0 to 65535, found 'x'"},
        {OPEN_MPI, {"0", "2", NULL, "2"}, NULL, NULL, "OMPI_COMM_WORLD_LOCAL_RANK: expected a number"},
        {OPEN_MPI, {"0", "2", "0", NULL}, NULL, NULL, "OMPI_COMM_WORLD_LOCAL_SIZE: expected a number|found nothing"},
        {MPICH, {"0", "2", NULL, "2"}, NULL, NULL, "MPI_LOCALRANKID: expected a number"},
        /* Several machines need an address. */
        {OPEN_MPI, {"3", "4", "1", "2"}, NULL, NULL, no_address},
        {MPICH, {"3", "4", "1", "2"}, NULL, NULL, "MPICH: expected the host of process 0 in MASTER_ADDR"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char words[256];
        snprintf(words, sizeof words, "environment: |%s", cases[c].words);
        launch(cases[c].by, cases[c].values, cases[c].address, cases[c].port);
        expect_refusal(words);
    }
}

/* Two jobs on one machine, of which neither knows. */
TEST(jobs_have_ports_of_their_own)
{
    char first[sizeof((struct eng_open_options *)0)->address];
    open_mpi(VALUES("3", "4", "3", "4"));
    setenv("PMIX_NAMESPACE", "2155610113", 1);
    memcpy(first, read_options().address, sizeof first);
    open_mpi(VALUES("0", "4", "0", "4"));
    assert_string_equal(read_options().address, first); /* all of a job have the same */
    int others = 0;
    for (int job = 1; job < 200; job++) {
        char name[32];
        snprintf(name, sizeof name, "prterun-node-%d@1", job);
        setenv("PMIX_NAMESPACE", name, 1);
        const struct eng_open_options options = read_options();
        others += strcmp(options.address, first) != 0;
        int port = atoi(strrchr(options.address, ':') + 1);
        assert_in_range(port, 29401, 31400);
    }
    assert_true(others >= 195);
    setenv("MASTER_PORT", "5000", 1);
    expect_place(0, 4, 0, "127.0.0.1:5001");
}

/* torchrun may run below mpirun, one for each machine: the innermost counts. */
TEST(the_first_launcher_counts)
{
    mpich(VALUES("6", "7", "6", "7"));
    open_mpi(VALUES("4", "5", "4", "5"));
    expect_place(4, 5, 4, "127.0.0.1:29401");
    torchrun("host", "100", VALUES("2", "3", "2", "3"));
    expect_place(2, 3, 2, "host:101");
    unsetenv("WORLD_SIZE"); /* RANK alone identifies no launcher */
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    expect_place(4, 5, 4, "127.0.0.1:101");
    unsetenv("OMPI_COMM_WORLD_RANK");
    expect_place(6, 7, 6, "127.0.0.1:101");
}

TEST(nobody_has_started_it)
{
    static const char words[] = "environment: expected the variables of torchrun (RANK, WORLD_SIZE), Open MPI or "
                                "MPICH, found none; start the processes with torchrun or mpirun";
    expect_refusal(words);
    setenv("RANK", "0", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("MASTER_ADDR", "host", 1);
    setenv("MASTER_PORT", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("PMI_RANK", "0", 1);
    expect_refusal(words);
}

/* ---- numbers ---- */

TEST(wrong_numbers_are_refused)
{
    static const char *const wrong[] = {"",    "-1", "+1",  " 1",    "1 ",         "1.0",
                                        "0x1", "1e", "one", "65536", "4294967296", "18446744073709551616"};
    static const char *const right[4] = {"1", "2", "1", "2"};
    for (int launcher = 0; launcher < LAUNCHERS; launcher++) {
        launch((enum launcher)launcher, right, "host", launcher == TORCHRUN ? "1000" : NULL);
        for (int n = 0; n < (launcher == TORCHRUN ? 3 : 4); n++) {
            const char *name = names[launcher][n];
            for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
                char words[160];
                setenv(name, wrong[w], 1);
                snprintf(words, sizeof words, "environment: %s: expected a number from 0 to 65535, found '%s'", name,
                         wrong[w]);
                expect_refusal(words);
            }
            setenv(name, right[n], 1);
            read_options();
        }
    }
}

/* A text of any length is told in part. */
TEST(long_texts_are_refused)
{
    enum { LENGTH = 100000 };
    char *text = malloc(LENGTH + 1);
    assert_non_null(text);
    memset(text, '7', LENGTH);
    text[LENGTH] = '\0';
    torchrun("host", "1000", VALUES(text, "2", "0", "2"));
    expect_refusal("environment: RANK: |, found '7777");
    free(text);
}

/* ---- addresses ---- */

TEST(ports_have_a_limit)
{
    const char *const values[4] = {"1", "2", "1", "2"};
    static const char *const wrong[] = {"65535", "65536", "-1", "", "http", "80a"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        torchrun("host", wrong[i], values);
        expect_refusal("environment: MASTER_PORT: expected a number from 0 to 65534, found '");
        clear(NULL);
        mpich(values); /* which may set none, but not a wrong one */
        setenv("MASTER_PORT", wrong[i], 1);
        expect_refusal("environment: MASTER_PORT: expected a number from 0 to 65534, found '");
        clear(NULL);
    }
}

/* The longest host that fits beside a port of five digits, and the brackets. */
TEST(hosts_have_a_limit)
{
    const char *const values[4] = {"0", "2", "0", "2"};
    for (int colons = 0; colons < 2; colons++) {
        enum { WITH_PORT = ENG_ADDRESS_BYTES - sizeof ":65535" };
        const size_t most = WITH_PORT - (colons ? 2 : 0);
        char host[ENG_ADDRESS_BYTES + 8];
        memset(host, 'h', sizeof host);
        if (colons) host[3] = ':';
        host[most] = '\0';
        torchrun(host, "65534", values);
        struct eng_open_options options = read_options();
        assert_int_equal(strlen(options.address), ENG_ADDRESS_BYTES - 1);
        assert_string_equal(options.address + ENG_ADDRESS_BYTES - sizeof ":65535", ":65535");
        host[most] = 'h';
        host[most + 1] = '\0';
        torchrun(host, "65534", values);
        expect_refusal("environment: MASTER_ADDR: expected a name of at most 255 bytes");
    }
}

TEST(a_given_address_stays)
{
    struct eng_open_options options;
    struct eng_error error;
    eng_open_options_init(&options);
    strcpy(options.address, "elsewhere:7");
    open_mpi(VALUES("3", "4", "1", "2")); /* of several machines, and no address there */
    assert_int_equal(eng_open_options_from_launcher(&options, &error), ENG_OK);
    assert_string_equal(options.address, "elsewhere:7");
    assert_int_equal(options.process, 3);
    assert_int_equal(options.processes, 4);
    assert_int_equal(options.local_process, 1);
    torchrun("host", "no port", VALUES("0", "2", "0", "2"));
    assert_int_equal(eng_open_options_from_launcher(&options, &error), ENG_OK);
    assert_string_equal(options.address, "elsewhere:7");
    assert_int_equal(options.processes, 2);
}

/* ---- tokens ---- */

static void expect_token(const char *token) { assert_string_equal(read_options().token, token); }

TEST(tokens_are_read)
{
    const char *const values[4] = {"1", "2", "1", "2"};
    torchrun("host", "1", values);
    expect_token("");
    setenv("TORCHELASTIC_RUN_ID", "none", 1); /* as torchrun has it without --rdzv-id */
    expect_token("");
    setenv("TORCHELASTIC_RUN_ID", "", 1);
    expect_token("");
    setenv("TORCHELASTIC_RUN_ID", "6e0a7b1c", 1);
    expect_token("6e0a7b1c");
    setenv("ENG_JOB_TOKEN", "secret", 1);
    expect_token("secret");
    open_mpi(values);
    torchrun("host", "1", VALUES(NULL, NULL, NULL, NULL));
    expect_token("secret");
    unsetenv("ENG_JOB_TOKEN");
    expect_token(""); /* the run is torchrun's, which has not started this process */
    /* One that the caller has set stays. */
    setenv("ENG_JOB_TOKEN", "secret", 1);
    struct eng_open_options options;
    eng_open_options_init(&options);
    strcpy(options.token, "own");
    assert_int_equal(eng_open_options_from_launcher(&options, NULL), ENG_OK);
    assert_string_equal(options.token, "own");
}

/* An empty one is a mistake (an unset variable of a script), which must not pass for none. No message repeats the text. */
TEST(wrong_tokens_are_refused)
{
    char text[ENG_TOKEN_BYTES + 1];
    struct eng_open_options options;
    struct eng_error error;
    torchrun("host", "1", VALUES("1", "2", "1", "2"));
    setenv("TORCHELASTIC_RUN_ID", "6e0a7b1c", 1);
    setenv("ENG_JOB_TOKEN", "", 1);
    expect_refusal("environment: ENG_JOB_TOKEN: expected a text of 1 to 255 bytes, found 0");
    memset(text, 'q', sizeof text);
    text[ENG_TOKEN_BYTES] = '\0';
    setenv("ENG_JOB_TOKEN", text, 1);
    expect_refusal("environment: ENG_JOB_TOKEN: expected a text of 1 to 255 bytes, found 256");
    eng_open_options_init(&options);
    assert_int_equal(eng_open_options_from_launcher(&options, &error), ENG_USAGE);
    assert_null(strstr(error.message, "qqq"));
    text[ENG_TOKEN_BYTES - 1] = '\0';
    setenv("ENG_JOB_TOKEN", text, 1);
    expect_token(text);
    unsetenv("ENG_JOB_TOKEN");
    text[ENG_TOKEN_BYTES - 1] = 'q';
    setenv("TORCHELASTIC_RUN_ID", text, 1);
    expect_refusal("environment: TORCHELASTIC_RUN_ID: expected a text of 1 to 255 bytes, found 256");
}

/* ---- the struct ---- */

/* What a launcher does not know is as the caller has it. */
TEST(other_options_stay)
{
    static const uint32_t devices[] = {4, 2};
    struct eng_open_options options;
    eng_open_options_init(&options);
    options.threads = 7;
    options.device = 3;
    options.device_count = 2;
    options.devices = devices;
    options.no_peer_access = 1;
    options.process = options.processes = options.local_process = 99;
    torchrun("host", "1", VALUES("1", "2", "1", "2"));
    assert_int_equal(eng_open_options_from_launcher(&options, NULL), ENG_OK);
    assert_int_equal(options.threads, 7);
    assert_int_equal(options.device, 3);
    assert_int_equal(options.device_count, 2);
    assert_ptr_equal(options.devices, devices);
    assert_int_equal(options.no_peer_access, 1);
    assert_int_equal(options.process, 1);
    assert_int_equal(options.processes, 2);
    assert_int_equal(options.local_process, 1);
}

TEST(wrong_structs_are_refused)
{
    static const size_t wrong[] = {0, 1, sizeof(size_t) - 1, 1 << 20, SIZE_MAX};
    struct eng_open_options options;
    struct eng_error error;
    torchrun("host", "1", VALUES("1", "2", "1", "2"));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        eng_open_options_init(&options);
        options.struct_size = wrong[i];
        expect_refusal_of(&options, "struct eng_open_options: struct_size is |eng_open_options_init");
    }
    assert_int_equal(eng_open_options_from_launcher(NULL, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "argument 'options' is NULL"));
}

/* For a caller that knows more fields: zero, or not ours to understand. */
TEST(longer_structs_are_read)
{
    struct {
        struct eng_open_options options;
        uint64_t later;
    } longer = {.later = 0};
    struct eng_error error;
    torchrun("host", "1", VALUES("1", "2", "1", "2"));
    eng_open_options_init(&longer.options);
    longer.options.struct_size = sizeof longer;
    assert_int_equal(eng_open_options_from_launcher(&longer.options, &error), ENG_OK);
    assert_int_equal(longer.options.struct_size, sizeof longer);
    assert_string_equal(longer.options.address, "host:2");
    longer.later = 1;
    assert_int_equal(eng_open_options_from_launcher(&longer.options, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "use a newer library"));
}

/* For a caller that knows fewer: nothing is written beyond its struct. */
TEST(shorter_structs_keep_their_end)
{
    torchrun("host", "1", VALUES("1", "2", "1", "2"));
    for (size_t size = sizeof(size_t); size < sizeof(struct eng_open_options); size++) {
        struct eng_open_options options;
        memset(&options, 0x55, sizeof options);
        memset(&options, 0, size);
        options.struct_size = size;
        assert_int_equal(eng_open_options_from_launcher(&options, NULL), ENG_OK);
        assert_int_equal(options.struct_size, size);
        for (size_t i = size; i < sizeof options; i++) assert_int_equal(((unsigned char *)&options)[i], 0x55);
    }
}

int main(void) { return test_run_with(NULL, clear, NULL, NULL); }
