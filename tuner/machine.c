/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/machine.h"

#include <stdio.h>
#include <string.h>

#include "formats/base/file.h"
#include "kernels/cpu/probe.h"

static void processor_name(char *out, size_t size)
{
    snprintf(out, size, "unknown processor");
    char text[4096], *rest = text, family[32] = "", model[32] = "", name[128] = "";
    if (!file_read_start("/proc/cpuinfo", text, sizeof text)) return;
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        char *colon = strchr(line, ':');
        if (!colon) continue;
        char *value = colon + 1 + strspn(colon + 1, " \t");
        if (strncmp(line, "model name", 10) == 0)
            snprintf(name, sizeof name, "%s", value);
        else if (strncmp(line, "cpu family", 10) == 0)
            snprintf(family, sizeof family, "%s", value);
        else if (strncmp(line, "model\t", 6) == 0)
            snprintf(model, sizeof model, "%s", value);
    }
    /* Hypervisors often give one vague name to several processors: family and model tell them apart. */
    if (name[0]) snprintf(out, size, "%s (family %s model %s)", name, family, model);
}

void machine_describe(struct machine *machine, const struct team *team)
{
    memset(machine, 0, sizeof *machine);
    processor_name(machine->name, sizeof machine->name);
    machine->isa = cpu_isa_best();
    machine->threads = team_size(team);
}

bool machine_probe(struct machine *machine, struct team *team, struct status *status)
{
    enum { PROBE_BYTES = 256 << 20, PROBE_PASSES = 5 };
    double rates[PROBE_PASSES];
    machine_describe(machine, team);
    if (!probe_read(team, machine->isa, PROBE_BYTES, PROBE_PASSES, rates, status)) return false;
    for (int pass = 0; pass < PROBE_PASSES; pass++)
        if (rates[pass] > machine->read_gb_s) machine->read_gb_s = rates[pass];
    machine->peak_gflops = probe_peak_gflops(team, machine->isa, PROBE_PASSES);
    return true;
}

double roofline_us(const struct machine *machine, uint64_t bytes, uint64_t flops)
{
    if (machine->read_gb_s <= 0 || machine->peak_gflops <= 0) return 0;
    double memory_us = (double)bytes / machine->read_gb_s * 1e-3;
    double compute_us = (double)flops / machine->peak_gflops * 1e-3;
    return memory_us > compute_us ? memory_us : compute_us;
}
