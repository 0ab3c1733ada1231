/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the n-th allocation, mapping or thread start of a process fail, and counts live resources.
 *
 * faults.c defines malloc and its relatives, mmap, munmap and pthread_create. Linked into a program, or preloaded, its
 * definitions come before those of the C library for the program and for all libraries that it uses. Calls that the C
 * library and a sanitizer make on their own behalf (a thread's stack, say) are not seen. */
#ifndef TESTS_FAULTS_FAULTS_H
#define TESTS_FAULTS_FAULTS_H

#include <stdbool.h>

/* Starts counting calls from 1; call number `nth` fails (ENOMEM; EAGAIN for a thread), and with `from_there_on` every
 * later one, too. nth 0: none fails. */
void faults_arm(unsigned long nth, bool from_there_on);
/* Stops counting and failing. Returns how many calls have failed. */
unsigned long faults_disarm(void);

unsigned long faults_calls(void); /* since faults_arm */
long faults_live_blocks(void);    /* heap blocks allocated and not freed since the process began */
long faults_live_mappings(void);  /* calls of mmap less those of munmap */

#endif
