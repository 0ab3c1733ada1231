/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of its own for each test: int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); } */
#ifndef FORMATS_BASE_TEST_FOLDER_H
#define FORMATS_BASE_TEST_FOLDER_H

#include "formats/base/test_support.h"

static char *folder; /* of the current test */

static inline int make_folder(void **state)
{
    folder = test_folder();
    return 0;
}

static inline int remove_folder(void **state)
{
    test_folder_remove(folder);
    return 0;
}

static inline const char *in_folder(const char *name) { return test_path(folder, name); }

#endif
