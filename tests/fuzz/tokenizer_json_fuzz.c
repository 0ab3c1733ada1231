/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json: any bytes are either refused with a message or make an image that opens, encodes and decodes. */
#include "tests/fuzz/tokenizer_use.h"

/* One input of some encodes a long text, which tokenizer_use.h gives 9 s. */
const struct fuzz_cost fuzz_cost = {.base_ms = 10000, .us_per_byte = 50, .base_bytes = 64 << 20, .bytes_per_byte = 512};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    uint8_t *image = NULL;
    size_t image_size = 0;
    if (!tokenizer_import((const char *)data, size, "tokenizer.json", &image, &image_size, &status)) {
        require(status.code == STATUS_BAD_INPUT && status.message[0] && !image);
        return 0;
    }
    struct tokenizer *tokenizer = tokenizer_open(image, image_size, true, &status);
    require(tokenizer != NULL);
    use_tokenizer(tokenizer, data, size);
    tokenizer_close(tokenizer);
    free(image);
    return 0;
}
