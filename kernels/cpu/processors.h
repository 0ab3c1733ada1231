/* SPDX-License-Identifier: Apache-2.0 */
/* How many processors this process may really use: the affinity mask and the CPU quota of its control group (a
 * container on a large host commonly sees all processors but is throttled to a few). */
#ifndef KERNELS_CPU_PROCESSORS_H
#define KERNELS_CPU_PROCESSORS_H

int processors_available(void); /* >= 1 */

/* Quota of the control group that `membership` (the format of /proc/self/cgroup) names, and of the groups above it,
 * under `root` (/sys/fs/cgroup), version 1 or 2; rounded up to whole processors; 0: no quota. */
int processors_quota(const char *membership, const char *root);

#endif
