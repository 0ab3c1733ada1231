/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/starts.h"

#include <math.h>

/* Limit relative to the fastest form. Searches of the decode plan of Llama-3.2-1B on an H200 that began at different
 * forms ended up to 7 % apart; a form that begins more than this slower is unlikely to win. */
static const double hopeless = 1.1;

static bool has_start_alike(const struct form_time *forms, const size_t *starts, size_t count, size_t form)
{
    for (size_t s = 0; s < count; s++)
        if (forms[starts[s]].variant == forms[form].variant && forms[starts[s]].uniform == forms[form].uniform)
            return true;
    return false;
}

size_t choose_starts(const struct form_time *forms, size_t count, size_t most, size_t starts[MOST_STARTS])
{
    size_t chosen = 0;
    while (chosen < most) {
        size_t best = count;
        for (size_t f = 0; f < count; f++)
            if (!has_start_alike(forms, starts, chosen, f) && (best == count || forms[f].us < forms[best].us)) best = f;
        if (best == count || isinf(forms[best].us)) break;
        if (chosen > 0 && forms[best].us > hopeless * forms[starts[0]].us) break;
        starts[chosen++] = best;
    }
    return chosen;
}
