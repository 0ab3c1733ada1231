/* SPDX-License-Identifier: Apache-2.0 */
/* Number of processors that this process may use: its affinity mask and the CPU quota of its control group (a container
 * on a large host often sees all processors but is limited to a few). */
#ifndef KERNELS_CPU_PROCESSORS_H
#define KERNELS_CPU_PROCESSORS_H

int processors_available(void); /* >= 1 */

/* Quota of the control group named by `membership` (the format of /proc/self/cgroup) and of its ancestors, under `root`
 * (/sys/fs/cgroup), version 1 or 2, rounded up to whole processors; 0: no quota. */
int processors_quota(const char *membership, const char *root);

#endif
