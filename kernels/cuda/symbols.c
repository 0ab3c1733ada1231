/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/symbols.h"

#include <dlfcn.h>
#include <string.h>

const char *symbols_missing(void *library, const struct symbol *symbols, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(library, symbols[i].name);
        if (!address) return symbols[i].name;
        memcpy(symbols[i].function, &address, sizeof address);
    }
    return NULL;
}
