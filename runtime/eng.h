/* SPDX-License-Identifier: Apache-2.0 */
/* libeng: opens an engine file made by engbuild, verifies it, and replays its plans.
 *
 * Two levels. Sequences: submit tokens, step, poll; batching is automatic. Slots: prefill and decode on numbered slots, for callers with
 * their own scheduler. One session can use both at the same time.
 *
 * Ownership. The caller owns what eng_open and *_create return and releases it with eng_close or the *_destroy of the same name. Those take
 * the address of the handle, set it to NULL, and do nothing if it is NULL already. On failure, eng_open and *_create leave the handle
 * unchanged: initialise handles to NULL. Pointers returned by other functions are borrowed; the function's comment states how long they are
 * valid. Arguments are copied or used only during the call. Sessions and text streams keep their engine open: the engine may be closed
 * first. A session's sequences end with the session.
 *
 * Threads. [any]: any number of threads may call the function at the same time, also on the same handle. [session]: at most one thread at a
 * time for each session, its sequences and its slots; different sessions are independent, but for their steps on one GPU, some of which the
 * library lets run one after the other (engines with experts). [stream]: at most one thread at a time for each text stream.
 *
 * Processes. A child made by fork has a copy of the parent's memory, but none of the library's threads and no GPU. With a session of the
 * parent, functions that return a status fail with ENG_USAGE, and eng_session_destroy releases only the child's copy of the memory; the
 * parent's session is not affected. With the parent's engine for processors, the child can create sessions of its own. With an engine for
 * GPUs, eng_session_create fails with ENG_USAGE, and eng_session_destroy and eng_close only set the handle to NULL; the child must open the
 * engine itself, which requires that no GPU was used before the fork.
 *
 * Stacks. For engines for processors, functions marked [no allocation] use at most ENG_STACK_BYTES of the caller's stack, for models of any
 * shape; all other functions use at most ENG_SETUP_STACK_BYTES. The use of a GPU driver is not known: give threads that use engines for
 * GPUs the default stack size of the system. The library's own threads have stacks of 8 MiB.
 *
 * Errors. A function that can fail returns a status and fills *error unless `error` is NULL. A failed call changes nothing unless its
 * comment states otherwise. The library never prints, exits, aborts or installs signal handlers. After eng_session_create, functions marked
 * [no allocation] allocate no memory. The library reads these environment variables and no others: NVTX_INJECTION64_PATH, with which
 * NVIDIA's profilers attach (not in programs with raised privileges), and those named at only_cuda_user and at
 * eng_open_options_from_launcher.
 *
 * Option structs. Call the *_init function of the struct, which sets its size and defaults, then set fields. In every field 0 (NULL) is the
 * default. New fields are only added at the end. A program built with an older header works with a newer library; one built with a newer
 * header works with an older library if it leaves the fields unknown to that library at 0. Other languages, for which inline functions do
 * not exist: the library has symbols of the same names, which set a struct to the size that it had when its symbol first appeared;
 * eng_struct_init sets it to its size in your binding. */
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

/* Version of this header. Libraries with the same major number have the same SONAME, and programs built for an older one of them run with a
 * newer one. */
#define ENG_VERSION_MAJOR  0
#define ENG_VERSION_MINOR  1
#define ENG_VERSION_PATCH  0
#define ENG_VERSION_NUMBER (ENG_VERSION_MAJOR * 1000000 + ENG_VERSION_MINOR * 1000 + ENG_VERSION_PATCH)

#define ENG_VERSION_TEXT "0.1.0"

/* Return the version of the linked library, which may be newer than this header, as ENG_VERSION_TEXT and ENG_VERSION_NUMBER. [any] */
ENG_API const char *eng_version(void);
ENG_API uint32_t eng_version_number(void);

/* ---- Errors ---- */

/* Numbers are never changed or reused. */
enum eng_status {
    ENG_OK = 0,
    ENG_BAD_INPUT = 1,   /* a file, a prompt or a value is wrong                                     */
    ENG_USAGE = 2,       /* the call is wrong: NULL, wrong struct size, value out of range           */
    ENG_MACHINE = 3,     /* this machine cannot do it: memory, threads, disk, GPU, driver            */
    ENG_INTERNAL = 4,    /* a defect of the library, or results that differ from the golden outputs  */
    ENG_NOT_FOUND = 5,   /* the named file does not exist                                            */
    ENG_CORRUPT = 6,     /* the engine file fails its checks                                         */
    ENG_VERSION = 7,     /* the engine file's version or target is not supported by this library     */
    ENG_FULL = 8,        /* no free slot, page or sequence; may succeed later                        */
    ENG_TOO_LONG = 9,    /* tokens exceed the context, or a result exceeds the caller's buffer       */
    ENG_NOT_FINITE = 10, /* the model's logits are NaN or infinite; no token can be drawn            */
    ENG_CANCELLED = 11   /* a function of the caller asked to stop                                  */
};

enum { ENG_MESSAGE_BYTES = 512 };

/* See "Stacks" above. */
enum { ENG_STACK_BYTES = 65536, ENG_SETUP_STACK_BYTES = 1 << 20 };

struct eng_error {
    int32_t status; /* enum eng_status */
    /* What failed, where, expected, found, and what to do. UTF-8, one line, NUL-terminated; empty after ENG_OK. */
    char message[ENG_MESSAGE_BYTES];
    /* Room for fields of later releases, so that the struct keeps its size. Set to 0 by libraries that do not know them. */
    uint32_t reserved;
    uint64_t more_reserved[15];
};

/* Returns the constant short name of a status; "unknown" for other numbers. [any] */
ENG_API const char *eng_status_name(int status);

/* Clears given[size], a struct that begins with struct_size, and sets that to `size`: what the struct's *_init function does. [any] */
ENG_API void eng_struct_init(void *given, size_t size);

/* ---- Engine ---- */

struct eng_engine;

enum { ENG_ADDRESS_BYTES = 264, ENG_TOKEN_BYTES = 256 };

/* Hears how many bytes of the weights are loaded, of how many. Return 0 to go on, else eng_open ends with ENG_CANCELLED. */
typedef int eng_progress_callback(void *context, uint64_t done, uint64_t total);

enum eng_log_level { ENG_LOG_INFO = 1, ENG_LOG_WARNING = 2 };
/* `message`: one line of UTF-8, NUL-terminated, borrowed during the call. */
typedef void eng_log_callback(void *context, int32_t level, const char *message);

/* Returns bytes of zeroed memory at an address that is a multiple of the system's page size; NULL: there is none. */
typedef void *eng_memory_take(void *context, uint64_t bytes);
/* Takes back what eng_memory_take returned. */
typedef void eng_memory_give(void *context, void *memory, uint64_t bytes);

struct eng_open_options {
    size_t struct_size;
    /* Threads that verify the weights. 0: one per processor that this process may use; for several GPUs at most 64 in
     * all. At most 16 are used for each GPU. */
    uint32_t threads;
    /* Number of the GPU, as the driver counts them. An engine for several GPUs uses this one and those after it. Must
     * be 0 for an engine for processors. */
    uint32_t device;
    uint32_t device_count;   /* 0, or the length of `devices`: as many GPUs as the engine is for */
    const uint32_t *devices; /* [device_count] GPU numbers, used instead of `device`; borrowed during the call */
    /* 1: the GPUs exchange data through host memory even if they can access each other's memory. For machines where
     * such access is broken (IOMMU, access control of PCIe switches), so that its results are wrong or never arrive. */
    uint32_t no_peer_access;
    /* Several processes, on one machine or more, can share an engine for several GPUs; each has an equal part of the GPUs, and they
     * exchange data through NCCL. Requires: all open the same file and make the same calls on sessions and sequences in the same order, at
     * most seconds apart. Each receives all answers. If one process fails or ends, the calls of all others fail and name it; the others
     * must then end too. NCCL takes about 1 GB of each GPU's memory, which no figure of this library includes. eng_open sets
     * NCCL_NVLS_ENABLE=0 in the environment: no other thread may use the environment during the call. */
    uint32_t process, processes; /* number of this process, from 0, and their count; count 0 or 1: no other processes */
    uint32_t local_process;      /* number of this process on its machine; it selects the GPUs, counted from `device` */
    char address[ENG_ADDRESS_BYTES]; /* free "host:port", at which process 0 listens until all have connected */
    /* 1: opens faster, by 0.13 s for every other GPU of the machine and 0.05 s for each GPU of the engine. Requires: the process has not
     * used CUDA before, will use it only for engines on these GPUs, and no other thread uses the environment during the call. Other GPUs
     * cannot be used in this process later. During the call the driver sees only these GPUs (CUDA_VISIBLE_DEVICES; not if several processes
     * share the engine) and makes one connection to each (CUDA_DEVICE_MAX_CONNECTIONS, unless it is set), so that kernels of different
     * sessions on one GPU may wait for each other. The environment is restored before eng_open returns. */
    uint32_t only_cuda_user;
    /* 1: an engine for processors copies its weights into private memory, with large pages where available, and closes
     * the file; later changes of the file have no effect. The memory is checked first (ENG_MACHINE) and not shared with
     * other processes. 0: weights are used in the page cache. No effect for GPUs, which always have their own copy. */
    uint32_t private_weights;
    /* Limit in bytes of the private memory for reading and checking the file, not counting weights (private_weights) and staging memory for
     * GPUs. A file that needs more is refused before the memory is taken (ENG_MACHINE; the message names section, size and limit). 0: 32
     * MiB plus 16 times the bytes of the file that are not weights. Lower it for untrusted files; raise it for a trusted file that is
     * refused. Within the limit, the manifest bounds the size of the other sections. */
    uint64_t max_host_bytes;
    /* 1: the tokenizer's patterns are not compiled to machine code, and no executable memory is requested: for untrusted engines, and where
     * a policy forbids such memory. eng_tokenize and eng_chat are up to 50 % slower; ids are the same. */
    uint32_t no_jit;
    /* Count of the processes on this machine; 0: unknown. If it is less than `processes`, process 0 refuses an address
     * that only its own machine can reach (such as a name that resolves to 127.0.1.1, as in Debian's /etc/hosts). */
    uint32_t local_processes;
    /* Secret text of the job, the same in all its processes, NUL-terminated; "": none.
     *
     * With a token, each process that connects and process 0 prove to each other that they have it, before either accepts the other
     * (HMAC-SHA-256 over fresh random numbers of both and over number, count, engine fingerprint and name of the process that joins). The
     * token is never sent, and a recorded proof cannot be reused. This authenticates a connection when it is made. Later data is neither
     * encrypted nor authenticated, nor are the connections that NCCL makes: an attacker who can change packets can change data.
     *
     * Without a token, any program that reaches the port and knows the engine file's fingerprint can join.
     *
     * In both cases process 0 refuses connections from outside the job, continues to wait, and names the last ones if a process is missing
     * when the time is up. A refused process of the job (another file, number, count or token) learns the reason at once; the others learn
     * it at once with a token, else when the time is up. */
    char token[ENG_TOKEN_BYTES];
    /* 1: an engine for GPUs loads no library but the driver, and uses its own kernels instead of the libraries that it was built with.
     * Opens faster (0.2 s for cuBLASLt); some steps take longer. ENG_USAGE if several processes share the engine, since they need NCCL. */
    uint32_t no_libraries;
    /* Called by the thread of eng_open: first with 0 of all bytes, then after pieces of some MB of the weights, at last with all. If several
     * processes share the engine, bytes are those of this process, and cancelling fails all of them. */
    eng_progress_callback *progress;
    void *progress_context;
    /* Called for what an operator may want to know: opened engines and failures to, sessions with the reasons of fallback and detour
     * (struct eng_session_facts), sequences that are set aside, sessions that have failed. Called by the threads that call this library
     * with the engine and its sessions; it must not call the library. Results and errors do not depend on it. */
    eng_log_callback *log;
    void *log_context;
    /* Where large host memory comes from instead of the system, such as a NUMA node's or one that is counted: the weights with
     * private_weights; of each session the token buffers, for processors the KV pages and scratch memory, for GPUs the host's copy of
     * logits. All other memory (the tables of engine and session, tokenizer, libraries, pinned memory of the driver) comes from malloc, the
     * system and the driver as before. Memory is taken by eng_open and eng_session_create and given back with engine and session, by any
     * thread that does so. Both or none. */
    eng_memory_take *memory_take;
    eng_memory_give *memory_give;
    void *memory_context;
};
static inline void eng_open_options_init(struct eng_open_options *given) { eng_struct_init(given, sizeof *given); }

/* Sets process, processes, local_process, local_processes and, if they are empty, address and token from the environment variables of
 * torchrun, Open MPI, MPICH or Intel MPI.
 *
 * address: MASTER_ADDR at one port above MASTER_PORT. mpirun needs neither if all processes are on this machine: the port then follows from
 * the name of an Open MPI job. MPICH has no such name, so that two of its jobs at the same time need different MASTER_PORTs.
 *
 * token: ENG_JOB_TOKEN (1 to 255 bytes), else torchrun's TORCHELASTIC_RUN_ID unless that is "none". A run id tells jobs apart but is easy
 * to guess and may be visible in torchrun's command line. If others can reach the port, set ENG_JOB_TOKEN to the same random text in all
 * processes.
 *
 * ENG_USAGE: none of these has started this process, or a variable is wrong. [any] */
ENG_API enum eng_status eng_open_options_from_launcher(struct eng_open_options *options, struct eng_error *error);

/* Opens an engine file and verifies all of it: structure, checksums, every launch of every plan, every weight. This also reads the weights
 * into memory, or copies them to the GPU. `options` may be NULL. Requires for a GPU: the model that the engine was built for, with room for
 * weights, kernels and a small session (else ENG_MACHINE). [any]
 *
 * Requires: the file is neither written nor truncated while it is open. Replace an engine by rename ("cp new.eng model.tmp && mv model.tmp
 * model.eng"), not in place ("cp new.eng model.eng"). An open engine keeps using the old file after a rename.
 *
 * All sections but the weights are copied before they are checked, so later changes have no effect on them. An engine for processors
 * without private_weights uses the weights in the page cache. A change of size or modification time during eng_open is ENG_CORRUPT. Later
 * changes are found by eng_session_create and, a hundred times a second, by eng_step, eng_prefill, eng_decode, eng_decode_steps and
 * eng_selftest, which then fail with ENG_CORRUPT, from then on always in that session; steps in the hundredth of a second before may have
 * used changed weights. If the file is truncated, access to the missing weights, before the change is found, ends the process with SIGBUS,
 * also during eng_open. */
ENG_API enum eng_status eng_open(const char *path, const struct eng_open_options *options, struct eng_engine **engine,
                                 struct eng_error *error);
/* The same for a file that is open for reading, such as one that a sandbox was given. The library has a descriptor of its own afterwards, and
 * does not use the file's position. Messages name the file "descriptor N". [any] */
ENG_API enum eng_status eng_open_descriptor(int descriptor, const struct eng_open_options *options,
                                            struct eng_engine **engine, struct eng_error *error);
/* Closes the engine. Its memory is released when its last session and text stream are destroyed. [any] */
ENG_API void eng_close(struct eng_engine **engine);

/* Returns the engine's manifest and facts of this load as JSON text, borrowed until eng_close. [any] */
ENG_API const char *eng_info(const struct eng_engine *engine);

enum { ENG_MAX_EOS_TOKENS = 16 };

struct eng_engine_facts {
    size_t struct_size;
    uint32_t vocab_size;
    uint32_t max_context; /* tokens of one sequence */
    uint32_t slots;       /* sequences that can run at the same time: the largest decode batch */
    uint32_t page_tokens; /* tokens of one KV page */
    uint64_t page_bytes;  /* of each rank; a page holds tokens of the layers of one page group */
    uint64_t weights_bytes;
    uint64_t file_bytes;
    int32_t bos_token; /* -1: none */
    uint32_t eos_count;
    int32_t eos_tokens[ENG_MAX_EOS_TOKENS];
    uint32_t has_tokenizer; /* 1: eng_tokenize, eng_detokenize and text streams work */
    uint32_t has_chat;      /* 1: eng_chat works */
    uint32_t golden_tokens; /* distinct tokens that eng_selftest compares; 0: the engine has none */
    int32_t chat_end_token; /* ends an answer in the chat template: a stop token for chats; -1: none */
    double open_seconds;    /* duration of eng_open */
    double verify_seconds;  /* part of open_seconds: verifying the weights */
    uint32_t ranks;         /* GPUs, or groups of threads, that share the model; weights_bytes is the sum of all */
    uint32_t hidden_size;   /* elements of a hidden state; 0: the engine gives none (engbuild --hidden) */
};
static inline void eng_engine_facts_init(struct eng_engine_facts *given) { eng_struct_init(given, sizeof *given); }
/* Fills *facts: what a caller needs to size its buffers. Requires: eng_engine_facts_init was called. [any] */
ENG_API enum eng_status eng_engine_get_facts(const struct eng_engine *engine, struct eng_engine_facts *facts,
                                             struct eng_error *error);

/* ---- Text ---- */

enum eng_text_flags {
    /* tokenize: adds what the tokenizer puts around a text, such as the beginning-of-sequence token */
    ENG_TEXT_ADD_SPECIAL = 1,
    /* detokenize, streams: special tokens appear in the text */
    ENG_TEXT_KEEP_SPECIAL = 2,
    /* tokenize: special tokens in the text are ordinary characters, as untrusted text requires (split_special_tokens of
     * transformers); ENG_TEXT_ADD_SPECIAL still adds its own */
    ENG_TEXT_PLAIN = 4
};

/* Converts text[size] to ids and sets *count to their number. More than `capacity` ids: ENG_TOO_LONG, none is written, *count is set (call
 * with capacity 0 to learn it). Invalid UTF-8 is read as U+FFFD. Without ENG_TEXT_PLAIN, special tokens are recognised wherever their text
 * occurs: the author of the text can end a turn or begin one. Work is bounded by the length of the text; a tokenizer whose patterns need
 * more is ENG_BAD_INPUT. [any] */
ENG_API enum eng_status eng_tokenize(const struct eng_engine *engine, const char *text, size_t size, uint32_t flags,
                                     int32_t *tokens, size_t capacity, size_t *count, struct eng_error *error);

/* Converts tokens[count] to NUL-terminated UTF-8 and sets *size to its length without the NUL. *size not less than
 * `capacity`: ENG_TOO_LONG, nothing is written but *size. `count` larger than an array can be: ENG_USAGE. [any] */
ENG_API enum eng_status eng_detokenize(const struct eng_engine *engine, const int32_t *tokens, size_t count,
                                       uint32_t flags, char *text, size_t capacity, size_t *size,
                                       struct eng_error *error);

/* The bytes that a token adds to a text after its first token: not always whole characters. Special tokens have their text. Sets *size and,
 * unless NULL, *is_special; writes nothing and returns ENG_TOO_LONG if they exceed `capacity`. A token without text has size 0. [any] */
ENG_API enum eng_status eng_token_bytes(const struct eng_engine *engine, int32_t token, char *bytes, size_t capacity,
                                        size_t *size, uint32_t *is_special, struct eng_error *error);
/* Sets *token to the token whose content in the vocabulary is text[size], such as "<|im_end|>"; ENG_NOT_FOUND: there is none. [any] */
ENG_API enum eng_status eng_token_find(const struct eng_engine *engine, const char *text, size_t size, int32_t *token,
                                       struct eng_error *error);

/* Converts ids to text one at a time. The concatenated texts of all pushes and the finish equal the text of
 * eng_detokenize for all ids; no push ends within a character. */
struct eng_text;
ENG_API enum eng_status eng_text_create(const struct eng_engine *engine, uint32_t flags, struct eng_text **stream,
                                        struct eng_error *error); /* [any] */
/* Adds one id and returns the text that it completes: NUL-terminated, often empty, borrowed until the next call on the
 * stream. [stream] [no allocation] */
ENG_API enum eng_status eng_text_push(struct eng_text *stream, int32_t token, const char **text, size_t *size,
                                      struct eng_error *error);
/* Returns the remaining text, borrowed until the next call on the stream. The stream then starts anew. [stream] [no allocation] */
ENG_API enum eng_status eng_text_finish(struct eng_text *stream, const char **text, size_t *size,
                                        struct eng_error *error);
ENG_API void eng_text_destroy(struct eng_text **stream); /* [stream] */

enum { ENG_MAX_STOP_STRINGS = 16, ENG_MAX_STOP_BYTES = 1024 };
/* From now on the stream's text ends before the first of strings[count], NUL-terminated UTF-8 of 1 to ENG_MAX_STOP_BYTES bytes each, also
 * where tokens divide it: pushes hold back text with which one may begin, until more text decides or eng_text_finish returns it. The
 * stop string that ends first counts, of those that end together the longest. Texts of the stream after eng_text_finish have the same
 * ones. Count 0: none, as at first. ENG_USAGE: the stream holds text back. [stream] */
ENG_API enum eng_status eng_text_set_stops(struct eng_text *stream, const char *const *strings, size_t count,
                                           struct eng_error *error);
/* Returns the index of the stop string that ended the text, after which pushes and the finish return none; -1: it goes on. [stream]
 * [no allocation] */
ENG_API int32_t eng_text_stopped(const struct eng_text *stream);

/* Conversations. The checkpoint's chat template makes one text of the messages, as apply_chat_template of transformers does. An engine
 * without a usable template is ENG_BAD_INPUT, and the message has the reason (eng_engine_facts.has_chat). A template that refuses a
 * conversation, and one that takes more steps, memory or depth than templates may, are ENG_BAD_INPUT and ENG_TOO_LONG. Templates reach no
 * file and no network; they may ask for the local time. */

struct eng_message {
    const char *role;    /* "system", "user", "assistant", ... as the template expects */
    const char *content; /* UTF-8, NUL-terminated */
};
enum eng_chat_flags {
    ENG_CHAT_ANSWER = 1, /* eng_chat: ends with the beginning of an answer, which the model completes */
    /* special tokens in the text of messages are recognised, as transformers does; only for texts that the program itself has made */
    ENG_CHAT_CONTENT_SPECIAL = 8
};
/* Converts messages to ids. Their contents are plain text: special tokens and marks of turns in them are ordinary characters, so that no
 * content can end its turn or begin another; contents without any give the ids that transformers gives. Roles are not protected: take them
 * from the program, not from its user. tokens, capacity, count: as in eng_tokenize. [any] */
ENG_API enum eng_status eng_chat(const struct eng_engine *engine, const struct eng_message *messages,
                                 size_t message_count, uint32_t flags, int32_t *tokens, size_t capacity, size_t *count,
                                 struct eng_error *error);
/* The same for all that templates know. `variables`: NUL-terminated JSON, an object with what apply_chat_template takes: "messages",
 * "tools", "documents", "add_generation_prompt", variables of the model's own such as "enable_thinking", and in "chat_template" the name of
 * a template if not the usual one. Special tokens (bos_token ...) are variables, too, unless the object has them; strings in the object are
 * contents. `now`: what templates see as the local time, such as "2026-01-02T03:04:05"; NULL: the clock's. [any] */
ENG_API enum eng_status eng_chat_tokens(const struct eng_engine *engine, const char *variables, const char *now,
                                        uint32_t flags, int32_t *tokens, size_t capacity, size_t *count,
                                        struct eng_error *error);
/* Returns the text of a chat template, NUL-terminated, borrowed until eng_close; `name` NULL: the template for conversations with
 * tools. NULL: the engine has no such template, or it cannot be used. Programs find in it how the model writes tool calls. [any] */
ENG_API const char *eng_chat_template(const struct eng_engine *engine, const char *name);

/* Gives the text of which eng_chat_tokens gives the ids, NUL-terminated; needs no tokenizer. capacity, size: as in eng_detokenize. [any] */
ENG_API enum eng_status eng_chat_render(const struct eng_engine *engine, const char *variables, const char *now,
                                        char *text, size_t capacity, size_t *size, struct eng_error *error);

/* ---- Session ---- */

/* Threads, scratch memory, KV pages, slots and sequences for running an engine. An engine for several GPUs has one session at a time. */
struct eng_session;

struct eng_session_options {
    size_t struct_size;
    uint32_t threads;       /* 0: one per processor that this process may use */
    uint32_t max_sequences; /* limit of sequences that exist, waiting ones included; 0: 4 per slot, at least 64 */
    /* Size of the KV pool in tokens, rounded up to pages; 0: as kv_bytes. Layers with a sliding window get as many pages as
     * these tokens need, however they are divided among the slots. A pool is never larger than a full context for every
     * slot; eng_session_facts.pages is its actual size. */
    uint64_t kv_tokens;
    /* Size of the KV pool of each rank in bytes, rounded down to pages. 0: a full context for every slot or, if less, what half of the
     * available memory holds (of a GPU: nine tenths of its free memory), but at least one full context. */
    uint64_t kv_bytes;
    /* "portable", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"; NULL: the best that this processor has. Must be NULL for
     * GPUs. Where the processor has AMX, the library asks the system once to let this process use its tile registers. The system
     * refuses where a thread has an alternate signal stack (sigaltstack) without room for them, 8 KiB; then "avx512bf16" is the
     * best. After it has agreed, it refuses such stacks. */
    const char *instruction_set;
    /* 1: sequences use no KV pages of other sequences that began with the same tokens. See "Sequences". */
    uint32_t no_prefix_cache;
    /* Most tokens of prompts that one step computes while other sequences decode: what their next tokens wait for. 0: as many as the
     * engine's plans take, which computes prompts fastest. */
    uint32_t prompt_step;
    /* Milliseconds that a step may take while sequences decode and prompts are computed: what tokens of an answer wait for each other.
     * Sets how many tokens of prompts such a step computes by the time that earlier ones took, at most prompt_step and at least 8, also
     * where that takes longer. On a GPU how a prompt is divided changes the rounding of its results. ENG_USAGE if several processes share
     * the engine: their times differ, and so would their steps. 0: prompt_step alone. */
    uint32_t step_ms;
    /* Models with recurrent layers: memory of each rank, on a GPU of that GPU, for the prefix cache's states at earlier places of
     * sequences, rounded down to states, of which there are at most 64; less than one turns the cache off. 0: 256 MiB, but at least 4
     * states. Other models need none. */
    uint64_t checkpoint_bytes;
    /* Speculation: most tokens that are drafted for a sequence in one step; 0: none. Where the last tokens of a sequence have occurred in it
     * before, the tokens that followed there are a draft of the next ones, and one step of a verification plan draws a token at each of their
     * places: a drafted token is appended only if it is the one drawn there. On processors a sequence has the same tokens as without. On a
     * GPU a verification plan rounds differently from a decode plan, as plans of other numbers of rows do, so where two tokens are nearly
     * equally likely it may draw the other one, and all after it may differ. eng_sequence_poll may return several tokens of a step. How many
     * are drafted follows how often drafts were right. Sequences with a grammar, ENG_SEQUENCE_ALLOWED, ENG_SEQUENCE_LOGITS, ENG_SEQUENCE_HIDDEN,
     * repetition_penalty, presence_penalty or frequency_penalty are not drafted for. Without effect where the engine has no verification plans:
     * those of engbuild --verify-rows. An engine of --mtp predicts a token by the model's own layer: the draft where the text has no likelier one.
     * Models with recurrent layers compute last tokens again after a wrong draft; for several sequences they need mixed plans. Takes 256 KiB for each
     * slot at most, and a recurrent state (on a GPU two) for each two rows of the largest verification plan. All processes must set the same. */
    uint32_t speculate;
    /* Another engine with the same tokens, usually of a smaller model, which drafts greedily where a sequence's own text has no likely draft,
     * in place of the engine's own predictions; NULL: none. It may be closed before the session. If it fails, so does eng_step. It has KV
     * pages for kv_tokens tokens, too; 0: full contexts for as many sequences as are verified at once or, if less, an eighth of the memory
     * that its pool could have alone, but one context at least. ENG_USAGE: speculate is 0, the engine has no verification plans, the tokens
     * differ, the draft engine has recurrent layers or a window with chunks shorter than `speculate`, or several processes share one of them. */
    struct eng_engine *draft;
    /* Host memory, beyond memory_bytes, for KV pages of sequences that are set aside, where copying them there and back takes less time than
     * computing them again and, with step_ms, than two such steps; less than a page, or several processes that share the engine: none. 0: on GPUs
     * as much as the KV pool has, at most 4 GiB and a quarter of the available memory; on processors, whose pool may be larger instead, none. */
    uint64_t kept_bytes;
};
static inline void eng_session_options_init(struct eng_session_options *given)
{
    eng_struct_init(given, sizeof *given);
}
/* Creates a session. All memory that it needs, but for tables of about 5 bytes for each token of the KV pool, is known
 * exactly and is checked against this machine (free memory, control group, address space limit, free GPU memory) before
 * any is taken; too little is ENG_MACHINE. [any] */
ENG_API enum eng_status eng_session_create(struct eng_engine *engine, const struct eng_session_options *options,
                                           struct eng_session **session, struct eng_error *error);
ENG_API void eng_session_destroy(struct eng_session **session); /* [session] */

struct eng_session_facts {
    size_t struct_size;
    uint32_t threads;
    uint32_t slots, free_slots;
    uint32_t pages, free_pages;
    uint32_t max_sequences;
    uint64_t memory_bytes;       /* all private memory of the session */
    uint64_t kv_bytes;           /* part of memory_bytes: the KV pool */
    const char *instruction_set; /* for a GPU its architecture, such as "sm_90a"; borrowed until eng_session_destroy */
    const char *device;          /* name of the GPU, borrowed likewise; NULL: processors */
    uint64_t device_bytes;       /* part of memory_bytes: GPU memory, without the engine's weights and kernels */
    /* GPU bytes of engine and session: predicted, without a draft engine's; and by what free memory fell since eng_open. 0: processors */
    uint64_t device_contract_bytes, device_taken_bytes;
    double graph_seconds; /* time to make the graphs of all plans */
    const char *
        fallback; /* why the engine's own kernels replace a library that it was built with; borrowed likewise; NULL: they do not */
    const char
        *detour; /* why GPUs exchange data through host memory, which is slower than access to each other's; likewise */
    uint32_t cached_pages;  /* part of free_pages: their content can be used again until they are taken */
    uint64_t cached_tokens; /* of prompts, so far, that were not computed, since the prefix cache had them */
    uint64_t set_aside;     /* times, so far, that a sequence was set aside for want of pages */
    uint64_t drafted_tokens, accepted_tokens; /* by speculation, so far: verified, and part of them: appended */
    uint32_t speculate;        /* as in the options; 0: also where the engine has no verification plans */
    uint64_t kept_bytes, kept; /* pages of sequences that are set aside: kept now; times, so far, that they were */
};
static inline void eng_session_facts_init(struct eng_session_facts *given) { eng_struct_init(given, sizeof *given); }
/* Fills *facts. Requires: eng_session_facts_init was called. [session] [no allocation] */
ENG_API enum eng_status eng_session_get_facts(const struct eng_session *session, struct eng_session_facts *facts,
                                              struct eng_error *error);

enum { ENG_MAX_LOGIT_BIASES = 1024 };
struct eng_logit_bias {
    int32_t token;
    float bias; /* added to the token's logit; -100 to 100 */
};

/* How tokens are drawn. The n-th draw of a sequence uses the n-th random number of its seed, so its tokens depend only
 * on its own prompt and settings, never on other sequences. Order: repetition_penalty, logit_bias, presence_penalty and
 * frequency_penalty, allowed tokens, temperature, top_k and min_p, top_p. */
struct eng_sampling {
    size_t struct_size;
    float temperature;        /* 0 or more; 0: greedy, the most likely token (the lowest id among equals) */
    float top_p;              /* keep the likeliest tokens whose probabilities sum up to this; 0 or 1: all */
    float repetition_penalty; /* of tokens that occurred in prompt or answer: 0.01 to 1000000; 0 or 1: none */
    uint32_t top_k;           /* keep the k likeliest tokens; 0: all */
    uint64_t seed;
    /* The fields from here on, where they are not 0, need an engine of format 2.3 or later that was built with this release or a
     * later one (else ENG_VERSION).
     *
     * keep the tokens whose probability is at least min_p times that of the likeliest token, after temperature and before
     * top_p; 0: all; at most 1 */
    float min_p;
    /* -2 to 2, 0: none. Subtracted from the logits of tokens that occur in the answer: presence_penalty once, frequency_penalty
     * for each occurrence. The answer are the tokens drawn since the latest prompt. */
    float presence_penalty, frequency_penalty;
    uint32_t logit_bias_count; /* at most ENG_MAX_LOGIT_BIASES */
    const struct eng_logit_bias
        *logit_bias; /* [logit_bias_count]; of entries with the same token the last one applies */
};
static inline void eng_sampling_init(struct eng_sampling *given) { eng_struct_init(given, sizeof *given); }
/* Sets temperature, top_p, top_k and repetition_penalty to the values of the checkpoint's generation_config.json. [any] */
ENG_API enum eng_status eng_sampling_recommended(const struct eng_engine *engine, struct eng_sampling *sampling,
                                                 struct eng_error *error);

/* ---- Grammars ---- */

/* What an answer may be. Before each draw the tokens that cannot continue it are excluded, so whatever is drawn, an answer that ends by
 * itself (ENG_END_EOS) fits; one that ends by its length is the beginning of one that fits. */
struct eng_grammar;
enum eng_grammar_kind {
    ENG_GRAMMAR_JSON_SCHEMA = 1, /* a document of the JSON Schema `text`, without white space between its parts */
    ENG_GRAMMAR_JSON_OBJECT = 2, /* any JSON object; `text` is not read */
    ENG_GRAMMAR_REGEX = 3,       /* a text that the regular expression matches as a whole */
    ENG_GRAMMAR_CHOICES = 4,     /* one of the strings of the JSON array `text` */
    ENG_GRAMMAR_COMPOSED = 5     /* parts in sequence or in turn, a JSON object as README describes it (Sampling) */
};
/* Compiles text[size]. ENG_BAD_INPUT: it is no such source, or asks for a keyword or construct that is not supported, which the
 * message names with its place; or the engine has no tokenizer or no end token. ENG_VERSION: the engine is older than sampling options.
 * Time and memory are bounded. It keeps its engine open; sequences of all of the engine's sessions can use it at the same time. [any] */
ENG_API enum eng_status eng_grammar_create(const struct eng_engine *engine, enum eng_grammar_kind kind,
                                           const char *text, size_t size, struct eng_grammar **grammar,
                                           struct eng_error *error);
ENG_API void eng_grammar_destroy(struct eng_grammar **grammar); /* [any] */

/* ---- Sequences ---- */

/* A prompt and its answer. Sequences wait in the order of submission until a slot and the pages for the prompt are free. Then they take
 * pages as they grow. Each step runs one plan: one chunk of the oldest unfinished prompt, or one token for every sequence that decodes. If
 * both are possible they alternate, so that a long prompt delays answers by one chunk at a time.
 *
 * If no page is free, the sequence that began last is set aside: it gives its slot and pages back, waits as the first of all
 * (ENG_STATE_WAITING), and goes on later with the same tokens, which are computed again unless kept_bytes has room. The oldest always goes on.
 *
 * Prefix cache. Whole pages of a sequence that ended or was set aside keep their content until they are needed. A sequence that begins with
 * the same tokens uses them, also those of a sequence that still runs, and computes the rest alone. Its tokens are the same as without, up
 * to the rounding of plans of different sizes. In models with sliding windows or recurrent layers it begins at a checkpoint, a copy of the
 * windows' pages (in free pages of the pool) and of the recurrent state (checkpoint_bytes): at the end of a prompt's last whole page, where
 * an earlier text branched off, and at distances of at least 128 tokens in long prompts and answers.
 *
 * A model with longrope has other rotary frequencies for sequences of more tokens than its original context. When a sequence or a slot
 * grows past that length, all of its tokens are processed again, once, which takes as long as a prompt of that length; a slot that was
 * truncated below it is processed again, too, before its next token. */
struct eng_sequence;

enum eng_state {
    ENG_STATE_IDLE = 0,    /* created, nothing submitted */
    ENG_STATE_WAITING = 1, /* for a slot or pages */
    ENG_STATE_PREFILL = 2, /* its prompt is processed, or tokens again: longrope, recurrent layers after a draft */
    ENG_STATE_DECODE = 3,  /* it gets a token at every decode step */
    ENG_STATE_DONE = 4     /* see eng_sequence_end */
};
enum eng_end {
    ENG_END_NONE = 0,      /* not done */
    ENG_END_EOS = 1,       /* the last token is an end or stop token */
    ENG_END_LENGTH = 2,    /* max_new_tokens is reached */
    ENG_END_CONTEXT = 3,   /* the context is full */
    ENG_END_CANCELLED = 4, /* eng_sequence_cancel */
    /* No token could be drawn: of the tokens that are allowed, a logit was NaN or +infinity, or none was finite. The cause is the
     * checkpoint or a number format (a value overflowed). Slot and pages are free, also with ENG_SEQUENCE_KEEP. Other sequences are not
     * affected: eng_step returns ENG_OK, and their tokens do not change. The prefix cache forgets what led there and never to finite logits. */
    ENG_END_NOT_FINITE = 5,
    /* eng_sequence_set_allowed allowed no token when the next one was to be drawn, or no token continues what the grammar has */
    ENG_END_NONE_ALLOWED = 6
};

enum { ENG_MAX_STOP_TOKENS = 16 };
enum eng_sequence_flags {
    ENG_SEQUENCE_IGNORE_EOS = 1, /* end tokens do not end it; stop_tokens still do */
    /* it keeps slot and pages when it is done, so that more can be submitted; not after CANCELLED or NOT_FINITE */
    ENG_SEQUENCE_KEEP = 2,
    ENG_SEQUENCE_LOGITS = 4, /* required for eng_sequence_logits and eng_sequence_logprobs on a GPU */
    /* Required for eng_sequence_set_allowed. On several GPUs no step of the sequence is queued before its last token is known. */
    ENG_SEQUENCE_ALLOWED = 8,
    /* Required for eng_sequence_hidden. ENG_VERSION: the engine gives no hidden states (eng_engine_facts.hidden_size). */
    ENG_SEQUENCE_HIDDEN = 16,
    /* The same, and eng_sequence_hidden gives the mean of the hidden states of the prompt's tokens, with the first token of the answer alone.
     * The prompt is computed as with prompt_logprobs. */
    ENG_SEQUENCE_HIDDEN_MEAN = 32
};

struct eng_sequence_options {
    size_t struct_size;
    const struct eng_sampling *sampling; /* NULL: greedy */
    const int32_t *stop_tokens;          /* [stop_count], in addition to the engine's end tokens */
    uint32_t stop_count;                 /* at most ENG_MAX_STOP_TOKENS */
    uint32_t max_new_tokens;             /* for each submit; 0: until the context is full */
    /* Most tokens that it holds in total; 0: prompt and answer or, with ENG_SEQUENCE_KEEP, the engine's whole context. */
    uint32_t context_tokens;
    uint32_t flags; /* enum eng_sequence_flags */
    /* Each answer follows it from its first token on, and ends where it ends; NULL: none. The sequence keeps it. Not with
     * ENG_SEQUENCE_IGNORE_EOS or ENG_SEQUENCE_ALLOWED. Creating the sequence and its steps then allocate memory. */
    struct eng_grammar *grammar;
    /* Log-probabilities of each prompt's tokens, for eng_sequence_prompt_logprobs: -1: of the tokens alone; n, at most ENG_MAX_LOGPROBS:
     * and of the n likeliest ones in each place; 0: none. The prompt takes longer: it is computed by the engine's verification plans
     * (engbuild --verify-rows; 8 tokens a step by default on processors), without them by decode plans (a token a step), and tokens whose
     * log-probabilities are asked for do not come from the prefix cache, which gets them as usual. Submitting then allocates memory (else
     * ENG_MACHINE): 8 (1 + n) bytes for each token of the prompt. */
    int32_t prompt_logprobs;
};
static inline void eng_sequence_options_init(struct eng_sequence_options *given)
{
    eng_struct_init(given, sizeof *given);
}

/* Creates a sequence. ENG_FULL: max_sequences exist. [session] [no allocation] */
ENG_API enum eng_status eng_sequence_create(struct eng_session *session, const struct eng_sequence_options *options,
                                            struct eng_sequence **sequence, struct eng_error *error);

/* Submits a prompt of at least one token and queues the sequence. With ENG_SEQUENCE_KEEP it may be called again when the sequence is done
 * and all its tokens have been polled: the tokens follow those that the sequence has, the last drawn one included. ENG_TOO_LONG: the tokens
 * exceed the context or context_tokens, or prompt and answer exceed the whole KV pool. [session] [no allocation], but with prompt_logprobs
 * and ENG_SEQUENCE_HIDDEN_MEAN */
ENG_API enum eng_status eng_sequence_submit(struct eng_sequence *sequence, const int32_t *tokens, size_t count,
                                            struct eng_error *error);

/* Runs one step and sets *unfinished (may be NULL) to the number of sequences that still wait or run. Does nothing if there are none.
 * ENG_FULL: sequences wait, and none can run because kept sequences or raw slots hold the slots or pages. [session] [no allocation] */
ENG_API enum eng_status eng_step(struct eng_session *session, uint32_t *unfinished, struct eng_error *error);

/* Takes up to `capacity` tokens drawn since the last poll, in order, end tokens included. Returns how many. [session] [no allocation] */
ENG_API size_t eng_sequence_poll(struct eng_sequence *sequence, int32_t *tokens, size_t capacity);
ENG_API enum eng_state eng_sequence_state(const struct eng_sequence *sequence); /* [session] [no allocation] */
ENG_API enum eng_end eng_sequence_end(const struct eng_sequence *sequence);     /* [session] [no allocation] */
/* Returns how many tokens of the latest prompt the prefix cache had. They are all counted when the answer's first token is drawn; those that
 * are found again after the sequence was set aside do not count. [session] [no allocation] */
ENG_API uint32_t eng_sequence_cached_tokens(const struct eng_sequence *sequence);

/* Event loops. Sets *descriptor to a file descriptor that becomes readable when a sequence gets tokens or ends (but not by
 * eng_sequence_cancel and eng_sequence_destroy): an eventfd, non-blocking and closed on exec. Read its 8 bytes first, then poll the
 * sequences: so no event is lost. It belongs to the session and is closed by eng_session_destroy; use it for poll, epoll and read only.
 * ENG_MACHINE: the process has no file descriptor left. [session] */
ENG_API enum eng_status eng_session_wake_fd(struct eng_session *session, int *descriptor, struct eng_error *error);
/* The same as a function: at its end eng_step calls `callback` once for each sequence that got tokens or ended since, in that order, in
 * its own thread. The function may call everything on sequences and slots but eng_step, and may destroy the sequence; it must not destroy
 * the session. NULL: none, as at first. [session] [no allocation] */
typedef void eng_sequence_callback(void *context, struct eng_sequence *sequence);
ENG_API enum eng_status eng_session_set_callback(struct eng_session *session, eng_sequence_callback *callback,
                                                 void *context, struct eng_error *error);

/* Sets the tokens that may be drawn next, until the next call: token t if bit t % 32 of allowed[t / 32] is set. `words` is
 * vocab_size / 32, rounded up; further bits are ignored. NULL with `words` 0: all tokens. May be called between any two steps,
 * also before eng_sequence_submit. If no token is allowed, the next step that would draw ends the sequence
 * (ENG_END_NONE_ALLOWED). End and stop tokens are tokens like all others. Requires: ENG_SEQUENCE_ALLOWED. ENG_VERSION: the
 * engine was built before there were sampling options. [session] [no allocation] */
ENG_API enum eng_status eng_sequence_set_allowed(struct eng_sequence *sequence, const uint32_t *allowed, size_t words,
                                                 struct eng_error *error);

/* Returns the logits [vocab_size] from which the last step drew this sequence's token (its last one, where it drew several), before penalty
 * and temperature; NULL if it drew none, or on a GPU without ENG_SEQUENCE_LOGITS. Borrowed until the session's next step, prefill or
 * decode. [session] [no allocation] */
ENG_API const float *eng_sequence_logits(const struct eng_sequence *sequence);

/* Returns the hidden state [hidden_size] of the token from which the last step drew this sequence's token: the output of the final norm,
 * which the LM head multiplies, in float32, not scaled to length 1. For an embedding of a prompt submit it with max_new_tokens 1 and
 * ENG_SEQUENCE_IGNORE_EOS. On a GPU its inputs are rounded as the engine's activations are; the norm is not. NULL if the step drew no
 * token, or without ENG_SEQUENCE_HIDDEN; ENG_SEQUENCE_HIDDEN_MEAN says what it gives instead. Borrowed until the session's next step,
 * prefill or decode. [session] [no allocation] */
ENG_API const float *eng_sequence_hidden(const struct eng_sequence *sequence);

enum { ENG_MAX_LOGPROBS = 20 };
struct eng_logprob {
    int32_t token;
    float logprob; /* natural logarithm of its probability; -infinity: 0 */
};
/* Sets *drawn (may be NULL) to the token that the last step drew for this sequence, and top[count] to the `count` likeliest tokens, the
 * likeliest first, of equal ones the lowest; tokens -1 beyond the vocabulary. The probabilities are those of the model: from the logits of
 * eng_sequence_logits, before penalties, biases, allowed tokens and temperature. Takes about 5 ns of the calling thread for each token of
 * the vocabulary. Requires: count is at most ENG_MAX_LOGPROBS. ENG_USAGE: eng_sequence_logits returns NULL. [session] [no allocation] */
ENG_API enum eng_status eng_sequence_logprobs(const struct eng_sequence *sequence, struct eng_logprob *drawn,
                                              struct eng_logprob *top, size_t count, struct eng_error *error);

/* Sets *own (may be NULL) to the token at `position` of the sequence, from 1 on, with its log-probability after the tokens before it, and
 * top[count] to the likeliest tokens there, as eng_sequence_logprobs does for drawn ones. The latest prompt alone has them, each from the
 * step on that computed it: all of them when the first token of the answer is drawn. NaN and tokens -1: the logits are not finite. Numbers
 * are those of steps of one token up to the rounding of plans of other sizes. Requires: count is at most prompt_logprobs (0 with -1).
 * ENG_USAGE: there are none of this position. [session] [no allocation] */
ENG_API enum eng_status eng_sequence_prompt_logprobs(const struct eng_sequence *sequence, size_t position,
                                                     struct eng_logprob *own, struct eng_logprob *top, size_t count,
                                                     struct eng_error *error);

/* Creates a sequence that goes on from where `sequence` is, with the same tokens: a second answer, or a second conversation if `sequence`
 * is done and kept. It shares the KV pages that are full and copies the last one (with sliding windows: those of the window) and
 * recurrent state. All tokens that it begins with count as polled; max_new_tokens and penalties count the answer from its beginning.
 * `options` as in eng_sequence_create; NULL: those of `sequence`. Without sampling in them the sampler of `sequence` goes on, with the
 * random number of its next draw, else draws begin with the first number of the seed. A grammar that `sequence` does not have must allow
 * its answer so far (ENG_USAGE). prompt_logprobs and ENG_SEQUENCE_HIDDEN_MEAN are for prompts submitted to the fork: of those before it
 * has none, also where one is still computed.
 *
 * The fork of a sequence that runs goes on at once if none waits and a slot and pages are free; otherwise it waits as the last, and its
 * tokens are computed again. ENG_FULL: max_sequences exist, or `sequence` is done and no slot or too few pages are free. ENG_USAGE:
 * `sequence` has no tokens, or has ended and was not kept. [session] [no allocation], but with a grammar */
ENG_API enum eng_status eng_sequence_fork(struct eng_sequence *sequence, const struct eng_sequence_options *options,
                                          struct eng_sequence **fork, struct eng_error *error);

/* Saves tokens, sampler, KV pages and recurrent state to a file, which appears completely or not at all and replaces one of that name. A
 * sequence that has no slot is saved without pages and state, any without log-probabilities of its prompt. ENG_USAGE: several processes
 * share the engine, or the sequence has logit biases. [session] */
ENG_API enum eng_status eng_sequence_save(struct eng_sequence *sequence, const char *path, struct eng_error *error);
/* Creates a sequence from such a file: done and kept, as with ENG_SEQUENCE_KEEP, so that more can be submitted; all of its tokens count as
 * polled. Other sequences do not use its pages, since their numbers may be any. `options` as in eng_sequence_create; without sampling in
 * them its draws go on where they were. The file must be of this engine file (ENG_VERSION) and undamaged (ENG_CORRUPT). ENG_FULL: no slot
 * or too few pages are free. [session] */
ENG_API enum eng_status eng_sequence_restore(struct eng_session *session, const char *path,
                                             const struct eng_sequence_options *options, struct eng_sequence **sequence,
                                             struct eng_error *error);

/* Ends the sequence (ENG_STATE_DONE) and frees its slot and pages. Tokens drawn so far can still be polled. [session] */
ENG_API void eng_sequence_cancel(struct eng_sequence *sequence);
/* The same from any thread, also while another thread is in eng_step, and without waiting for it: the sequence is cancelled at the end of
 * that step, or at the beginning of the next one. Requires: the sequence is not destroyed during the call. ENG_USAGE, and nothing happens:
 * several processes share the engine, which would cancel between different steps; the function of eng_open_options.log hears it. [any]
 * [no allocation] */
ENG_API enum eng_status eng_sequence_cancel_async(struct eng_sequence *sequence);
/* Cancels the sequence and destroys it. [session] [no allocation] */
ENG_API void eng_sequence_destroy(struct eng_sequence **sequence);

/* ---- Slots ---- */

/* A slot holds the KV pages and the sampler of one sequence. Its position is the number of tokens that it holds. Calls that append tokens
 * take pages as needed and return ENG_FULL, before they compute anything, if too few are free.
 *
 * eng_prefill, eng_decode and eng_decode_steps return ENG_NOT_FINITE if the logits of a slot are not finite (see ENG_END_NOT_FINITE). The
 * message names the slot, and its next token is -1. Everything else is as after ENG_OK: tokens were appended to all slots of the call, and
 * the tokens and logits of the other slots are valid and the same as without this one. The slot remains acquired and returns ENG_NOT_FINITE
 * as long as it holds the tokens that led there. */

/* Acquires a free slot: greedy, position 0. ENG_FULL: none is free. [session] [no allocation] */
ENG_API enum eng_status eng_slot_acquire(struct eng_session *session, uint32_t *slot, struct eng_error *error);
/* Releases the slot and its pages. [session] [no allocation] */
ENG_API enum eng_status eng_slot_release(struct eng_session *session, uint32_t slot, struct eng_error *error);
/* Sets the sampler and restarts its draws. The slot's answer, whose tokens presence_penalty and frequency_penalty count, begins
 * here, and again at the end of each eng_prefill. [session] [no allocation] */
ENG_API enum eng_status eng_slot_set_sampling(struct eng_session *session, uint32_t slot,
                                              const struct eng_sampling *sampling, struct eng_error *error);
/* As eng_sequence_set_allowed, for the slot's next draws. ENG_USAGE: no token is allowed. [session] [no allocation] */
ENG_API enum eng_status eng_slot_set_allowed(struct eng_session *session, uint32_t slot, const uint32_t *allowed,
                                             size_t words, struct eng_error *error);
ENG_API enum eng_status eng_slot_position(const struct eng_session *session, uint32_t slot, uint32_t *position,
                                          struct eng_error *error); /* [session] [no allocation] */
/* Removes the tokens from `position` on, also from the repetition penalty. Requires: position is at most the current one. Pages of layers
 * with a sliding window hold the window's tokens alone, and recurrent state is that of the last token. If what belongs before `position` is
 * gone, the remaining tokens are computed again, which takes as long as eng_prefill. [session] [no allocation] */
ENG_API enum eng_status eng_slot_truncate(struct eng_session *session, uint32_t slot, uint32_t position,
                                          struct eng_error *error);

/* Appends tokens[count] to the slot and draws the next token, which is not appended. next_token and logits
 * [vocab_size], from which it was drawn, may be NULL; if both are NULL nothing is drawn. [session] [no allocation] */
ENG_API enum eng_status eng_prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, size_t count,
                                    int32_t *next_token, float *logits, struct eng_error *error);

/* Appends tokens[i] to slots[i] and draws next_tokens[i], for each i below `count`. logits: [count, vocab_size] or
 * NULL. Requires: the slots are different. [session] [no allocation] */
ENG_API enum eng_status eng_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens,
                                   size_t count, int32_t *next_tokens, float *logits, struct eng_error *error);

/* Runs `steps` decode steps, each with the tokens drawn by the one before, as that many calls of eng_decode would;
 * next_tokens: [steps, count]. On a GPU the steps follow each other without a pause. Only ENG_NOT_FINITE ends it early:
 * the step that drew -1 for a slot is then the last, the tokens of later steps are -1 for all slots, and
 * eng_slot_position returns how many were appended. [session] [no allocation] */
ENG_API enum eng_status eng_decode_steps(struct eng_session *session, const uint32_t *slots, const int32_t *tokens,
                                         size_t count, size_t steps, int32_t *next_tokens, struct eng_error *error);

/* Copies the hidden state [hidden_size] of the slot's last token, as eng_sequence_hidden describes it. Requires: the session's last step
 * was of an eng_prefill of the slot with next_token or logits, or of an eng_decode or eng_decode_steps with it (else ENG_USAGE).
 * ENG_VERSION: the engine gives no hidden states. [session] [no allocation] */
ENG_API enum eng_status eng_slot_hidden(struct eng_session *session, uint32_t slot, float *hidden,
                                        struct eng_error *error);

/* ---- Self test ---- */

struct eng_selftest_result {
    size_t struct_size;
    uint32_t tokens;     /* compared, of all plans */
    uint32_t ties;       /* part of `tokens`: drawn differently, the two logits within the tolerance */
    float largest_error; /* of a logit, absolute */
    float tolerance;     /* of a logit, absolute */
    uint32_t plans;      /* that were run */
    uint32_t left_out;   /* tokens that were not compared, since no slot or too few pages were free */
};
static inline void eng_selftest_result_init(struct eng_selftest_result *given)
{
    eng_struct_init(given, sizeof *given);
}
/* Runs every plan in free slots and compares tokens, logits and drafts with the engine's golden outputs: decode plans with as many rows as slots
 * and pages are free, prefill plans with full and partly filled chunks, mixed and verification plans with both. A difference is
 * ENG_INTERNAL, and the message names the plan; logits that are not finite are ENG_NOT_FINITE; *result (may be NULL) is filled in these
 * cases, too. ENG_FULL: a plan cannot run, since no slot or too few pages are free. ENG_BAD_INPUT: the engine has no golden outputs.
 * [session] */
ENG_API enum eng_status eng_selftest(struct eng_session *session, struct eng_selftest_result *result,
                                     struct eng_error *error);

/* Outcome of one plan. */
struct eng_selftest_plan {
    size_t struct_size;
    uint32_t is_prefill;      /* 1: a prefill plan; 0: another one, see `kind` */
    uint32_t calls_libraries; /* 1: this session replays its variant that calls libraries */
    uint32_t rows;            /* of the plan: batch size, tokens of a chunk, or both together */
    uint32_t tokens;          /* compared; 0: the plan was not run */
    uint32_t ties, left_out;  /* as in struct eng_selftest_result */
    uint32_t longest_context; /* tokens of the longest context that was compared */
    float largest_error;      /* of a logit, absolute */
    const char *kind;         /* "decode", "prefill", "mixed" or "verify"; constant text */
};
static inline void eng_selftest_plan_init(struct eng_selftest_plan *given) { eng_struct_init(given, sizeof *given); }
/* Fills *plan with the outcome of plan `index` in the session's latest eng_selftest. ENG_USAGE: there is none. [session] [no allocation] */
ENG_API enum eng_status eng_selftest_plan(const struct eng_session *session, size_t index,
                                          struct eng_selftest_plan *plan, struct eng_error *error);

#ifdef __cplusplus
}
#endif

#endif
