/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/estimate.h"

#include <math.h>

/* Measured on an H200 (nominally 4.81 TB/s and 1071 TFLOP/s): reads of device memory reach 4.54 TB/s; prefill plans of
 * the 1B and 8B models compute at 600 to 650 TFLOP/s; the remaining time of their decode steps is 1.8 us per launch.
 * With these constants the estimates of six plans of 1 to 2048 rows are 0 to 4 % below the measurements; the estimate
 * of one plan of 128 rows, which both ceilings limit, is 17 % below. */
static const double read_share = 0.943, flops_share = 0.6, launch_us = 1.8;
/* Fitted to collectives-bench on two, four and eight H200 that NVLink 4 joins. Terms besides the launch: stores to
 * other GPUs and the polls that find theirs, for each doubling of the ranks; and the rate at which a GPU sends while it
 * also works through its memory. Measured with 13 messages from 4 KB to 16 MB for each number of GPUs: 34 of the 39
 * estimates are within 10 % of the measurement, all within 33 %. */
static const double hop_us = 0.75, link_bytes_per_us = 333e3;

void estimate_cuda_clocks(const struct device *device, struct device_clocks *clocks)
{
    const struct cuda_driver *driver = &device->driver;
    if (driver->DeviceGetAttribute(&clocks->memory_khz, CU_ATTRIBUTE_MEMORY_CLOCK_RATE, device->handle) != CU_SUCCESS ||
        driver->DeviceGetAttribute(&clocks->bus_bits, CU_ATTRIBUTE_MEMORY_BUS_WIDTH, device->handle) != CU_SUCCESS ||
        driver->DeviceGetAttribute(&clocks->clock_khz, CU_ATTRIBUTE_CLOCK_RATE, device->handle) != CU_SUCCESS)
        *clocks = (struct device_clocks){0};
}

void estimate_cuda_ceilings(const struct device_facts *facts, const struct device_clocks *clocks,
                            struct machine *machine)
{
    double operations = facts->capability >= 90 ? 4096 : 2048; /* operations per clock and multiprocessor, 16-bit,
                                                                * dense */
    machine->read_gb_s =
        read_share * 2.0 * clocks->memory_khz * clocks->bus_bits / 8 * 1e-6; /* two transfers per clock */
    machine->peak_gflops = flops_share * operations * facts->multiprocessors * clocks->clock_khz * 1e-6;
}

/* Time of the hops and of sending. Operand 1 of both collectives is the rank's contribution. Small messages go to every
 * rank at once, large ones in two trips. */
struct exchange {
    double hops_us, link_us;
};

static struct exchange exchange_us(const struct plan *plan, const struct plan_launch *launch, uint64_t ranks)
{
    if (!plan_op_is_collective(launch->op)) return (struct exchange){0, 0};
    double us = (double)plan->operands[launch->first_operand + 1].bytes / link_bytes_per_us, others = (double)ranks - 1;
    double hops_us = hop_us * log2((double)ranks);
    struct exchange at_once = {hops_us, others * us}, in_two = {2 * hops_us, 2 * others / (double)ranks * us};
    bool two = launch->op == OP_ALL_REDUCE && in_two.hops_us + in_two.link_us < at_once.hops_us + at_once.link_us;
    return two ? in_two : at_once;
}

double estimate_cuda_plan_us(const struct plan *plan, const struct machine *machine, uint64_t ranks)
{
    double us = 0;
    for (uint32_t n = 0; n < plan->header.launch_count; n++) {
        const struct plan_launch *launch = &plan->launches[n];
        const struct exchange exchange = exchange_us(plan, launch, ranks);
        us += launch_us + exchange.hops_us + fmax(roofline_us(machine, launch->bytes, launch->flops), exchange.link_us);
    }
    return us;
}
