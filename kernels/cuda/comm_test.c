/* SPDX-License-Identifier: Apache-2.0 */
/* COMM spaces with the fake driver: headers, and the layout that host and device code share. */
#include "kernels/cuda/comm.h"

#include <stdio.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/cuda/test_fake_cuda.h"

enum { MOST_MEMBERS = 16, GPUS = 3 };

static struct test_fake_cuda fake;

static int begin(void **state)
{
    (void)state;
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    unsetenv("FAKE_CUDA_NO_PEERS");
    unsetenv("FAKE_CUDA_NO_MAPPING");
    unsetenv("FAKE_CUDA_PCIE");
    unsetenv("FAKE_CUDA_FAIL_CALL");
    fake.reset();
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_int_equal(fake.live(-1), 0);
    return 0;
}

/* ---- what the device code says ---- */

static const char *comm_source(void)
{
    for (size_t i = 0; i < device_source_count; i++)
        if (strcmp(device_sources[i].path, "kernels/cuda/include/comm.cuh") == 0) return device_sources[i].text;
    fail_msg("kernels/cuda/include/comm.cuh is not among the device sources");
    return NULL;
}

static unsigned long constant(const char *name)
{
    char line[64];
    snprintf(line, sizeof line, "#define %s ", name);
    const char *found = strstr(comm_source(), line);
    if (!found) fail_msg("comm.cuh does not define %s", name);
    return strtoul(found + strlen(line), NULL, 0);
}

struct member {
    char name[32];
    size_t offset, bytes;
};

static size_t align_up(size_t value, size_t alignment) { return (value + alignment - 1) / alignment * alignment; }

/* The members of comm.cuh's struct comm_header: lines of u8, u32 or u64, some with [COMM_MAX_RANKS]. */
static int parse_members(struct member *members, size_t *total)
{
    static const char open[] = "\nstruct comm_header {\n";
    const char *text = strstr(comm_source(), open);
    size_t offset = 0;
    int count = 0;
    assert_non_null(text);
    for (text += strlen(open); strncmp(text, "};", 2) != 0; text = strchr(text, '\n') + 1) {
        unsigned bits = 0;
        int used = 0;
        assert_int_equal(sscanf(text, " u%u %n", &bits, &used), 1);
        size_t element = bits / 8;
        for (const char *at = text + used; *at != '\n'; at++) {
            assert_in_range(count, 0, MOST_MEMBERS - 1);
            struct member *member = &members[count++];
            size_t length = strcspn(at, "[,;");
            snprintf(member->name, sizeof member->name, "%.*s", (int)length, at);
            at += length;
            bool array = *at == '[';
            if (array) {
                assert_int_equal(strncmp(at, "[COMM_MAX_RANKS]", 16), 0);
                at += 16;
            }
            member->offset = align_up(offset, element);
            member->bytes = element * (array ? constant("COMM_MAX_RANKS") : 1);
            offset = member->offset + member->bytes;
            while (at[1] == ' ') at++;
        }
    }
    *total = align_up(offset, sizeof(uint64_t));
    return count;
}

TEST(test_header_is_the_same_on_both_sides)
{
#define MEMBER(name)                                                                     \
    {                                                                                    \
#name, offsetof(struct comm_header, name), sizeof((struct comm_header *)0)->name \
    }
    static const struct member expected[] = {
        MEMBER(rank),     MEMBER(ranks), MEMBER(stop),  MEMBER(timed_out), MEMBER(timeout_ns), MEMBER(arrived),
        MEMBER(sleepers), MEMBER(fault), MEMBER(slots), MEMBER(reserved),  MEMBER(peers),
    };
#undef MEMBER
    enum { COUNT = sizeof expected / sizeof *expected };
    struct member found[MOST_MEMBERS];
    size_t total;
    assert_int_equal(parse_members(found, &total), COUNT);
    assert_int_equal(total, sizeof(struct comm_header));
    for (int i = 0; i < COUNT; i++) {
        assert_string_equal(found[i].name, expected[i].name);
        assert_int_equal(found[i].offset, expected[i].offset);
        assert_int_equal(found[i].bytes, expected[i].bytes);
    }
    assert_int_equal(constant("COMM_MAX_RANKS"), PLAN_MAX_RANKS);
}

/* ---- headers ---- */

TEST(test_headers)
{
    uint64_t spaces[PLAN_MAX_RANKS];
    for (uint64_t r = 0; r < PLAN_MAX_RANKS; r++) spaces[r] = UINT64_C(0x700000000000) + (r << 33);
    for (uint32_t ranks = 2; ranks <= PLAN_MAX_RANKS; ranks++)
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct comm_header header, alone;
            memset(&header, 0x55, sizeof header);
            memset(&alone, 0x55, sizeof alone);
            cuda_comm_header(&header, rank, ranks, spaces, 1234);
            cuda_comm_header_alone(&alone, ranks, spaces[rank]);
            assert_int_equal(header.rank, rank);
            assert_int_equal(header.fault, 1234);
            assert_int_equal(alone.rank, 0);
            assert_int_equal(alone.fault, 0);
            for (uint32_t r = 0; r < PLAN_MAX_RANKS; r++) {
                /* Every rank fills its part; a single rank fills all parts of its own space. */
                assert_int_equal(header.slots[r], r < ranks ? rank : 0);
                assert_int_equal(header.peers[r], r < ranks ? spaces[r] : 0);
                assert_int_equal(alone.slots[r], r < ranks ? r : 0);
                assert_int_equal(alone.peers[r], r < ranks ? spaces[rank] : 0);
            }
            const struct comm_header *both[] = {&header, &alone};
            for (int b = 0; b < 2; b++) {
                assert_int_equal(both[b]->ranks, ranks);
                assert_int_equal(both[b]->timeout_ns, CUDA_COMM_TIMEOUT_NS);
                assert_int_equal(both[b]->stop | both[b]->timed_out | both[b]->arrived | both[b]->sleepers, 0);
                assert_int_equal(both[b]->reserved, 0);
            }
        }
}

static void check_space(enum cuda_link link)
{
    enum { BYTES = 4096, MAPPED = 2 << 20, MEMORY = 2, HOST_MEMORY = 3 }; /* of enum fake_cuda_kind */
    struct device device;
    struct status status = {0};
    struct comm_header header;
    cu_deviceptr comm = 0;
    assert_true(device_open(&device, 1, &status));
    assert_true(device_enter(&device, &status));
    const struct device *ranks[] = {&device, &device};
    if (!cuda_comm_allocate(&device, ranks, 2, link, BYTES, &comm, &status)) fail_msg("%s", status.message);
    assert_int_equal(fake.live(link == CUDA_LINK_HOST ? HOST_MEMORY : MEMORY), 1);
    uint8_t *space = (uint8_t *)(uintptr_t)comm; /* addresses of the fake driver are host addresses */
    memset(space, 0, BYTES);
    assert_true(cuda_comm_clear(&device, comm, BYTES, &status));
    for (size_t i = 0; i < BYTES; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, space + i, sizeof word);
        assert_int_equal(word, constant("COMM_EMPTY"));
    }
    cuda_comm_header_alone(&header, 4, comm);
    assert_true(cuda_comm_write(&device, comm, &header, &status));
    assert_memory_equal(space, &header, sizeof header);
    for (size_t i = sizeof header; i < BYTES; i++) assert_int_equal(space[i], 0xff);
    const bool mapped = link == CUDA_LINK_NVLINK; /* in the driver's granularity */
    assert_false(cuda_comm_clear(&device, comm, (mapped ? MAPPED : BYTES) + 1, &status));
    test_expect_failure(false, &status, STATUS_MACHINE, "GPU 1");
    cuda_comm_free(&device, link, comm, BYTES);
    cuda_comm_free(&device, link, 0, BYTES);
    assert_int_equal(fake.live(-1), 3); /* the context, current, and its stream */
    assert_int_equal(fake.misuse(), 1); /* of the clearing beyond the end */
    device_leave(&device);
    device_close(&device);
}

TEST(test_spaces)
{
    check_space(CUDA_LINK_NVLINK);
    fake.reset();
    check_space(CUDA_LINK_HOST);
    fake.reset();
    check_space(CUDA_LINK_NONE);
}

/* ---- peers ---- */

static void find_all(struct device devices[GPUS])
{
    struct status status = {0};
    for (int g = 0; g < GPUS; g++) assert_true(device_find(&devices[g], g, &status));
}

static void close_all(struct device devices[GPUS])
{
    for (int g = 0; g < GPUS; g++) device_close(&devices[g]);
}

static enum cuda_link link_of(const struct device *const *list, uint32_t count, struct status *reason)
{
    enum cuda_link link = 0;
    struct status status = {0};
    if (!cuda_comm_find_link(list, count, &link, reason, &status)) fail_msg("%s", status.message);
    return link;
}

TEST(test_peers)
{
    struct device devices[GPUS];
    struct status reason = {0};
    find_all(devices);
    const struct device *list[] = {&devices[2], &devices[0], &devices[1], &devices[0]}; /* one of them twice */
    assert_int_equal(link_of(list, 4, &reason), CUDA_LINK_NVLINK);
    assert_int_equal(link_of(list, 1, &reason), CUDA_LINK_NVLINK);
    setenv("FAKE_CUDA_PCIE", "1", 1);
    assert_int_equal(link_of(list, 4, &reason), CUDA_LINK_PCIE);
    assert_int_equal(reason.code, STATUS_OK);
    assert_int_equal(fake.misuse(), 0);
    setenv("FAKE_CUDA_NO_PEERS", "1", 1);
    assert_int_equal(link_of(list, 4, &reason), CUDA_LINK_HOST);
    test_expect_failure(false, &reason, STATUS_MACHINE, "GPU 2 (Fake GPU)|GPU 0 (Fake GPU)|nvidia-smi topo");
    const struct device *same[] = {&devices[1], &devices[1]};
    status_clear(&reason);
    assert_int_equal(link_of(same, 2, &reason), CUDA_LINK_NVLINK);
    assert_int_equal(reason.code, STATUS_OK);
    unsetenv("FAKE_CUDA_NO_PEERS");
    unsetenv("FAKE_CUDA_PCIE");
    close_all(devices);
    setenv("FAKE_CUDA_NO_MAPPING", "1", 1);
    find_all(devices);
    assert_int_equal(link_of(list, 4, &reason), CUDA_LINK_HOST);
    test_expect_failure(false, &reason, STATUS_MACHINE, "GPU 2 (Fake GPU)|cannot open memory|virtual memory");
    assert_int_equal(fake.misuse(), 0);
    close_all(devices);
}

/* Each driver call fails once: the failure is reported, and nothing leaks. */
TEST(test_each_call_of_peers_failing)
{
    struct device devices[GPUS];
    const struct device *list[] = {&devices[0], &devices[1], &devices[2]};
    uint64_t opening = 0, made = UINT64_MAX;
    int failed = 0;
    for (uint64_t call = 0; call <= made; call++) { /* 0: none fails */
        struct status status = {0}, reason = {0};
        enum cuda_link link;
        char text[16];
        snprintf(text, sizeof text, "%d", (int)(call ? opening + call : 0));
        setenv("FAKE_CUDA_FAIL_CALL", text, 1);
        fake.reset();
        find_all(devices);
        opening = fake.calls();
        bool ok = cuda_comm_find_link(list, GPUS, &link, &reason, &status);
        assert_int_equal(fake.live(-1), 0);
        if (!call) made = fake.calls() - opening;
        close_all(devices);
        if (ok) continue;
        failed++;
        assert_int_equal(status.code, STATUS_MACHINE);
        assert_non_null(strstr(status.message, "GPU "));
    }
    assert_int_equal(failed, 6 * 2); /* pairs of GPUs, asked twice */
}

/* The same for a space on three GPUs. */
TEST(test_each_call_of_mapping_failing)
{
    struct device devices[GPUS];
    const struct device *ranks[] = {&devices[1], &devices[0], &devices[2], &devices[1]};
    uint64_t opening = 0, made = UINT64_MAX;
    int failed = 0;
    for (uint64_t call = 0; call <= made; call++) { /* 0: none fails */
        enum { BYTES = 3 << 20 };
        struct status status = {0};
        cu_deviceptr comm = 0;
        char text[16];
        snprintf(text, sizeof text, "%d", (int)(call ? opening + call : 0));
        setenv("FAKE_CUDA_FAIL_CALL", text, 1);
        fake.reset();
        for (int g = 0; g < GPUS; g++) assert_true(device_open(&devices[g], g, &status));
        assert_true(device_enter(&devices[1], &status));
        const int64_t live = fake.live(-1);
        opening = fake.calls();
        bool ok = cuda_comm_allocate(&devices[1], ranks, 4, CUDA_LINK_NVLINK, BYTES, &comm, &status);
        if (!call) made = fake.calls() - opening;
        assert_true(ok == (comm != 0));
        cuda_comm_free(&devices[1], CUDA_LINK_NVLINK, comm, BYTES);
        assert_int_equal(fake.live(-1), live);
        assert_int_equal(fake.misuse(), 0);
        device_leave(&devices[1]);
        close_all(devices);
        if (ok) continue;
        failed++;
        test_expect_failure(false, &status, STATUS_MACHINE, "GPU 1");
    }
    assert_int_equal(failed, 4); /* all but the release, which frees */
}

int main(int argc, char **argv)
{
    int result;
    (void)argc;
    if (!test_with_libraries("tests/fake_cuda/whole", argv, &result)) return result;
    fake = test_fake_cuda_find();
    return test_run_with(NULL, begin, end, NULL);
}
