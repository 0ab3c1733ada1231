/* SPDX-License-Identifier: Apache-2.0 */
/* Real chat templates and conversations, with what jinja2 makes of them as transformers sets it up (shared material; without it
 * this test is skipped). */
#include <dirent.h>

#include "formats/base/file.h"
#include "formats/base/json.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/template/template.h"

/* The clock of the recordings. */
static const struct tm recorded_at =
    {.tm_year = 126, .tm_mday = 2, .tm_hour = 3, .tm_min = 4, .tm_sec = 5, .tm_wday = 5, .tm_yday = 1};

static size_t check_cases(const struct template *template, const char *path)
{
    struct status status = {0};
    struct file_map map;
    size_t failures = 0;
    test_expect_success(file_map_open(&map, path, &status), &status);
    json_t *cases = json_parse((const char *)map.data, map.size, path, &status);
    test_expect_success(cases != NULL, &status);
    assert_true(json_array_size(cases) >= 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const json_t *rendered = json_object_get(one, "rendered"), *error = json_object_get(one, "error");
        struct template_result result;
        status_clear(&status);
        const bool done =
            template_render(template, json_object_get(one, "arguments"), NULL, &recorded_at, &result, &status);
        assert_true((rendered != NULL) != (error != NULL));
        if (done != (rendered != NULL)) {
            print_error("%s: case %zu: expected %s, found %s\n", path, i,
                        rendered ? "a text" : json_string_value(error), done ? result.text : status.message);
            failures++;
        } else if (done && (result.size != json_string_length(rendered) ||
                            memcmp(result.text, json_string_value(rendered), result.size) != 0)) {
            print_error("%s: case %zu: expected\n%s\nfound\n%s\n", path, i, json_string_value(rendered), result.text);
            failures++;
        }
        if (done) template_result_free(&result);
    }
    json_decref(cases);
    file_map_close(&map);
    return failures;
}

TEST(real_templates)
{
    struct dirent **entries;
    char folder[400], path[1024];
    size_t templates = 0, failures = 0;
    if (!test_shared()) skip();
    snprintf(folder, sizeof folder, "%s/chat_templates", test_shared());
    const int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0) skip();
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name, *end = strstr(name, ".jinja");
        if (end) {
            struct status status = {0};
            struct file_map map;
            snprintf(path, sizeof path, "%s/%s", folder, name);
            test_expect_success(file_map_open(&map, path, &status), &status);
            struct template *template = template_open((const char *)map.data, map.size, &status);
            file_map_close(&map);
            if (!template) {
                print_error("%s: %s\n", name, status.message);
                failures++;
            } else {
                snprintf(path, sizeof path, "%s/%.*s.cases.json", folder, (int)(end - name), name);
                failures += check_cases(template, path);
            }
            template_close(template);
            templates++;
        }
        free(entries[i]);
    }
    free(entries);
    assert_in_range(templates, 40, 1000);
    if (failures) fail_msg("%zu cases differ", failures);
}

int main(void) { return test_run(); }
