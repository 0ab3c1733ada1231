/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the data exchange between ranks: no plan may let a rank overwrite data that a slower one has still to
 * read. */
#include <inttypes.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_verify.h"

/* Bytes [begin, end) of the COMM space. */
struct range {
    uint64_t begin, end;
};

/* Over all plans: the end of the first collectives' buffers, and the start of the last ones'. */
struct exchange {
    uint64_t first_end, last_begin;
};

/* The operands of one launch in the COMM space: the header, and for a collective of ours one buffer. */
static bool verify_operands(const struct plan *plan, const struct plan_launch *launch, struct range *buffer,
                            struct status *status)
{
    int headers = 0, buffers = 0;
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        const struct plan_operand *operand = &plan->operands[launch->first_operand + i];
        if (operand->space != SPACE_COMM) continue;
        if (operand->offset == 0 && operand->bytes == sizeof(struct comm_header)) {
            headers++;
            continue;
        }
        if (operand->offset < sizeof(struct comm_header))
            return status_fail(status, STATUS_CORRUPT,
                               "operand %" PRIu32 ": expected the header of the COMM space or a buffer after it, found "
                               "%" PRIu64 " bytes at offset %" PRIu64,
                               i, operand->bytes, operand->offset);
        buffers++;
        *buffer = (struct range){operand->offset, operand->offset + operand->bytes};
    }
    bool collective = plan_op_is_collective(launch->op) && !plan_calls_collective(launch);
    if (plan_calls_collective(launch) && headers > 0)
        return status_fail(status, STATUS_CORRUPT, "a library call with the header of the COMM space");
    if (headers <= 1 && buffers == collective && (!collective || headers == 1)) return true;
    return status_fail(status, STATUS_CORRUPT, "%d headers and %d buffers of the COMM space, expected %s", headers,
                       buffers, collective ? "one of each" : "at most a header");
}

static bool verify_plan(const struct plan *plan, uint64_t ranks, struct exchange *exchange, struct status *status)
{
    struct range first = {0}, last = {0};
    bool any = false;
    if (plan->header.use == PLAN_USE_APART && ranks == 1)
        return status_fail(status, STATUS_CORRUPT, "use: expected 0 in an engine of one rank, found 1");
    for (uint32_t l = 0; l < plan->header.launch_count; l++) {
        struct range buffer = {0};
        bool collective = plan_op_is_collective(plan->launches[l].op);
        if (collective && ranks == 1)
            return status_fail(status, STATUS_CORRUPT, "launch %" PRIu32 ": a collective of one rank", l);
        if (!verify_operands(plan, &plan->launches[l], &buffer, status))
            return status_prefix(status, "launch %" PRIu32, l);
        if (!collective || plan_calls_collective(&plan->launches[l])) continue;
        if (plan->header.use == PLAN_USE_APART)
            return status_fail(status, STATUS_CORRUPT,
                               "launch %" PRIu32
                               ": a collective in the COMM space, which ranks in different processes do not share",
                               l);
        if (any && buffer.begin < last.end && last.begin < buffer.end)
            return status_fail(status, STATUS_CORRUPT,
                               "launch %" PRIu32 ": its buffer overlaps that of the collective before it", l);
        if (!any) first = buffer;
        last = buffer;
        any = true;
    }
    if (!any) return true;
    if (first.end > exchange->first_end) exchange->first_end = first.end;
    if (last.begin < exchange->last_begin) exchange->last_begin = last.begin;
    return true;
}

bool engine_verify_exchange(const struct engine *engine, struct status *status)
{
    uint64_t ranks = plan_ranks(&engine->manifest.geometry);
    struct exchange exchange = {.last_begin = UINT64_MAX};
    /* With another library each rank would decide by itself whether it is available. */
    for (size_t i = 0; i < engine->call_count; i++)
        if (engine->calls[i].library < LIBRARY_COUNT && (engine->calls[i].library == LIBRARY_NCCL) != (ranks > 1))
            return status_fail(status, STATUS_CORRUPT,
                               "section 'library calls': call %zu: %s in an engine of %" PRIu64 " ranks", i,
                               plan_library_name(engine->calls[i].library), ranks);
    for (size_t i = 0; i < engine->plan_count; i++) {
        if (engine->plans[i].header.use != PLAN_USE_ALWAYS)
            return status_fail(status, STATUS_CORRUPT, "section 'plans': plan %zu: use: expected 0, found %" PRIu32, i,
                               engine->plans[i].header.use);
        const struct plan *other = engine->library_plans ? &engine->library_plans[i] : NULL;
        if (!verify_plan(&engine->plans[i], ranks, &exchange, status))
            return status_prefix(status, "section 'plans': plan %zu", i);
        if (other && other->header.launch_count && !verify_plan(other, ranks, &exchange, status))
            return status_prefix(status, "section 'library plans': plan %zu", i);
    }
    if (exchange.first_end <= exchange.last_begin) return true;
    return status_fail(status, STATUS_CORRUPT,
                       "the buffer of a plan's last collective (from byte %" PRIu64
                       " of the COMM space) overlaps that of a plan's first one (to byte %" PRIu64 ")",
                       exchange.last_begin, exchange.first_end);
}
