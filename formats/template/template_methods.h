/* SPDX-License-Identifier: Apache-2.0 */
/* Which methods values have. Private to this folder. */
#ifndef FORMATS_TEMPLATE_TEMPLATE_METHODS_H
#define FORMATS_TEMPLATE_TEMPLATE_METHODS_H

#include "formats/template/template_value.h"

/* `arguments`: names in their order; NULL: any. `least`: how many are needed. Without `keywords` they have no names. */
struct method {
    const char *name, *arguments;
    size_t least;
    bool keywords;
};
/* NULL: the object has no method of that name. */
const struct method *method_of(const struct value *object, struct string name);

#endif
