/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/programs.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MOST_ARGUMENTS = CHECK_MOST_WORDS + 2 }; /* the program's name and NULL */

void check_fail(const char *what, const struct eng_error *error)
{
    fflush(stdout);
    fprintf(stderr, "%s%s%s\n", what, error ? ": " : "", error ? error->message : "");
    exit(CHECK_FAILED);
}

void *check_must(void *memory)
{
    if (!memory) check_fail("out of memory", NULL);
    return memory;
}

bool check_find_program(const char *folders, const char *name, char path[CHECK_PATH])
{
    char list[8192];
    char *rest = NULL;
    snprintf(list, sizeof list, "%s", folders);
    for (char *folder = strtok_r(list, ":", &rest); folder; folder = strtok_r(NULL, ":", &rest)) {
        int length = snprintf(path, CHECK_PATH, "%s/%s", folder, name);
        if (length < CHECK_PATH && access(path, X_OK) == 0) return true;
    }
    return false;
}

void check_run_program(const char *path, const char *output, const char *const *words)
{
    char text[CHECK_PATH + 64];
    const char *arguments[MOST_ARGUMENTS] = {path};
    const char *slash = strrchr(path, '/');
    int count = 1, status = 0;
    pid_t process;
    posix_spawn_file_actions_t actions;
    while (*words && count < MOST_ARGUMENTS - 1) arguments[count++] = *words++;
    if (*words) check_fail("too many words for one command", NULL);
    for (int i = 0; i < count; i++) printf("%s%s", i ? " " : "$ ", arguments[i]);
    printf("\n");
    fflush(stdout);
    posix_spawn_file_actions_init(&actions);
    if (output) posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int error = posix_spawn(&process, path, &actions, NULL, (char *const *)arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error || waitpid(process, &status, 0) != process) check_fail("cannot run the program", NULL);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    snprintf(text, sizeof text, WIFEXITED(status) ? "%s: exit code %d" : "%s: signal %d", slash ? slash + 1 : path,
             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    check_fail(text, NULL);
}

char *check_read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) check_fail(path, NULL);
    long length = ftell(file);
    if (length < 0 || fseek(file, 0, SEEK_SET) != 0) check_fail(path, NULL);
    char *data = check_must(malloc((size_t)length + 1));
    *size = fread(data, 1, (size_t)length, file);
    if (*size != (size_t)length) check_fail(path, NULL);
    data[length] = '\0';
    fclose(file);
    return data;
}
