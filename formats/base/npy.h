/* SPDX-License-Identifier: Apache-2.0 */
/* Writes NumPy .npy version 1.0 files of float32 matrices row by row. */
#ifndef FORMATS_BASE_NPY_H
#define FORMATS_BASE_NPY_H

#include "formats/base/file.h"

struct npy_writer {
    struct file_output output;
    uint64_t columns, rows; /* rows written so far */
};

bool npy_open(struct npy_writer *writer, const char *path, uint64_t columns, struct status *status);
bool npy_row(struct npy_writer *writer, const float *row /* [columns] */, struct status *status);
/* Patches the row count into the header and commits the file. */
bool npy_close(struct npy_writer *writer, struct status *status);
void npy_abandon(struct npy_writer *writer);

#endif
