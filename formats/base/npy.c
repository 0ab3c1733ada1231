/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/checked.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written in host order as '<f4'");

/* The header has this size for any row count, so that it can be written first and patched at the end. 128 is a multiple
 * of 64, as the format requires, and has room for two 20-digit numbers. */
enum { HEADER_BYTES = 128, PREAMBLE_BYTES = 10 };

static void fill_header(char header[HEADER_BYTES], uint64_t rows, uint64_t columns)
{
    static const char magic[PREAMBLE_BYTES] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, HEADER_BYTES - PREAMBLE_BYTES, 0};
    char text[HEADER_BYTES];
    int length =
        snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }",
                 rows, columns);
    memset(header, ' ', HEADER_BYTES);
    memcpy(header, magic, sizeof magic);
    memcpy(header + PREAMBLE_BYTES, text, (size_t)length);
    header[HEADER_BYTES - 1] = '\n';
}

bool npy_open(struct npy_writer *writer, const char *path, uint64_t columns, struct status *status)
{
    char header[HEADER_BYTES];
    uint64_t row_bytes;
    *writer = (struct npy_writer){.output.descriptor = -1, .columns = columns};
    if (!columns || !checked_mul(columns, sizeof(float), &row_bytes))
        return status_fail(status, STATUS_INTERNAL, "'%s': a row of %" PRIu64 " columns cannot be written", path,
                           columns);
    if (!file_output_open(&writer->output, path, status)) return false;
    fill_header(header, 0, columns);
    if (file_output_write(&writer->output, header, sizeof header, status)) return true;
    npy_abandon(writer);
    return false;
}

bool npy_row(struct npy_writer *writer, const float *row, struct status *status)
{
    if (!file_output_write(&writer->output, row, writer->columns * sizeof(float), status)) return false;
    writer->rows++;
    return true;
}

bool npy_close(struct npy_writer *writer, struct status *status)
{
    char header[HEADER_BYTES];
    fill_header(header, writer->rows, writer->columns);
    if (file_output_patch(&writer->output, 0, header, sizeof header, status))
        return file_output_commit(&writer->output, status);
    npy_abandon(writer);
    return false;
}

void npy_abandon(struct npy_writer *writer) { file_output_abandon(&writer->output); }
