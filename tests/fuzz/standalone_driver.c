/* SPDX-License-Identifier: Apache-2.0 */
// Runs a fuzz target without libFuzzer: first every corpus file as it is, then a fixed number of seeded random
// mutations of them. The same seed gives the same inputs on every machine, so that a failure can be repeated.
//
//     TARGET [--mutations N] [--only N] [--seed N] [--time-limit SECONDS] [--print] FOLDER_OR_FILE...
//
// An input that crashes, costs more than its target allows (cost.c), or runs longer than the time limit, is named and written to the working folder (in a Bazel
// test to $TEST_UNDECLARED_OUTPUTS_DIR) as crash-NAME. To try it again: the same corpus with --only N, or that file
// with --mutations 0.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

// Provided by AddressSanitizer, absent otherwise.
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

struct seed_file {
    char *path;
    uint8_t *data;
    size_t size;
};

struct corpus {
    struct seed_file *files;
    size_t count;
};

struct random_state {
    uint64_t state;
};

// The input in flight, for the crash handler.
static const uint8_t *current_data;
static size_t current_size;
static char crash_path[4096];
static char current_name[256];

static void die(const char *what, const char *subject)
{
    fprintf(stderr, "fuzz: %s: %s: %s\n", what, subject, strerror(errno));
    exit(2);
}

static void *checked_alloc(size_t size)
{
    void *block = malloc(size ? size : 1);
    if (!block) die("out of memory", "input");
    return block;
}

// ---- crash handling: async-signal-safe calls only ------------------------------------------------------------

static void write_text(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0) return; // nothing better to do while dying
}

static void save_current(void)
{
    if (!current_data) return;
    write_text(STDERR_FILENO, "\nfuzz: failing input: ");
    write_text(STDERR_FILENO, current_name);
    write_text(STDERR_FILENO, "\nfuzz: written to ");
    write_text(STDERR_FILENO, crash_path);
    write_text(STDERR_FILENO, "\n");
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return;
    for (size_t done = 0; done < current_size;) {
        ssize_t n = write(fd, current_data + done, current_size - done);
        if (n <= 0) break;
        done += (size_t)n;
    }
    close(fd);
    current_data = NULL;
}

static void on_signal(int number)
{
    write_text(STDERR_FILENO, number == SIGALRM ? "\nfuzz: time limit exceeded\n" : "\nfuzz: fatal signal\n");
    save_current();
    signal(number, SIG_DFL);
    raise(number);
}

static void install_handlers(void)
{
    // AddressSanitizer reports these three itself, and then calls back.
    static const int reported[] = {SIGBUS, SIGFPE, SIGSEGV};
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(save_current);
    for (size_t i = 0; !__sanitizer_set_death_callback && i < sizeof(reported) / sizeof(reported[0]); i++)
        signal(reported[i], on_signal);
    signal(SIGABRT, on_signal);
    signal(SIGILL, on_signal);
    signal(SIGTRAP, on_signal);
    signal(SIGALRM, on_signal);
    const char *folder = getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    snprintf(crash_path, sizeof(crash_path), "%s/crash-%s", folder ? folder : ".", program_invocation_short_name);
}

// ---- corpus --------------------------------------------------------------------------------------------------

static void read_seed(struct corpus *corpus, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) die("cannot open", path);
    struct stat info;
    if (fstat(fileno(file), &info) != 0) die("cannot stat", path);
    struct seed_file seed = {.path = strdup(path), .size = (size_t)info.st_size};
    seed.data = checked_alloc(seed.size);
    if (fread(seed.data, 1, seed.size, file) != seed.size) die("cannot read", path);
    fclose(file);
    corpus->files = realloc(corpus->files, (corpus->count + 1) * sizeof(*corpus->files));
    if (!corpus->files || !seed.path) die("out of memory", path);
    corpus->files[corpus->count++] = seed;
}

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void read_seeds(struct corpus *corpus, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) die("cannot find", path);
    if (!S_ISDIR(info.st_mode)) {
        read_seed(corpus, path);
        return;
    }
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, visible, alphasort);
    if (count < 0) die("cannot list", path);
    for (int i = 0; i < count; i++) {
        char *child = NULL;
        if (asprintf(&child, "%s/%s", path, entries[i]->d_name) < 0) die("out of memory", path);
        read_seeds(corpus, child);
        free(child);
        free(entries[i]);
    }
    free(entries);
}

// ---- mutation ------------------------------------------------------------------------------------------------

// splitmix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
static uint64_t next_random(struct random_state *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Uniform enough in [0, limit); 0 where the limit is 0.
static size_t below(struct random_state *random, size_t limit)
{
    return limit ? (size_t)(next_random(random) % limit) : 0;
}

// A position in [0, size); half of the time near the start, where headers are.
static size_t position(struct random_state *random, size_t size)
{
    size_t head = size < 512 ? size : 512;
    return below(random, next_random(random) & 1 ? size : head);
}

static void put_interesting(struct random_state *random, uint8_t *data, size_t size)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      0x7f,
                                      0x80,
                                      0xff,
                                      0x100,
                                      0x7fff,
                                      0x8000,
                                      0xffff,
                                      0x10000,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      0x100000000,
                                      0x3fffffffffffffff,
                                      0x7fffffffffffffff,
                                      0x8000000000000000,
                                      0xfffffffffffffff8,
                                      0xffffffffffffffff};
    size_t width = (size_t)1 << below(random, 4);
    if (width > size) width = 1;
    if (size == 0) return;
    size_t at = below(random, 2) ? position(random, size - width + 1)
                                 : position(random, size / width) * width; // fields are mostly aligned
    uint64_t value = values[below(random, sizeof(values) / sizeof(values[0]))];
    if (below(random, 4) == 0) { // or a small step from what stands there
        value = 0;
        memcpy(&value, data + at, width);
        value += next_random(random) % 33 - 16;
    }
    memcpy(data + at, &value, width);
}

// One mutation in place; capacity leaves room for growth. Returns the new size.
static size_t mutate_once(struct random_state *random, const struct corpus *corpus, uint8_t *data, size_t size,
                          size_t capacity)
{
    size_t room = capacity - size;
    switch (below(random, 8)) {
    case 0: // flip one bit
        if (size) data[position(random, size)] ^= (uint8_t)(1u << below(random, 8));
        return size;
    case 1: // set one byte
        if (size) data[position(random, size)] = (uint8_t)next_random(random);
        return size;
    case 2: // set an integer
        put_interesting(random, data, size);
        return size;
    case 3: { // insert random bytes, or repeat one
        size_t length = 1 + below(random, 16);
        if (length > room) return size;
        size_t at = below(random, size + 1);
        memmove(data + at + length, data + at, size - at);
        bool repeat = below(random, 2);
        for (size_t i = 0; i < length; i++) data[at + i] = repeat && i ? data[at] : (uint8_t)next_random(random);
        return size + length;
    }
    case 4: { // delete a range
        size_t at = position(random, size);
        size_t length = 1 + below(random, below(random, 4) ? 16 : size);
        if (length > size - at) length = size - at;
        memmove(data + at, data + at + length, size - at - length);
        return size - length;
    }
    case 5: { // copy a range from another place or another file
        const struct seed_file *other = &corpus->files[below(random, corpus->count)];
        size_t from = position(random, other->size), at = position(random, size);
        size_t length = 1 + below(random, 64);
        if (length > other->size - from) length = other->size - from;
        if (length > size - at) length = size - at;
        memcpy(data + at, other->data + from, length);
        return size;
    }
    case 6: { // splice: the head of this file, the tail of another
        const struct seed_file *other = &corpus->files[below(random, corpus->count)];
        size_t at = below(random, size + 1), from = below(random, other->size + 1);
        size_t length = other->size - from;
        if (below(random, 4) || length > capacity - at) return size; // rare: it changes nearly everything
        memcpy(data + at, other->data + from, length);
        return at + length;
    }
    default: // truncate, rarely
        return below(random, 4) ? size : below(random, size + 1);
    }
}

static uint8_t *mutate(struct random_state *random, const struct corpus *corpus, size_t *size)
{
    const struct seed_file *seed = &corpus->files[below(random, corpus->count)];
    size_t capacity = seed->size + 256;
    uint8_t *data = checked_alloc(capacity);
    memcpy(data, seed->data, seed->size);
    *size = seed->size;
    for (size_t rounds = 1 + below(random, 4); rounds > 0; rounds--)
        *size = mutate_once(random, corpus, data, *size, capacity);
    if (fuzz_fix_up) *size = fuzz_fix_up(data, *size);
    return data;
}

// ---- runs ----------------------------------------------------------------------------------------------------

// Copied to a block of exactly that size, so that a read past the end is seen by AddressSanitizer.
static void try_input(const uint8_t *data, size_t size, unsigned time_limit)
{
    uint8_t *exact = checked_alloc(size);
    memcpy(exact, data, size);
    current_size = size;
    current_data = exact;
    alarm(time_limit);
    LLVMFuzzerTestOneInput(exact, size);
    alarm(0);
    current_data = NULL;
    free(exact);
}

static void usage(void)
{
    fprintf(stderr,
            "usage: %s [--mutations N] [--only N] [--seed N] [--time-limit SECONDS] [--print] FOLDER_OR_FILE...\n",
            program_invocation_short_name);
    exit(2);
}

int main(int argc, char **argv)
{
    unsigned long mutations = 10000, only = ULONG_MAX, seed = 1, time_limit = 60;
    bool print = false;
    struct corpus corpus = {0};
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        unsigned long *number = strcmp(argv[i], "--mutations") == 0    ? &mutations
                                : strcmp(argv[i], "--only") == 0       ? &only
                                : strcmp(argv[i], "--seed") == 0       ? &seed
                                : strcmp(argv[i], "--time-limit") == 0 ? &time_limit
                                                                       : NULL;
        if (number) {
            char *end = NULL;
            if (++i == argc || (*number = strtoul(argv[i], &end, 0), *end != '\0')) usage();
        } else if (strcmp(argv[i], "--print") == 0) {
            print = true;
        } else if (argv[i][0] == '-') {
            usage();
        } else {
            read_seeds(&corpus, argv[i]);
        }
    }
    if (corpus.count == 0) {
        fprintf(stderr, "fuzz: the corpus is empty: a target needs at least one valid input\n");
        return 2;
    }
    install_handlers();

    for (size_t i = 0; only == ULONG_MAX && i < corpus.count; i++) {
        snprintf(current_name, sizeof(current_name), "corpus file %s", corpus.files[i].path);
        if (print) printf("%s\n", current_name);
        try_input(corpus.files[i].data, corpus.files[i].size, (unsigned)time_limit);
    }
    for (unsigned long i = 0; i < mutations; i++) {
        if (only != ULONG_MAX && i != only) continue;
        // Each mutation has its own seed: any one of them can be made again without the others.
        struct random_state random = {.state = (uint64_t)seed * 0xd1342543de82ef95u + i};
        size_t size = 0;
        uint8_t *data = mutate(&random, &corpus, &size);
        snprintf(current_name, sizeof(current_name), "mutation %lu of seed %lu", i, seed);
        if (print) printf("%s: %zu bytes\n", current_name, size);
        try_input(data, size, (unsigned)time_limit);
        free(data);
    }

    if (only != ULONG_MAX) return 0;
    // One case for each corpus file, one for all mutations together.
    printf("%s: %zu corpus files and %lu mutations tried\n", program_invocation_short_name, corpus.count, mutations);
    printf("[cases] %zu passed, 0 failed\n", corpus.count + (mutations > 0));
    for (size_t i = 0; i < corpus.count; i++) {
        free(corpus.files[i].path);
        free(corpus.files[i].data);
    }
    free(corpus.files);
    return 0;
}
