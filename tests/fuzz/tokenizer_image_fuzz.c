/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer's image: any bytes are either refused with a message or can be used for encoding and decoding. */
#include "formats/tokenizer/tokenizer_image.h"
#include "tests/fuzz/tokenizer_use.h"

/* Without these fields hardly a mutation that changes the size would get past the header. */
size_t fuzz_fix_up(uint8_t *data, size_t size)
{
    struct image_header header;
    size &= ~(size_t)7;
    if (size < sizeof header) return size;
    memcpy(&header, data, sizeof header);
    memcpy(header.magic, TOKENIZER_IMAGE_MAGIC, sizeof header.magic);
    if (header.version == 0 || header.version > TOKENIZER_IMAGE_VERSION) header.version = TOKENIZER_IMAGE_VERSION;
    header.header_bytes = sizeof header;
    header.image_bytes = size;
    memcpy(data, &header, sizeof header);
    return size;
}

/* One input of some encodes a long text, which tokenizer_use.h gives 9 s. */
const struct fuzz_cost fuzz_cost = {.base_ms = 10000, .us_per_byte = 50, .base_bytes = 64 << 20, .bytes_per_byte = 256};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct status status = {0};
    uint8_t *image = malloc(size ? size : 1); /* aligned, and with an end that the sanitizer knows */
    require(image != NULL);
    if (size) memcpy(image, data, size);
    struct tokenizer *tokenizer = tokenizer_open(image, size, true, &status);
    if (tokenizer)
        use_tokenizer(tokenizer, image, size);
    else
        require(status.code != STATUS_OK && status.code != STATUS_INTERNAL && status.message[0]);
    tokenizer_close(tokenizer);
    free(image);
    return 0;
}
