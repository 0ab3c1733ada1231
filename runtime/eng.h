/* SPDX-License-Identifier: Apache-2.0 */
/* libeng: loads an engine file made by engbuild, checks it whole, and replays its plans.
 *
 * Two levels. Sequences: submit tokens, step, poll; batching goes on inside. Slots: prefill and decode on named slots,
 * for callers with a scheduler of their own. Both may be used in one session at the same time.
 *
 * Ownership. What a *_create or eng_open hands out is the caller's, to be given back with the *_destroy or eng_close of
 * the same name; these take the address of the handle and set it to NULL, and a handle that is NULL already is fine, so
 * closing twice does no harm. A *_create or eng_open that fails leaves the handle as it was: set handles to NULL first.
 * What any other function returns by pointer is borrowed: it lives as long as that function's comment says. Everything a
 * caller passes in is copied or used during the call only. Sessions and text streams keep their engine alive: the engine
 * may be closed first. A session's sequences end with the session.
 *
 * Threads. [any] marks functions that any threads may call at once, on the same handle too. [session] marks those that
 * must not run at once on the same session (a sequence and a slot belong to their session; different sessions do not
 * disturb each other); [stream] likewise for one text stream.
 *
 * Processes. A child made by fork has the memory of its parent, none of the library's threads and no GPU. Functions that use a
 * session of the parent and return a status fail in it with ENG_USAGE; eng_session_destroy waits for nobody and releases the
 * child's copy of the memory; the parent's session is not affected. Engines for processors: the child may make sessions of its
 * own on the parent's engine. Engines for GPUs: eng_session_create fails with ENG_USAGE, eng_session_destroy and eng_close set
 * the handle to NULL and do nothing else; a child opens the engine itself, and can only if no GPU was used before the fork.
 *
 * Stacks. On engines for processors, functions marked [no allocation] need at most ENG_STACK_BYTES of the caller's stack, of
 * whatever shape the model is, and eng_open, eng_session_create, eng_tokenize and all others at most ENG_SETUP_STACK_BYTES.
 * What a GPU's driver needs is not known: give such callers the system's default. The library's own threads have stacks of 8
 * MiB, whatever limit the process has.
 *
 * Errors. A function that can fail returns a status and, if `error` is not NULL, fills the caller's struct eng_error:
 * one line that says what, where, expected, found and what to do. A call that failed changed nothing, except where its
 * comment says so. The library never prints, exits or aborts, installs no signal handlers, reads no environment (but
 * NVTX_INJECTION64_PATH, by which NVIDIA's profilers attach; not in programs with raised privileges; and what the comments
 * on only_cuda_user and eng_open_options_from_launcher name), and after eng_session_create allocates nothing in functions
 * marked [no allocation].
 *
 * Option structs. Call the struct's *_init (it fills size and defaults), then set fields. In every one of them 0 (NULL)
 * means the default. Fields are only ever added at the end: a program built against an older header goes on working,
 * and one built against a newer header works as long as it leaves the fields unknown to the library at 0. */
#ifndef ENG_H
#define ENG_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ENG_API __attribute__((visibility("default")))
#else
#define ENG_API
#endif

#define ENG_VERSION_TEXT "0.1.0"

/* Version of the library that is linked, which may be newer than this header. [any] */
ENG_API const char *eng_version(void);

/* ---- Errors ---- */

/* Pinned: numbers are never changed or reused. */
enum eng_status {
    ENG_OK = 0,
    ENG_BAD_INPUT = 1,  /* a file, a prompt or a value is wrong                                       */
    ENG_USAGE = 2,      /* the call is wrong: NULL, a wrong struct size, a value out of range         */
    ENG_MACHINE = 3,    /* this machine cannot: memory, threads, disk                                 */
    ENG_INTERNAL = 4,   /* a defect of the library, or results that differ from the golden ones       */
    ENG_NOT_FOUND = 5,  /* a file that was named does not exist                                       */
    ENG_CORRUPT = 6,    /* the engine file fails its checks                                           */
    ENG_VERSION = 7,    /* the engine file is of a version or for a target that this library cannot run */
    ENG_FULL = 8,       /* no free slot, page or sequence now: later it may work                      */
    ENG_TOO_LONG = 9,   /* tokens exceed the context, or a result exceeds the caller's buffer         */
    ENG_NOT_FINITE = 10 /* the model's logits are NaN or infinite, so no token can be drawn           */
};

enum { ENG_MESSAGE_BYTES = 512 };

/* See "Stacks" above. */
enum { ENG_STACK_BYTES = 65536, ENG_SETUP_STACK_BYTES = 1 << 20 };

struct eng_error {
    int32_t status;                  /* enum eng_status */
    char message[ENG_MESSAGE_BYTES]; /* UTF-8, one line, NUL-terminated; empty after ENG_OK */
};

/* Short constant name of a status, "unknown" for any other number. [any] */
ENG_API const char *eng_status_name(int status);

/* ---- Engine ---- */

struct eng_engine;

enum { ENG_ADDRESS_BYTES = 264, ENG_TOKEN_BYTES = 256 };

struct eng_open_options {
    size_t struct_size;
    /* That check the weights; 0: one per processor this process may use, for GPUs at most 16 each and 64 in all. A GPU uses at
     * most 16 in any case. */
    uint32_t threads;
    /* Number of the GPU that an engine for a GPU goes to, as the driver counts them; an engine for several takes those behind
     * it, too. One for processors takes 0 alone. */
    uint32_t device;
    uint32_t device_count;   /* 0, or the count of numbers in `devices`: as many as the engine is for */
    const uint32_t *devices; /* instead of `device`; read during the call */
    /* 1: the GPUs of an engine for several exchange through the host's memory even where they have access to each other's:
     * where that access is broken (an IOMMU, access control of PCIe switches), results of it are wrong or never come. */
    uint32_t no_peer_access;
    /* Processes that share an engine for several GPUs, on one machine or many, each with an equal part of the GPUs; what they
     * exchange goes through NCCL. All open the same file and make the same calls, of sessions and sequences, in the same
     * order, none more than some seconds after the others; each gets all answers. A process that fails or ends makes the
     * calls of all others fail, which name it; then they must end, too. What NCCL takes of a GPU's memory, about 1 GB, is in
     * no figure of this library. eng_open sets NCCL_NVLS_ENABLE=0 in the environment: no other thread may use that
     * meanwhile. */
    uint32_t process, processes; /* this one's number, and how many; processes 0 or 1: this one has all GPUs */
    uint32_t local_process;      /* its number among those of this machine: as many GPUs from `device` on are theirs */
    char address[ENG_ADDRESS_BYTES]; /* "host:port", a free one, where process 0 listens until all have come */
    /* 1: the process uses CUDA for engines of these GPUs alone, and has not begun to; no other thread uses the environment
     * during the call. Then it starts faster, by 0.13 s for every other GPU of the machine and 0.05 s for each of its own: the
     * driver is shown these alone (CUDA_VISIBLE_DEVICES; not where several processes share the engine) and makes one
     * connection to each (CUDA_DEVICE_MAX_CONNECTIONS, unless the environment says how many; kernels of sessions that run at
     * once on one GPU may then wait for each other). The environment is as before when eng_open returns. Other GPUs are not to
     * be had in this process any more. */
    uint32_t only_cuda_user;
    /* 1: an engine for processors reads its weights into memory of its own, of large pages where the system has some, and
     * closes the file: whatever happens to it afterwards does not matter. It costs that memory, which is checked first
     * (ENG_MACHINE) and no longer shared with other processes, and the time of a copy. 0: the weights are used where they lie
     * in the page cache. Engines for GPUs have their weights there in either case. */
    uint32_t private_weights;
    /* Most bytes of private memory that reading and checking the file may take at any time, weights (private_weights) and
     * the staging memory of an upload to GPUs not counted. A file that needs more is refused (ENG_MACHINE; the message names
     * section, size and limit) before that memory is taken. 0: 32 MiB, and 16 times the bytes of the file that are not
     * weights. Lower it for files that are not trusted, raise it for one that is and is refused. Within it, the manifest
     * bounds the size of the other sections. */
    uint64_t max_host_bytes;
    /* 1: no pattern of the engine's tokenizer becomes machine code, and no executable memory is asked for: for engines of unknown
     * origin, and where a policy forbids such memory. eng_tokenize and eng_chat are slower by up to a half. Ids are the same. */
    uint32_t no_jit;
    /* How many of the processes are on this machine; 0: not known. With fewer than `processes`, process 0 refuses an address
     * that only its own machine reaches (a name that resolves to 127.0.1.1, as Debian's /etc/hosts has it). */
    uint32_t local_processes;
    /* A secret text that all processes of the job have and nobody else, ended by a NUL; "": none.
     *
     * With a token, a process that connects to process 0 and process 0 itself prove to each other that they have it
     * (HMAC-SHA-256 over fresh random numbers of both sides, and over number, count, engine fingerprint and name of the
     * process that joins) before either accepts the other. The token itself is not sent, and a recorded proof is worth
     * nothing later. This authenticates the two ends of a connection when it is made, no more: what is sent over it
     * afterwards is neither encrypted nor authenticated, nor are the connections that NCCL makes itself, so that somebody
     * who can change packets on the network can still change data.
     *
     * Without a token, any program that reaches the port and knows the engine file's fingerprint can join.
     *
     * In both cases process 0 refuses a connection that is not one of the job's, goes on waiting, and names the last ones
     * when a process is missing in the end. A process of the job that is refused (another engine file, number, count or
     * token) learns why at once; the others do with a token, else when the time is up. */
    char token[ENG_TOKEN_BYTES];
    /* 1: an engine for GPUs opens no library but the driver, and its own kernels stand in for the libraries that it was built
     * with. Its process starts faster (0.2 s for cuBLASLt), and some steps take longer. Not where several processes share the
     * engine, which need NCCL (ENG_USAGE). */
    uint32_t no_libraries;
};
static inline void eng_open_options_init(struct eng_open_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
}

/* Sets process, processes, local_process, local_processes and, unless there is one, address as the launcher of this process
 * has it in the environment: torchrun, Open MPI's mpirun, or that of MPICH and Intel MPI. The address is one port above
 * torchrun's own; of mpirun's it is of this machine, at a port that Open MPI's name of the job decides, unless MASTER_ADDR and
 * MASTER_PORT name another, as the latter must for two jobs of MPICH at once. Sets token, too, unless there is one: to
 * ENG_JOB_TOKEN if that is set (1 to 255 bytes), else to torchrun's TORCHELASTIC_RUN_ID, unless that is "none". Such an id
 * tells jobs apart, but is often easy to guess and may be in torchrun's command line, which all users of a machine see: where
 * others reach the port, set ENG_JOB_TOKEN to random text, the same for all. ENG_USAGE: none of the launchers has started
 * this process, or a variable is wrong. [any] */
ENG_API enum eng_status eng_open_options_from_launcher(struct eng_open_options *options, struct eng_error *error);

/* Maps the file and verifies all of it: structure, checksums, every launch of every plan, every weight (by many threads;
 * this also brings the weights into memory). An engine for a GPU goes there: the GPU must be of the kind that it was
 * built for, and have room for weights, kernels and a small session. options may be NULL. [any]
 *
 * The file must not be written into or cut while it is open: replace an engine by rename, never in place ("cp new.eng
 * model.eng" writes in place; "cp new.eng model.tmp && mv model.tmp model.eng" does not). An open engine goes on with the old
 * file where its name now leads to another, or to none. All but the weights is copied before it is checked, so no later
 * change of the file has an effect on that. The weights of an engine for processors are used in the page cache, unless
 * private_weights is set: a change of the file's size or modification time is then found by eng_session_create, and a
 * hundred times a second by what computes (eng_step, eng_prefill, eng_decode, eng_decode_steps, eng_selftest), which fails
 * with ENG_CORRUPT, then and ever after in that session. Steps of the hundredth of a second before may have used changed
 * weights, and a file that has become shorter ends the process (SIGBUS) where it is used before the change is found. A
 * change during eng_open is ENG_CORRUPT; a file that becomes shorter in the instant in which eng_open reads its weights in
 * the page cache ends the process, too. */
ENG_API enum eng_status eng_open(const char *path, const struct eng_open_options *options, struct eng_engine **engine,
                                 struct eng_error *error);
ENG_API void eng_close(struct eng_engine **engine); /* [any] */

/* The engine's manifest and facts of this load as JSON text. Borrowed until eng_close. [any] */
ENG_API const char *eng_info(const struct eng_engine *engine);

enum { ENG_MAX_EOS_TOKENS = 16 };

/* What a caller must know to size its buffers. Set struct_size (eng_engine_facts_init) before the call. */
struct eng_engine_facts {
    size_t struct_size;
    uint32_t vocab_size;
    uint32_t max_context; /* tokens of one sequence */
    uint32_t slots;       /* sequences that can run at once: the largest decode batch */
    uint32_t page_tokens; /* tokens of one KV page */
    uint64_t page_bytes;
    uint64_t weights_bytes;
    uint64_t file_bytes;
    int32_t bos_token; /* -1: none */
    uint32_t eos_count;
    int32_t eos_tokens[ENG_MAX_EOS_TOKENS];
    uint32_t has_tokenizer; /* 1: tokenize, detokenize and text streams work */
    uint32_t has_chat;      /* 1: eng_chat works */
    uint32_t golden_tokens; /* tokens that eng_selftest compares; 0: the engine holds none */
    int32_t chat_end_token; /* ends an answer in the chat format: a stop token for chats; -1: none */
    double open_seconds;    /* what eng_open took, and of that, checking the weights */
    double verify_seconds;
    uint32_t ranks; /* GPUs (or groups of threads) that share the model; weights_bytes are of all, page_bytes of each */
};
static inline void eng_engine_facts_init(struct eng_engine_facts *facts)
{
    memset(facts, 0, sizeof *facts);
    facts->struct_size = sizeof *facts;
}
ENG_API enum eng_status eng_engine_get_facts(const struct eng_engine *engine, struct eng_engine_facts *facts,
                                             struct eng_error *error); /* [any] */

/* ---- Text ---- */

enum eng_text_flags {
    ENG_TEXT_ADD_SPECIAL =
        1, /* tokenize: add what the tokenizer puts around a text (the beginning-of-sequence token) */
    ENG_TEXT_KEEP_SPECIAL = 2, /* detokenize, streams: special tokens appear in the text instead of being left out */
    ENG_TEXT_PLAIN =
        4 /* tokenize: special tokens in the text are ordinary characters, as for text of unknown origin (in
                          transformers: split_special_tokens); ADD_SPECIAL still adds its own */
};

/* Text to ids. *count is set to the number of ids; more than `capacity` of them is ENG_TOO_LONG and none is written
 * (call with capacity 0 to learn the size). Invalid UTF-8 is read as U+FFFD. Without ENG_TEXT_PLAIN a special token is
 * recognised wherever its text stands: the author of the text can end a turn or begin one. Work is bounded by the length of
 * the text; a tokenizer whose patterns need more is ENG_BAD_INPUT. [any] */
ENG_API enum eng_status eng_tokenize(const struct eng_engine *engine, const char *text, size_t size, uint32_t flags,
                                     int32_t *tokens, size_t capacity, size_t *count, struct eng_error *error);

/* Ids to text: UTF-8, NUL-terminated; *size excludes the NUL, and `capacity` must exceed it (else ENG_TOO_LONG, nothing
 * written). ENG_USAGE: `count` exceeds what can lie in memory. [any] */
ENG_API enum eng_status eng_detokenize(const struct eng_engine *engine, const int32_t *tokens, size_t count,
                                       uint32_t flags, char *text, size_t capacity, size_t *size,
                                       struct eng_error *error);

/* Ids to text one by one: the texts of all pushes and the finish, one behind the other, are what eng_detokenize gives
 * for all ids, and no push ends within a character. */
struct eng_text;
ENG_API enum eng_status eng_text_create(const struct eng_engine *engine, uint32_t flags, struct eng_text **stream,
                                        struct eng_error *error); /* [any] */
/* *text is borrowed until the next call on the stream, NUL-terminated, often empty. [stream] [no allocation] */
ENG_API enum eng_status eng_text_push(struct eng_text *stream, int32_t token, const char **text, size_t *size,
                                      struct eng_error *error);
/* What was held back; the stream is as new afterwards. [stream] [no allocation] */
ENG_API enum eng_status eng_text_finish(struct eng_text *stream, const char **text, size_t *size,
                                        struct eng_error *error);
ENG_API void eng_text_destroy(struct eng_text **stream); /* [stream] */

struct eng_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8, NUL-terminated */
};
enum eng_chat_flags {
    ENG_CHAT_ANSWER = 1,   /* end with what makes the model answer */
    ENG_CHAT_CONTINUE = 2, /* the messages follow an answer of the same sequence: no beginning-of-sequence token */
    ENG_CHAT_CLOSE = 4,    /* with CONTINUE: that answer was cut short, so end it first */
    ENG_CHAT_CONTENT_SPECIAL = 8 /* special tokens and the format's markers inside a content are recognised, as by the
                                    checkpoint's own template: for contents that the program itself has made */
};
/* The ids of a conversation in the chat format that the engine names (chatml, llama3, mistral). A content is text: the format's
 * markers, the beginning and end tokens and all special tokens inside it are ordinary characters, so that no content can end its
 * turn or begin another. Contents without any give the same ids with ENG_CHAT_CONTENT_SPECIAL. A role other than those above is
 * ENG_BAD_INPUT. Sizes as in eng_tokenize. [any] */
ENG_API enum eng_status eng_chat(const struct eng_engine *engine, const struct eng_message *messages,
                                 size_t message_count, uint32_t flags, int32_t *tokens, size_t capacity, size_t *count,
                                 struct eng_error *error);

/* ---- Session ---- */

/* Everything that runs: threads, scratch memory, the KV pages, slots, sequences. All memory is known exactly and
 * checked against what this machine has (free memory, control group, address space limit) before it is taken. An engine for
 * several GPUs has one session at a time. */
struct eng_session;

struct eng_session_options {
    size_t struct_size;
    uint32_t threads;       /* 0: one per processor this process may use */
    uint32_t max_sequences; /* sequences that may exist at once, waiting ones included; 0: 4 per slot, at least 64 */
    uint64_t kv_tokens; /* size of the KV pool in tokens (rounded up to pages); 0: by kv_bytes. More than a full context
                               for every slot could never be used: a larger kv_tokens or kv_bytes is cut to that, and
                               eng_session_facts.pages tells what there is */
    uint64_t
        kv_bytes; /* size of the KV pool in bytes, of each rank if there are several (rounded down); 0: full context for every slot or, if that
                               takes more than half of the memory at hand (on a GPU: nine tenths of what is free), what
                               fits there, at least one full context */
    const char *instruction_set; /* "portable", "avx2", "avx512", "avx512bf16"; NULL: the best this processor has. Only
                                    for engines that run on it */
};
static inline void eng_session_options_init(struct eng_session_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
}
ENG_API enum eng_status eng_session_create(struct eng_engine *engine, const struct eng_session_options *options,
                                           struct eng_session **session, struct eng_error *error); /* [any] */
ENG_API void eng_session_destroy(struct eng_session **session);                                    /* [session] */

struct eng_session_facts {
    size_t struct_size;
    uint32_t threads;
    uint32_t slots, free_slots;
    uint32_t pages, free_pages;
    uint32_t max_sequences;
    uint64_t memory_bytes;       /* private memory of the session, all of it */
    uint64_t kv_bytes;           /* of that, the KV pool */
    const char *instruction_set; /* borrowed until the session's end; on a GPU its architecture, as "sm_90a" */
    const char *device;          /* the GPU's name, borrowed as above; NULL: the host's processors */
    uint64_t device_bytes;       /* of memory_bytes, on the GPU; the engine's weights and kernels are not counted */
    /* On a GPU: what engine and session together were to take, as computed before anything was taken, and by how much less
     * was free when the session had been made than before the engine was opened (whoever else took or gave back some
     * meanwhile counts, too). */
    uint64_t device_contract_bytes, device_taken_bytes;
    double graph_seconds; /* what making the graphs of all plans took */
    /* Why the engine's own kernels stand in for a library that it was built with, in this session; borrowed as above. NULL:
     * they do not. */
    const char *fallback;
    /* Why the engine's GPUs exchange through the host's memory, which is slower than to reach each other's; borrowed as
     * above. NULL: they do not. */
    const char *detour;
};
static inline void eng_session_facts_init(struct eng_session_facts *facts)
{
    memset(facts, 0, sizeof *facts);
    facts->struct_size = sizeof *facts;
}
ENG_API enum eng_status eng_session_get_facts(const struct eng_session *session, struct eng_session_facts *facts,
                                              struct eng_error *error); /* [session] [no allocation] */

/* How tokens are drawn. The n-th draw of a sequence uses random number n of its seed, so its tokens depend on its own
 * prompt and settings alone, never on the company it runs in. */
struct eng_sampling {
    size_t struct_size;
    float temperature;        /* 0: greedy, the most likely token (lowest id among equals) */
    float top_p;              /* keep the likeliest tokens that together reach this probability; 0 or 1: all */
    float repetition_penalty; /* of tokens that occurred in prompt or answer; 0 or 1: none */
    uint32_t top_k;           /* keep the k likeliest tokens; 0: all */
    uint64_t seed;
};
static inline void eng_sampling_init(struct eng_sampling *sampling)
{
    memset(sampling, 0, sizeof *sampling);
    sampling->struct_size = sizeof *sampling;
}
/* Sets temperature, top_p, top_k and repetition_penalty as the checkpoint's generation_config.json has them. [any] */
ENG_API enum eng_status eng_sampling_recommended(const struct eng_engine *engine, struct eng_sampling *sampling,
                                                 struct eng_error *error);

/* ---- Sequences ---- */

/* A sequence waits, in the order of submission, until a slot is free and the pages for its whole prompt and answer are
 * free too; they are then its own, so that a sequence that runs never stops for want of pages and none is ever evicted.
 * Each step runs one plan: a piece of one prompt (oldest first), or one token for every sequence that decodes. When
 * both have work they take turns, so long prompts delay answers by one piece at a time. */
struct eng_sequence;

enum eng_state {
    ENG_STATE_IDLE = 0,    /* created, nothing submitted */
    ENG_STATE_WAITING = 1, /* for a slot or pages */
    ENG_STATE_PREFILL = 2, /* its prompt is being read */
    ENG_STATE_DECODE = 3,  /* it gets a token at every decode step */
    ENG_STATE_DONE = 4     /* see eng_sequence_end */
};
enum eng_end {
    ENG_END_NONE = 0,    /* not done */
    ENG_END_EOS = 1,     /* the last token is an end or stop token */
    ENG_END_LENGTH = 2,  /* max_new_tokens */
    ENG_END_CONTEXT = 3, /* the context is full */
    ENG_END_CANCELLED = 4,
    /* No token could be drawn: of the logits, after the repetition penalty, one was NaN or +infinity, or none was finite.
     * Checkpoint or number formats are at fault (a value overflowed). Slot and pages are free, with KEEP, too. Other
     * sequences are not affected: eng_step returns ENG_OK, and they get the same tokens as without this one. */
    ENG_END_NOT_FINITE = 5
};

enum { ENG_MAX_STOP_TOKENS = 16 };
enum eng_sequence_flags {
    ENG_SEQUENCE_IGNORE_EOS = 1, /* end tokens do not end it; stop_tokens still do */
    ENG_SEQUENCE_KEEP = 2,  /* slot and pages stay its own when it is done, so that more can be submitted; not after
                                    CANCELLED and NOT_FINITE */
    ENG_SEQUENCE_LOGITS = 4 /* eng_sequence_logits will be called: a GPU keeps logits to itself otherwise */
};

struct eng_sequence_options {
    size_t struct_size;
    const struct eng_sampling *sampling; /* NULL: greedy */
    const int32_t *stop_tokens;          /* [stop_count] besides the engine's end tokens */
    uint32_t stop_count;                 /* at most ENG_MAX_STOP_TOKENS */
    uint32_t max_new_tokens;             /* for each submit; 0: until the context is full */
    uint32_t context_tokens;             /* tokens its pages are to hold in all; 0: prompt and answer or, with KEEP, the
                                            engine's whole context */
    uint32_t flags;                      /* enum eng_sequence_flags */
};
static inline void eng_sequence_options_init(struct eng_sequence_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
}

/* ENG_FULL when max_sequences exist. [session] [no allocation] */
ENG_API enum eng_status eng_sequence_create(struct eng_session *session, const struct eng_sequence_options *options,
                                            struct eng_sequence **sequence, struct eng_error *error);

/* Submits a prompt (at least one token) and queues the sequence. With KEEP it may be called again when the sequence is
 * done and all its tokens have been polled: the tokens go behind what the sequence has so far, the last drawn token
 * included. ENG_TOO_LONG when they exceed the context or context_tokens, or when the pool, empty, could never hold
 * prompt and answer. [session] [no allocation] */
ENG_API enum eng_status eng_sequence_submit(struct eng_sequence *sequence, const int32_t *tokens, size_t count,
                                            struct eng_error *error);

/* Runs one step. *unfinished (may be NULL) is the number of sequences that wait or run after it; with 0 before it, the
 * step does nothing. ENG_FULL when sequences wait and nothing can run because slots or pages are held by kept
 * sequences or raw slots. [session] [no allocation] */
ENG_API enum eng_status eng_step(struct eng_session *session, uint32_t *unfinished, struct eng_error *error);

/* Takes up to `capacity` tokens drawn since the last poll, in order; an end token is among them. Returns how many.
 * [session] [no allocation] */
ENG_API size_t eng_sequence_poll(struct eng_sequence *sequence, int32_t *tokens, size_t capacity);
ENG_API enum eng_state eng_sequence_state(const struct eng_sequence *sequence); /* [session] [no allocation] */
ENG_API enum eng_end eng_sequence_end(const struct eng_sequence *sequence);     /* [session] [no allocation] */

/* The logits [vocab_size] from which the last step drew this sequence's token (before penalty and temperature), NULL if
 * it drew none, or on a GPU without ENG_SEQUENCE_LOGITS. Borrowed until the session's next step, prefill or decode.
 * [session] [no allocation] */
ENG_API const float *eng_sequence_logits(const struct eng_sequence *sequence);

/* Ends it now: ENG_STATE_DONE, slot and pages are free, tokens drawn so far can still be polled. [session] */
ENG_API void eng_sequence_cancel(struct eng_sequence *sequence);
ENG_API void eng_sequence_destroy(struct eng_sequence **sequence); /* cancels first [session] [no allocation] */

/* ---- Slots ---- */

/* A slot holds one sequence's KV pages and sampler. Its position is the number of tokens it holds. Pages are taken as
 * tokens come: a call that finds too few free gives ENG_FULL before it computes anything.
 *
 * ENG_NOT_FINITE from eng_prefill, eng_decode or eng_decode_steps: the logits of a slot, which the message names, are not
 * finite (see ENG_END_NOT_FINITE), and its next token is -1. All else is as after ENG_OK: tokens were appended to all slots
 * of the call, the next tokens and logits of the others are valid, and they draw what they draw without this one. The slot
 * stays the caller's; as long as it holds the tokens that led there, it goes on giving ENG_NOT_FINITE. */

/* Greedy, position 0. ENG_FULL when none is free. [session] [no allocation] */
ENG_API enum eng_status eng_slot_acquire(struct eng_session *session, uint32_t *slot, struct eng_error *error);
ENG_API enum eng_status eng_slot_release(struct eng_session *session, uint32_t slot, struct eng_error *error);
/* Sets the sampler and starts its draws anew. [session] [no allocation] */
ENG_API enum eng_status eng_slot_set_sampling(struct eng_session *session, uint32_t slot,
                                              const struct eng_sampling *sampling, struct eng_error *error);
ENG_API enum eng_status eng_slot_position(const struct eng_session *session, uint32_t slot, uint32_t *position,
                                          struct eng_error *error); /* [session] [no allocation] */
/* Forgets the tokens from `position` (at most the present one) on; the repetition penalty forgets them too. [session]
 * [no allocation] */
ENG_API enum eng_status eng_slot_truncate(struct eng_session *session, uint32_t slot, uint32_t position,
                                          struct eng_error *error);

/* Appends tokens to the slot. *next_token: the token drawn behind the last one; logits [vocab_size]: what it was drawn
 * from; with both NULL nothing is drawn. The drawn token is not appended. [session] [no allocation] */
ENG_API enum eng_status eng_prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, size_t count,
                                    int32_t *next_token, float *logits, struct eng_error *error);

/* Appends tokens[i] to slots[i], all different, for `count` slots, and draws next_tokens[i]. logits:
 * [count, vocab_size] or NULL. [session] [no allocation] */
ENG_API enum eng_status eng_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens,
                                   size_t count, int32_t *next_tokens, float *logits, struct eng_error *error);

/* As `steps` calls of eng_decode, each given the tokens that the one before drew; next_tokens: [steps, count]. Nothing
 * ends it early but ENG_NOT_FINITE: then the step that drew -1 for a slot was the last, the tokens of later steps are -1 for
 * all slots, and eng_slot_position tells how many were appended. On a GPU the steps follow each other without a pause.
 * [session] [no allocation] */
ENG_API enum eng_status eng_decode_steps(struct eng_session *session, const uint32_t *slots, const int32_t *tokens,
                                         size_t count, size_t steps, int32_t *next_tokens, struct eng_error *error);

/* ---- Self test ---- */

struct eng_selftest_result {
    size_t struct_size;
    uint32_t tokens;     /* compared */
    uint32_t ties;       /* of them, drawn differently where two logits lie closer than the tolerance */
    float largest_error; /* of a logit, absolute */
    float tolerance;
};
static inline void eng_selftest_result_init(struct eng_selftest_result *result)
{
    memset(result, 0, sizeof *result);
    result->struct_size = sizeof *result;
}
/* Runs the engine's golden prompt through a free slot and compares tokens and logits with the golden ones. A difference
 * is ENG_INTERNAL, logits that are not finite ENG_NOT_FINITE; `result` (may be NULL) is filled in all these cases.
 * ENG_BAD_INPUT when the engine holds none.
 * [session] */
ENG_API enum eng_status eng_selftest(struct eng_session *session, struct eng_selftest_result *result,
                                     struct eng_error *error);

#ifdef __cplusplus
}
#endif

#endif
