/* SPDX-License-Identifier: Apache-2.0 */
/* Continues a prompt on a stream of the CUDA runtime, with logits that stay on the GPU: cudart ENGINE PROMPT [TOKENS]
 *
 * The engine's steps are queued on one stream; another one copies the logits of each step, in the place of kernels of your own that choose a
 * token. Events keep the order: a copy waits for its step, and the next step for the copy. Needs an engine for one GPU, and -lcudart. */
#include <cuda_runtime_api.h>
#include <eng.h>
#include <eng_cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(cudaError_t result)
{
    if (result != cudaSuccess) fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(result));
    return result != cudaSuccess;
}

/* Your own choice: here, the largest. */
static int32_t choose(const float *logits, size_t count)
{
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

int main(int argc, char **argv)
{
    struct eng_engine *engine = NULL;
    struct eng_session *session = NULL;
    struct eng_text *text = NULL;
    struct eng_error error = {0};
    struct eng_engine_facts facts;
    cudaStream_t steps = NULL, copies = NULL;
    cudaEvent_t copied = NULL;
    float *logits = NULL;
    const float *there;
    void *ready;
    const char *piece;
    int32_t tokens[1024], token, drawn;
    uint32_t slot;
    size_t count, size;
    int failed = 1, left;

    if (argc != 3 && argc != 4) return 2;
    left = argc == 4 ? atoi(argv[3]) : 50;
    eng_engine_facts_init(&facts);
    if (eng_open(argv[1], NULL, &engine, &error) || eng_engine_get_facts(engine, &facts, &error) ||
        eng_tokenize(engine, argv[2], strlen(argv[2]), ENG_TEXT_ADD_SPECIAL, tokens, 1024, &count, &error) ||
        eng_text_create(engine, 0, &text, &error))
        goto done;
    if (check(cudaStreamCreateWithFlags(&steps, cudaStreamNonBlocking)) ||
        check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking)) ||
        check(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming)) ||
        check(cudaMallocHost((void **)&logits, facts.vocab_size * sizeof *logits)))
        goto done;
    if (eng_session_create_on_stream(engine, NULL, steps, &session, &error) ||
        eng_slot_acquire(session, &slot, &error) || eng_prefill(session, slot, tokens, count, &drawn, NULL, &error))
        goto done;
    for (size_t i = 0; i < count; i++) eng_text_push(text, tokens[i], &piece, &size, NULL);
    fputs(argv[2], stdout);
    while (left-- > 0) {
        if (eng_slot_cuda_logits(session, slot, &there, &ready, &error)) goto done;
        if (check(cudaStreamWaitEvent(copies, (cudaEvent_t)ready, 0)) ||
            check(cudaMemcpyAsync(logits, there, facts.vocab_size * sizeof *logits, cudaMemcpyDeviceToHost, copies)) ||
            check(cudaEventRecord(copied, copies)) || check(cudaStreamWaitEvent(steps, copied, 0)) ||
            check(cudaEventSynchronize(copied)))
            goto done;
        token = choose(logits, facts.vocab_size);
        if (token != drawn) { /* the session's own choice, which is greedy */
            fprintf(stderr, "the largest logit is that of token %d, the session drew %d\n", (int)token, (int)drawn);
            goto done;
        }
        if (eng_text_push(text, token, &piece, &size, &error)) goto done;
        fputs(piece, stdout);
        fflush(stdout);
        if (left && eng_decode(session, &slot, &token, 1, &drawn, NULL, &error)) goto done;
    }
    if (eng_text_finish(text, &piece, &size, &error)) goto done;
    puts(piece);
    failed = 0;
done:
    if (error.status) fprintf(stderr, "%s\n", error.message);
    eng_session_destroy(&session); /* before its stream */
    eng_text_destroy(&text);
    eng_close(&engine);
    if (copied) cudaEventDestroy(copied);
    if (copies) cudaStreamDestroy(copies);
    if (steps) cudaStreamDestroy(steps);
    cudaFreeHost(logits);
    return failed;
}
