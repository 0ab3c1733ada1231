/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding: its description in config.json and its frequencies.
 *
 * Sources: RoFormer (arXiv 2104.09864), linear interpolation (2306.15595), YaRN (2309.00071), Llama 3.1's wavelength
 * bands (model card and reference code), LongRoPE (2402.13753). The order of roundings is that of transformers, which computes in float32. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/checkpoint/model_config.h"

static const double DEFAULT_THETA = 10000.0, SCALE_MAX = 1e6;
static const double PI = 3.14159265358979323846;

struct range {
    double above, least, most; /* above < number, least <= number <= most */
    const char *expected;
};
static const struct range scales = {.most = 1e6, .expected = "a number above 0, at most 1e6"};

/* A number that is absent and not required is unchanged, but checked, too. */
static bool parse_real(struct json_reader *reader, const char *key, bool required, const struct range *range,
                       double *out, struct status *status)
{
    if (!json_reader_double(reader, key, required, out, status)) return false;
    return (*out > range->above && *out >= range->least && *out <= range->most) ||
           status_fail(status, STATUS_BAD_INPUT, "%s: field '%s': expected %s, found %.17g", reader->path, key,
                       range->expected, *out);
}

static bool parse_theta(struct json_reader *reader, double *theta, struct status *status)
{
    /* divided by its logarithm */
    static const struct range thetas = {.above = 1, .most = 1e15, .expected = "a number above 1, at most 1e15"};
    return parse_real(reader, "rope_theta", false, &thetas, theta, status);
}

/* The scaling type under either key. Versions of transformers differ in which key takes precedence. *dynamic: it is one that changes
 * frequencies beyond max_position_embeddings alone, where no sequence ends. */
static bool parse_type(struct json_reader *reader, enum rope_type *type, bool *dynamic, struct status *status)
{
    static const struct {
        const char *name;
        enum rope_type type;
    } types[] = {{"default", ROPE_DEFAULT},
                 {"dynamic", ROPE_DEFAULT},
                 {"linear", ROPE_LINEAR},
                 {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},
                 {"longrope", ROPE_LONGROPE},
                 {"su", ROPE_LONGROPE}, /* in the first files of Phi 3 */
                 {"proportional", ROPE_PROPORTIONAL}};
    const char *rope_type = NULL, *legacy_type = NULL;
    if (!json_reader_string(reader, "rope_type", false, &rope_type, status) ||
        !json_reader_string(reader, "type", false, &legacy_type, status))
        return false;
    if (rope_type && legacy_type && strcmp(rope_type, legacy_type) != 0)
        return status_fail(status, STATUS_BAD_INPUT, "%s: fields 'rope_type' and 'type' disagree: '%.40s' and '%.40s'",
                           reader->path, rope_type, legacy_type);
    const char *name = rope_type ? rope_type : legacy_type ? legacy_type : "default";
    *dynamic = strcmp(name, "dynamic") == 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) != 0) continue;
        *type = types[i].type;
        return true;
    }
    return status_fail(
        status, STATUS_BAD_INPUT,
        "%s: field '%s': expected default, dynamic, linear, llama3, yarn, longrope or proportional, found '%.80s'",
        reader->path, rope_type ? "rope_type" : "type", name);
}

static bool parse_factor(struct json_reader *reader, double *factor, struct status *status)
{
    static const struct range factors = {.least = 1, .most = 1e6, .expected = "a number from 1 to 1e6"};
    return parse_real(reader, "factor", true, &factors, factor, status);
}

static bool parse_original_max_position(struct json_reader *reader, struct rope_config *rope, struct status *status)
{
    return json_reader_u64(reader, "original_max_position_embeddings", false, 1, 1u << 30, &rope->original_max_position,
                           status);
}

static bool parse_llama3(struct json_reader *reader, struct rope_config *rope, struct status *status)
{
    struct range high = {.most = 1e6, .expected = "a number above low_freq_factor, at most 1e6"};
    if (!parse_real(reader, "low_freq_factor", true, &scales, &rope->low_freq_factor, status)) return false;
    high.above = rope->low_freq_factor;
    return parse_real(reader, "high_freq_factor", true, &high, &rope->high_freq_factor, status) &&
           parse_original_max_position(reader, rope, status);
}

/* An optional number above 0. 0 means absent for keys that transformers treats so. */
static bool parse_optional_scale(struct json_reader *reader, const char *key, bool zero_is_absent, double *out,
                                 struct status *status)
{
    const json_t *given = json_reader_get(reader, key);
    if (!given || (zero_is_absent && json_is_number(given) && json_number_value(given) == 0)) return true;
    return parse_real(reader, key, false, &scales, out, status);
}

static bool parse_yarn(struct json_reader *reader, struct rope_config *rope, struct status *status)
{
    rope->beta_fast = 32.0;
    rope->beta_slow = 1.0;
    rope->truncate = true;
    return parse_optional_scale(reader, "beta_fast", true, &rope->beta_fast, status) &&
           parse_optional_scale(reader, "beta_slow", true, &rope->beta_slow, status) &&
           parse_optional_scale(reader, "attention_factor", false, &rope->attention_factor, status) &&
           parse_optional_scale(reader, "mscale", true, &rope->mscale, status) &&
           parse_optional_scale(reader, "mscale_all_dim", true, &rope->mscale_all_dim, status) &&
           json_reader_bool(reader, "truncate", false, &rope->truncate, status) &&
           parse_original_max_position(reader, rope, status);
}

/* short_factor or long_factor: a number for each frequency. */
static bool parse_factors(struct json_reader *reader, const char *key, uint64_t count, double *factors,
                          struct status *status)
{
    const json_t *list = json_reader_get(reader, key);
    char expected[80];
    snprintf(expected, sizeof expected, "an array of %" PRIu64 " numbers above 0, at most 1e6", count);
    if (!json_is_array(list) || json_array_size(list) != count)
        return json_reader_fail(reader, key, expected, list, status);
    for (uint64_t i = 0; i < count; i++) {
        const json_t *factor = json_array_get(list, i);
        factors[i] = json_is_number(factor) ? json_number_value(factor) : 0;
        if (!(factors[i] > 0 && factors[i] <= SCALE_MAX))
            return json_reader_fail(reader, key, expected, factor, status);
    }
    return true;
}

/* transformers 4 and 5 differ in which factor decides on attention_factor; where the object has one, all must agree. */
static bool parse_longrope(struct json_reader *reader, const struct model_config *config, struct rope_config *rope,
                           struct status *status)
{
    const uint64_t above = rope->original_max_position; /* beside the object */
    double factor = 0;
    if (!parse_factors(reader, "short_factor", rope->rotary_dim / 2, rope->short_factor, status) ||
        !parse_factors(reader, "long_factor", rope->rotary_dim / 2, rope->long_factor, status) ||
        !parse_optional_scale(reader, "attention_factor", false, &rope->attention_factor, status) ||
        !parse_optional_scale(reader, "factor", false, &factor, status) ||
        !parse_original_max_position(reader, rope, status))
        return false;
    if (!rope->original_max_position)
        return json_reader_fail(reader, "original_max_position_embeddings", "an integer, here or beside the object",
                                NULL, status);
    if (above && above != rope->original_max_position)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'original_max_position_embeddings': expected %" PRIu64
                           " as beside it, found %" PRIu64,
                           reader->path, above, rope->original_max_position);
    rope->factor = (double)config->max_position / (double)rope->original_max_position;
    if (factor != 0 && factor != rope->factor)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'factor': expected max_position_embeddings / original_max_position_embeddings = "
                           "%.17g, found %.17g",
                           reader->path, rope->factor, factor);
    return true;
}

/* partial_rotary_factor, of which transformers rounds the product with head_dim down. */
static bool parse_rotary_dim(struct json_reader *reader, uint64_t head_dim, uint64_t *rotary_dim, struct status *status)
{
    static const struct range parts = {.most = 1, .expected = "a number above 0, at most 1"};
    double factor = 1.0;
    if (!json_reader_get(reader, "partial_rotary_factor")) return true;
    if (!parse_real(reader, "partial_rotary_factor", false, &parts, &factor, status)) return false;
    *rotary_dim = (uint64_t)((double)head_dim * factor);
    return (*rotary_dim >= 2 && *rotary_dim % 2 == 0) ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'partial_rotary_factor': expected an even number of rotated elements of the %" PRIu64
                       " of a head, found %" PRIu64 " (%.17g)",
                       reader->path, head_dim, *rotary_dim, factor);
}

/* partial_rotary_factor is the part of the pairs that turn, the first ones; the others are pairs, too, of the frequency 0. */
static bool parse_proportional(struct json_reader *reader, uint64_t dim, struct rope_config *rope,
                               struct status *status)
{
    static const struct range parts = {.most = 1, .expected = "a number above 0, at most 1"};
    double part = 1;
    rope->factor = 1;
    rope->rotary_dim = dim;
    if (!parse_real(reader, "partial_rotary_factor", false, &parts, &part, status) ||
        !parse_optional_scale(reader, "factor", false, &rope->factor, status))
        return false;
    rope->turning_pairs = (uint64_t)(part * (double)dim / 2);
    return true;
}

/* One rope_scaling or rope_parameters object. Keys that its type does not read are refused by name. */
static bool parse_object(struct rope_config *rope, json_t *object, const char *path, const struct model_config *config,
                         uint64_t dim, const struct rope_config *absent, struct status *status)
{
    struct json_reader reader;
    double factor = 1;
    bool done = false, dynamic = false;
    *rope = *absent;
    if (!json_reader_open(&reader, object, path, status)) goto done;
    if (!parse_theta(&reader, &rope->theta, status) || !parse_type(&reader, &rope->type, &dynamic, status)) goto done;
    if (rope->type != ROPE_PROPORTIONAL && !parse_rotary_dim(&reader, dim, &rope->rotary_dim, status)) goto done;
    if (rope->type != ROPE_LONGROPE) rope->original_max_position = 0; /* others read the object's alone */
    switch (rope->type) {
    case ROPE_DEFAULT: done = !dynamic || parse_factor(&reader, &factor, status); break;
    case ROPE_LINEAR: done = parse_factor(&reader, &rope->factor, status); break;
    case ROPE_LLAMA3: done = parse_factor(&reader, &rope->factor, status) && parse_llama3(&reader, rope, status); break;
    case ROPE_YARN: done = parse_factor(&reader, &rope->factor, status) && parse_yarn(&reader, rope, status); break;
    case ROPE_LONGROPE: done = parse_longrope(&reader, config, rope, status); break;
    case ROPE_PROPORTIONAL: done = parse_proportional(&reader, dim, rope, status); break;
    }
    done = done && json_reader_all_consumed(&reader, status);
done:
    json_reader_close(&reader);
    return done;
}

static bool same_rope(const struct rope_config *a, const struct rope_config *b)
{
    return a->type == b->type && a->rotary_dim == b->rotary_dim && a->theta == b->theta && a->factor == b->factor &&
           a->turning_pairs == b->turning_pairs && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original_max_position == b->original_max_position &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow && a->attention_factor == b->attention_factor &&
           a->mscale == b->mscale && a->mscale_all_dim == b->mscale_all_dim && a->truncate == b->truncate &&
           memcmp(a->short_factor, b->short_factor, sizeof a->short_factor) == 0 &&
           memcmp(a->long_factor, b->long_factor, sizeof a->long_factor) == 0;
}

/* What config.json says of the embedding beside its objects. */
struct beside {
    struct rope_config rope;
    bool theta_given, part_given;
};

/* One object for the main embedding. The precedence of the two places depends on the version of transformers: they must
 * agree. */
static bool parse_main(struct rope_config *rope, json_t *object, const char *path, const struct model_config *config,
                       const struct beside *beside, struct status *status)
{
    const struct rope_config *plain = &beside->rope;
    if (!parse_object(rope, object, path, config, rope_whole_dim(config), plain, status)) return false;
    if (beside->theta_given && rope->theta != plain->theta)
        return status_fail(status, STATUS_BAD_INPUT, "%s: field 'rope_theta': expected %.17g as beside it, found %.17g",
                           path, plain->theta, rope->theta);
    if (beside->part_given && rope->rotary_dim != plain->rotary_dim)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'partial_rotary_factor': expected %" PRIu64
                           " rotated elements of a head as beside it, found %" PRIu64,
                           path, plain->rotary_dim, rope->rotary_dim);
    if ((rope->type == ROPE_LLAMA3 || rope->type == ROPE_YARN) && plain->original_max_position &&
        rope->original_max_position != plain->original_max_position)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'original_max_position_embeddings': expected %" PRIu64
                           " as beside it, found %" PRIu64,
                           path, plain->original_max_position, rope->original_max_position);
    return true;
}

static bool is_by_kind(const struct model_config *config, const json_t *object)
{
    return config->has_local_rope &&
           (json_object_get(object, "full_attention") || json_object_get(object, "sliding_attention"));
}

/* transformers reads `truncate` beside the objects for kinds of layers, and never in them. */
static bool check_truncated(const struct rope_config *rope, const char *path, struct status *status)
{
    return rope->type != ROPE_YARN || rope->truncate ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'truncate': expected true in an object for one kind of layers, found false", path);
}

/* An object with one for each kind of layer; null or absent: plain. */
static bool parse_by_kind(struct rope_config *rope, struct model_config *config, json_t *object, const char *path,
                          const struct beside *beside, struct status *status)
{
    struct json_reader reader;
    bool done = false;
    if (!json_reader_open(&reader, object, path, status)) goto done;
    json_t *main = json_reader_get(&reader, "full_attention"), *local = json_reader_get(&reader, "sliding_attention");
    char inner[300];
    snprintf(inner, sizeof inner, "%s: full_attention", path);
    *rope = beside->rope;
    if (main && (!parse_main(rope, main, inner, config, beside, status) || !check_truncated(rope, inner, status)))
        goto done;
    snprintf(inner, sizeof inner, "%s: sliding_attention", path);
    const struct rope_config absent = config->local_rope;
    const uint64_t local_dim = rope_dim_of(config, LAYER_ROPE_LOCAL);
    if (local && (!parse_object(&config->local_rope, local, inner, config, local_dim, &absent, status) ||
                  !check_truncated(&config->local_rope, inner, status)))
        goto done;
    /* Where heads are of two sizes, those of either turn as a whole. */
    const uint64_t expected = local_dim == rope_whole_dim(config) ? rope->rotary_dim : local_dim;
    if (config->local_rope.rotary_dim != expected || config->local_rope.type == ROPE_LONGROPE) {
        status_fail(status, STATUS_BAD_INPUT,
                    "%s: expected as many rotated elements of a head as for full_attention (%" PRIu64
                    ") and no longrope, found %" PRIu64 "%s",
                    inner, expected, config->local_rope.rotary_dim,
                    config->local_rope.type == ROPE_LONGROPE ? " and longrope" : "");
        goto done;
    }
    done = json_reader_all_consumed(&reader, status);
done:
    json_reader_close(&reader);
    return done;
}

/* transformers 5 writes the class's default of partial_rotary_factor beside rope_parameters, where the model's own is. */
static bool is_part_within(const struct json_reader *reader)
{
    const json_t *within = json_object_get(reader->object, "rope_parameters");
    return json_is_number(json_object_get(within, "partial_rotary_factor"));
}

bool rope_config_parse(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    struct beside beside = {
        .rope = {.rotary_dim = config->rope.rotary_dim ? config->rope.rotary_dim : rope_whole_dim(config),
                 .theta = config->rope.theta != 0 ? config->rope.theta : DEFAULT_THETA,
                 .factor = 1.0},
        .theta_given = json_reader_get(reader, "rope_theta") != NULL,
        .part_given = json_reader_get(reader, "partial_rotary_factor") != NULL && !is_part_within(reader),
    };
    struct rope_config *plain = &beside.rope;
    bool object_given = false, parsed_before = false;
    struct rope_config absent = config->rope;
    if (!parse_theta(reader, &plain->theta, status) ||
        (beside.part_given && !parse_rotary_dim(reader, rope_whole_dim(config), &plain->rotary_dim, status)) ||
        !parse_original_max_position(reader, plain, status))
        return false;
    config->rope = *plain;
    config->rope.original_max_position = 0;
    const double local_theta = config->local_rope.theta;
    config->local_rope = config->rope;
    if (rope_dim_of(config, LAYER_ROPE_LOCAL) != rope_whole_dim(config))
        config->local_rope.rotary_dim = rope_dim_of(config, LAYER_ROPE_LOCAL);
    if (local_theta != 0) config->local_rope.theta = local_theta;
    for (size_t i = 0; i < 2; i++) {
        struct rope_config rope;
        json_t *object = json_reader_get(reader, keys[i]);
        object_given |= object != NULL;
        if (!object || (json_is_object(object) && json_object_size(object) == 0)) continue;
        char path[256];
        snprintf(path, sizeof path, "%s: %s", reader->path, keys[i]);
        const bool parsed = is_by_kind(config, object) ? parse_by_kind(&rope, config, object, path, &beside, status)
                                                       : parse_main(&rope, object, path, config, &beside, status);
        if (!parsed) return false;
        if (parsed_before && !same_rope(&rope, &config->rope))
            return status_fail(status, STATUS_BAD_INPUT, "%s: fields 'rope_parameters' and 'rope_scaling' disagree",
                               reader->path);
        config->rope = rope;
        parsed_before = true;
    }
    if (!object_given && absent.type != ROPE_DEFAULT) {
        absent.theta = plain->theta, absent.rotary_dim = plain->rotary_dim;
        config->rope = absent;
    }
    return config->rope.rotary_dim % 2 == 0 || config->rope.rotary_dim == rope_whole_dim(config) ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'partial_rotary_factor': expected an even number of rotated elements of the %" PRIu64
                       " of a head, found %" PRIu64 " (the default of model_type '%s')",
                       reader->path, rope_whole_dim(config), config->rope.rotary_dim, config->model_type);
}

/* theta^(2i / rotary_dim). The power is rounded once from double, within one unit in the last place of any float
 * power function that transformers may use. */
static float position_frequency(double theta, uint64_t index, uint64_t rotary_dim)
{
    float exponent = (float)(2 * index) / (float)rotary_dim;
    return (float)pow((double)(float)theta, (double)exponent);
}

/* One frequency with llama3 scaling: long wavelengths are multiplied by factor, short ones are unchanged, with a linear
 * blend between. transformers writes a / b for scalar a and tensor b, which torch evaluates as (1 / b) * a. */
static float llama3_frequency(const struct rope_config *rope, double original_max_position, float frequency)
{
    float factor = (float)rope->factor;
    float wavelength = (1.0f / frequency) * (float)(2.0 * PI);
    if (wavelength > (float)(original_max_position / rope->low_freq_factor)) return frequency / factor;
    if (wavelength < (float)(original_max_position / rope->high_freq_factor)) return frequency;
    float turns = (1.0f / wavelength) * (float)original_max_position;
    float smooth = (turns - (float)rope->low_freq_factor) / (float)(rope->high_freq_factor - rope->low_freq_factor);
    float stretched = (1.0f - smooth) * frequency;
    stretched = stretched / factor;
    float kept = smooth * frequency; /* a separate statement: no fused multiply-add */
    return stretched + kept;
}

/* Index of the dimension that makes `rotations` turns over the original context. */
static double yarn_dimension(const struct rope_config *rope, double rotary_dim, double original_max_position,
                             double rotations)
{
    return rotary_dim * log(original_max_position / (rotations * 2.0 * PI)) / (2.0 * log(rope->theta));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static double yarn_attention_factor(const struct rope_config *rope)
{
    if (rope->attention_factor != 0.0) return rope->attention_factor;
    if (rope->mscale != 0.0 && rope->mscale_all_dim != 0.0)
        return yarn_mscale(rope->factor, rope->mscale) / yarn_mscale(rope->factor, rope->mscale_all_dim);
    return yarn_mscale(rope->factor, 1.0);
}

double rope_latent_score_scale(const struct rope_config *rope)
{
    if (rope->type != ROPE_YARN || rope->mscale_all_dim == 0.0) return 1.0;
    const double factor = yarn_mscale(rope->factor, rope->mscale_all_dim);
    return factor * factor;
}

/* inv_freq holds 1 / power; blends it with the value divided by factor, along a ramp over the dimensions. */
static void yarn_frequencies(const struct rope_config *rope, double original_max_position, float *inv_freq)
{
    const uint64_t rotary_dim = rope->rotary_dim;
    double low = yarn_dimension(rope, (double)rotary_dim, original_max_position, rope->beta_fast);
    double high = yarn_dimension(rope, (double)rotary_dim, original_max_position, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)rotary_dim - 1.0);
    if (low == high) high += 0.001; /* no division by zero */
    for (uint64_t i = 0; i < rotary_dim / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = fminf(fmaxf(ramp, 0.0f), 1.0f);
        float keep = 1.0f - ramp;
        float stretched = 1.0f / ((float)rope->factor * position_frequency(rope->theta, i, rotary_dim));
        stretched = stretched * (1.0f - keep);
        float kept = inv_freq[i] * keep; /* a separate statement: no fused multiply-add */
        inv_freq[i] = stretched + kept;
    }
}

static double longrope_attention_factor(const struct rope_config *rope)
{
    if (rope->attention_factor != 0.0) return rope->attention_factor;
    if (rope->factor <= 1.0) return 1.0;
    return sqrt(1.0 + log(rope->factor) / log((double)rope->original_max_position));
}

uint64_t rope_sets(const struct rope_config *rope, uint64_t max_position)
{
    return rope->type == ROPE_LONGROPE && rope->original_max_position < max_position ? 2 : 1;
}

static void longrope_frequencies(const struct rope_config *rope, const double *factors, float *inv_freq)
{
    for (uint64_t i = 0; i < rope->rotary_dim / 2; i++) {
        const float stretched = (float)factors[i] * position_frequency(rope->theta, i, rope->rotary_dim);
        inv_freq[i] = 1.0f / stretched;
    }
}

bool rope_frequencies(const struct rope_config *rope, uint64_t max_position, float *inv_freq, float *attention_scaling,
                      struct status *status)
{
    const uint64_t sets = rope_sets(rope, max_position);
    double original = (double)(rope->original_max_position ? rope->original_max_position : max_position);
    *attention_scaling = 1.0f;
    for (uint64_t i = 0; i < rope->rotary_dim / 2; i++)
        inv_freq[i] = 1.0f / position_frequency(rope->theta, i, rope->rotary_dim);
    switch (rope->type) {
    case ROPE_DEFAULT: break;
    case ROPE_LINEAR:
        for (uint64_t i = 0; i < rope->rotary_dim / 2; i++) inv_freq[i] = inv_freq[i] / (float)rope->factor;
        break;
    case ROPE_LLAMA3:
        for (uint64_t i = 0; i < rope->rotary_dim / 2; i++) inv_freq[i] = llama3_frequency(rope, original, inv_freq[i]);
        break;
    case ROPE_YARN:
        yarn_frequencies(rope, original, inv_freq);
        *attention_scaling = (float)yarn_attention_factor(rope);
        break;
    case ROPE_LONGROPE:
        longrope_frequencies(rope, rope->short_factor, inv_freq);
        if (sets == 2) longrope_frequencies(rope, rope->long_factor, inv_freq + rope->rotary_dim / 2);
        *attention_scaling = (float)longrope_attention_factor(rope);
        break;
    case ROPE_PROPORTIONAL:
        for (uint64_t i = 0; i < rope->rotary_dim / 2; i++)
            inv_freq[i] = i < rope->turning_pairs ? inv_freq[i] / (float)rope->factor : 0;
        break;
    }
    if (!isfinite(*attention_scaling))
        return status_fail(status, STATUS_BAD_INPUT,
                           "the factor on the rotary embedding is not finite: check original_max_position_embeddings "
                           "(%" PRIu64 ")",
                           rope->original_max_position);
    for (uint64_t i = 0; i < sets * (rope->rotary_dim / 2); i++)
        if (!isfinite(inv_freq[i]))
            return status_fail(status, STATUS_BAD_INPUT,
                               "rotary frequency %" PRIu64 " is not finite: check rope_theta (%g) and its scaling", i,
                               rope->theta);
    return true;
}
