/* SPDX-License-Identifier: Apache-2.0 */
/* The program's side of NVTX version 3 (headers nvtxInit.h and nvtxTypes.h of github.com/NVIDIA/NVTX). The tool is a
 * library with the function InitializeInjectionNvtx2. It receives a function that returns tables by number. With the
 * table of callbacks it requests arrays of pointers, one for each module of the API, and writes its functions into
 * those that it uses. All numbers are part of NVTX's interface and never change. */
#include "kernels/cuda/nvtx.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum table { TABLE_CALLBACKS = 1, TABLE_VERSION = 3 };
enum module { MODULE_CORE = 1, MODULE_COUNT = 7 };
enum core_function { CORE_RANGE_PUSH = 9 /* of text in bytes */, CORE_RANGE_POP = 11 };
enum { NVTX_VERSION = 3, MOST_FUNCTIONS = 16 };

/* Entries of each module's array; 0 is never used. */
static const unsigned module_sizes[MODULE_COUNT] = {[MODULE_CORE] = 16, 9, 15, 7, 16, 7};

typedef void function(void);
typedef int push_function(const char *message);
typedef int pop_function(void);

struct callbacks {
    size_t struct_size;
    int (*get_module)(int module, function ****table, unsigned *size);
};
struct version {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_tool_version)(uint32_t version);
};
typedef const void *get_table_function(uint32_t table);
typedef int initialize_function(get_table_function *get_table);

/* Pointers to the tool's functions; functions that are never called share one. */
static function *push_place, *pop_place, *unused_place;
static function **core_places[MOST_FUNCTIONS + 1], **unused_places[MOST_FUNCTIONS + 1]; /* NULL-terminated */

static push_function *push;
static pop_function *pop;

static int get_module(int module, function ****table, unsigned *size)
{
    if (module < MODULE_CORE || module >= MODULE_COUNT) return 0;
    if (size) *size = module_sizes[module];
    if (table) *table = module == MODULE_CORE ? core_places : unused_places;
    return 1;
}

static void ignore_version(uint32_t version) { (void)version; }

static const void *get_table(uint32_t table)
{
    static const struct callbacks callbacks = {sizeof callbacks, get_module};
    static const struct version version = {sizeof version, NVTX_VERSION, 0, ignore_version};
    return table == TABLE_CALLBACKS ? (const void *)&callbacks : table == TABLE_VERSION ? (const void *)&version : NULL;
}

/* A tool that fails is treated as absent, so that the program continues. */
static void attach(void)
{
    const char *path = secure_getenv("NVTX_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NODELETE) : NULL;
    void *address = library ? dlsym(library, "InitializeInjectionNvtx2") : NULL;
    if (!address) {
        if (library) dlclose(library);
        return;
    }
    for (int i = 1; i < MOST_FUNCTIONS; i++) core_places[i] = unused_places[i] = &unused_place;
    core_places[CORE_RANGE_PUSH] = &push_place;
    core_places[CORE_RANGE_POP] = &pop_place;
    initialize_function *initialize;
    memcpy(&initialize, &address, sizeof initialize);
    if (!initialize(get_table)) {
        dlclose(library);
        return;
    }
    /* Ranges need both functions. */
    if (!push_place || !pop_place) return;
    memcpy(&push, &push_place, sizeof push);
    memcpy(&pop, &pop_place, sizeof pop);
}

void nvtx_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, attach);
}

bool nvtx_active(void) { return push != NULL; }

void nvtx_push(const char *what)
{
    if (push) push(what);
}

void nvtx_push_number(const char *what, uint64_t number)
{
    char name[48];
    if (!push) return;
    snprintf(name, sizeof name, "%s %" PRIu64, what, number);
    push(name);
}

void nvtx_pop(void)
{
    if (push) pop();
}
