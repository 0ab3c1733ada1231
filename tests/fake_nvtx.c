/* SPDX-License-Identifier: Apache-2.0 */
/* A profiler's library for NVTX version 3 (nvtxTypes.h) that records ranges. It refuses a program that violates the
 * protocol. FAKE_NVTX_REFUSE: refuses any. FAKE_NVTX_ONLY_PUSH: requests only half of the functions. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

typedef void function(void);
struct callbacks {
    size_t struct_size;
    int (*get_module)(int module, function ****table, unsigned *size);
};
struct version {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_tool_version)(uint32_t version);
};
typedef const void *get_table(uint32_t table);

static char notes[4096];

static void note(const char *what, const char *name)
{
    size_t used = strlen(notes);
    snprintf(notes + used, sizeof notes - used, "%s%s;", what, name);
}

static int push(const char *message)
{
    note("+", message);
    return 0;
}

static int pop(void)
{
    note("-", "");
    return 0;
}

EXPORTED int InitializeInjectionNvtx2(get_table *table);
EXPORTED int InitializeInjectionNvtx2(get_table *table)
{
    static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    const struct callbacks *callbacks = table(1);
    const struct version *version = table(3);
    function ***places = NULL, *own;
    unsigned size = 0;
    int (*push_pointer)(const char *) = push, (*pop_pointer)(void) = pop;
    if (getenv("FAKE_NVTX_REFUSE") || !callbacks || !version || table(2) || table(4)) return 0;
    if (callbacks->struct_size != sizeof *callbacks || version->struct_size != sizeof *version || version->version != 3)
        return 0;
    version->set_tool_version(3);
    if (callbacks->get_module(0, &places, &size) || callbacks->get_module(7, &places, &size)) return 0;
    for (int module = 6; module > 0; module--) {
        if (!callbacks->get_module(module, &places, &size) || size != sizes[module]) return 0;
        for (unsigned i = 1; i < size; i++)
            if (!places[i]) return 0;
        if (!callbacks->get_module(module, &places, NULL) || !callbacks->get_module(module, NULL, &size)) return 0;
    }
    /* The last was the core module; its functions 9 and 11. */
    memcpy(&own, &push_pointer, sizeof own);
    *places[9] = own;
    memcpy(&own, &pop_pointer, sizeof own);
    if (!getenv("FAKE_NVTX_ONLY_PUSH")) *places[11] = own;
    return 1;
}

EXPORTED const char *fake_nvtx_notes(void);
EXPORTED const char *fake_nvtx_notes(void) { return notes; }
