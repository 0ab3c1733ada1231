/* SPDX-License-Identifier: Apache-2.0 */
/* The schema of an op: its parameters and operands as data, one definition for both targets and all tools.
 *
 * Everything that needs to know the form of an op derives it from here: graph nodes and their checks, lowering, memory
 * planning, verification of engines, names in dumps and traces, hostile-input tests. A schema describes the problem that
 * an op solves; tunables belong to the kernels that solve it. */
#ifndef KERNELS_OP_SCHEMA_H
#define KERNELS_OP_SCHEMA_H

#include "formats/engine/manifest.h"

/* Limits that keep every product of parameters inside 64 bits. */
enum { OP_MAX_ROWS = 1 << 20, OP_MAX_WIDTH = INT32_MAX, OP_MAX_HEADS = 1 << 12, OP_MAX_HEAD_DIM = 512 };
/* Elements of a row of the KV cache that all heads share (latent attention). */
enum { OP_MAX_LATENT_DIM = 640 };
/* Bits of FLT_MIN, 1 and FLT_MAX. */
enum { OP_FLOAT_MIN_BITS = 0x00800000, OP_FLOAT_ONE_BITS = 0x3f800000, OP_FLOAT_MAX_BITS = 0x7f7fffff };

/* Index of a parameter or an operand that a schema refers to. */
enum { OP_NONE = 255 };

/* ---- parameters ---- */

enum op_param_type {
    PARAM_INTEGER,  /* least to most */
    PARAM_DTYPE,    /* enum dtype: F32, F16 or BF16 */
    PARAM_CODES,    /* the same, or F8_E4M3 or I8: codes in the order of quantise.h, with a scale for each row */
    PARAM_ENCODING, /* enum encoding_id: plain ones, on the CPU all; the op says which it has code for */
    PARAM_FLOAT,    /* bits of a float32, least to most: rising bits are rising floats from 0 on */
};

/* Where lowering takes a parameter's value from. */
enum op_param_source {
    PARAM_OF_NODE,    /* the graph node */
    PARAM_OF_ROWS,    /* most rows of the launch */
    PARAM_OF_COUNT,   /* which of STEP_COUNTS holds the valid rows */
    PARAM_OF_STEP,    /* token rows of the step */
    PARAM_OF_DRAWS,   /* `operand`, a field of out rows: those of the step; the default where it is absent */
    PARAM_OF_WIDTH,   /* `operand`: elements of a row; of a vector its elements */
    PARAM_OF_WIDER,   /* `operand`, an input: elements of a row where it has more than the op reads, else 0 */
    PARAM_OF_HEIGHT,  /* `operand`, a weight: its rows */
    PARAM_OF_PITCH,   /* `operand`, a weight: elements of a row as stored */
    PARAM_OF_DTYPE,   /* `operand`; the default where it is absent */
    PARAM_OF_LAYOUT,  /* `operand`, a weight: enum tensor_layout */
    PARAM_OF_KV,      /* encoding of the KV cache */
    PARAM_OF_PRESENT, /* `operand`: 1 where it is there, else 0 */
    PARAM_OF_ENGINE,  /* a field of struct plan_geometry, at byte offset `field`: verified against it */
};

/* How a rank's share of a node's parameter follows from the whole model's. */
enum op_param_share { SHARE_ALL, SHARE_HEADS, SHARE_KV_HEADS };

/* Ids in engine files: the parameters of format 2.0 from 1 on, then the tunables of the kernel, if any; parameters that
 * came later from here on, so that tunables keep their ids. A plan leaves out a parameter that has the value that absence
 * stands for (op_param_absent). One that came later is essential where it is present. */
enum { OP_LATER_PARAM_ID = 256 };

struct op_param {
    const char *name; /* lower case; a macro of the same name in upper case specialises device code */
    uint16_t id;      /* never reused */
    uint8_t type;     /* enum op_param_type */
    uint8_t source;   /* enum op_param_source */
    uint8_t operand;  /* index, for sources that name one */
    uint8_t field;    /* PARAM_OF_ENGINE */
    uint8_t share;    /* enum op_param_share */
    int64_t least, most;
    int64_t fallback; /* the value where nothing gives one */
};

/* Its value is a type of elements or an encoding. */
static inline bool op_param_is_type(const struct op_param *param)
{
    return param->type == PARAM_DTYPE || param->type == PARAM_CODES || param->type == PARAM_ENCODING;
}

static inline int64_t op_param_absent(const struct op_param *param)
{
    return param->id < OP_LATER_PARAM_ID ? 0 : param->fallback;
}

/* ---- operands ---- */

enum op_role {
    ROLE_INPUT,     /* value that an earlier node made */
    ROLE_OUTPUT,    /* value that this op makes */
    ROLE_WEIGHT,    /* constant of the engine */
    ROLE_STEP,      /* field of the STEP space */
    ROLE_STATE,     /* field of the STATE space */
    ROLE_KV,        /* the layer's block of a KV page */
    ROLE_HEADER,    /* struct comm_header */
    ROLE_EXCHANGE,  /* buffer that the other ranks see */
    ROLE_WORKSPACE, /* scratch of this launch alone */
    ROLE_COUNTERS,  /* scratch at the start of the arena that is zero before and after each launch */
};

struct op_operand {
    const char *name;
    uint8_t role;    /* enum op_role */
    uint8_t access;  /* enum plan_access; 0: what the role says: ACCESS_READ, OUTPUT ACCESS_WRITE, scratch both */
    uint8_t field;   /* ROLE_STEP: enum step_field; ROLE_STATE: enum state_field */
    uint8_t present; /* parameter that is 0 where the operand is absent; 0: always present */
    uint8_t targets; /* bits 1 << enum engine_target of the targets whose launches have it; 0: all */
    /* Size: times * rows * columns elements of a dtype. */
    uint8_t dtype;          /* parameter that holds it; 0: `fixed` */
    uint8_t fixed;          /* enum dtype */
    uint8_t rows;           /* parameter; OP_NONE: 1 */
    uint8_t columns;        /* parameter; OP_NONE: 1 */
    uint8_t times;          /* parameter; 0: 1 */
    uint16_t element_bytes; /* where it is not of a dtype */
    /* OUTPUT: bits 1 << operand of the inputs whose memory it may take over, and of more of them on the CPU. */
    uint16_t replaces, replaces_cpu;
    /* Elements of a row, where they are no parameter; NULL: `columns`. */
    uint64_t (*width)(const int64_t *params);
    /* Bytes, where rows and columns do not say; false on overflow. NULL: they do. */
    bool (*bytes)(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                  uint64_t *bytes);
};

#endif
