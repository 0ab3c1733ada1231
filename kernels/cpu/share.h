/* SPDX-License-Identifier: Apache-2.0 */
/* Division of work among the members of a team: contiguous shares that depend only on sizes. */
#ifndef KERNELS_CPU_SHARE_H
#define KERNELS_CPU_SHARE_H

#include "kernels/cpu/team.h"

struct share {
    int64_t first, last; /* [first, last), empty for members that are not needed */
};

/* Share of `units` for this member. A member with a share gets at least `grain` units, or all if there are fewer: for
 * less work, moving data between processors' caches costs more than it saves. */
static inline struct share team_share(const struct team_member *member, int64_t units, int64_t grain)
{
    int64_t members = grain > 0 ? units / grain : units;
    if (members > member->count) members = member->count;
    if (members < 1) members = 1;
    if (units <= 0 || member->index >= members) return (struct share){0, 0};
    int64_t each = units / members, more = units % members, index = member->index;
    int64_t first = index * each + (index < more ? index : more);
    return (struct share){first, first + each + (index < more)};
}

/* Like team_share, for rows of `width` floats. */
static inline struct share team_share_rows(const struct team_member *member, int64_t rows, int64_t width)
{
    enum { GRAIN_FLOATS = 4096 };
    return team_share(member, rows, width >= GRAIN_FLOATS ? 1 : (GRAIN_FLOATS + width - 1) / width);
}

#endif
