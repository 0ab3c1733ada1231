/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of several sessions on one GPU: who waits for whom. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "runtime/backend/turns.h"

#include <pthread.h>
#include <stdatomic.h>

static cu_event waited_for; /* by the last wait */
static int waits;
static cu_result result;

static cu_result wait_event(cu_stream stream, cu_event event, unsigned flags)
{
    (void)stream;
    assert_int_equal(flags, 0);
    waits++;
    waited_for = event;
    return result;
}

static struct device make_device(int index)
{
    struct device device = {.index = index};
    device.driver.StreamWaitEvent = wait_event;
    return device;
}

/* Addresses alone count. */
static char sessions[2], events[4];
static cu_event event(int number) { return (cu_event)(void *)&events[number]; }

static void step(const struct device *device, int session, int ended)
{
    struct status status = {0};
    assert_true(turn_begin(device, &sessions[session], &status));
    turn_end(device, &sessions[session], event(ended));
}

TEST(a_step_waits_for_that_of_another_session)
{
    const struct device first = make_device(3), second = make_device(4);
    waits = 0;
    step(&first, 0, 0);
    step(&first, 0, 1); /* its own stream has an order */
    step(&second, 1, 2);
    assert_int_equal(waits, 0);
    step(&first, 1, 2);
    assert_int_equal(waits, 1);
    assert_ptr_equal(waited_for, event(1));
    step(&first, 0, 3);
    assert_int_equal(waits, 2);
    assert_ptr_equal(waited_for, event(2));
    turn_forget(&first, &sessions[1]); /* not the last one */
    step(&first, 1, 0);
    assert_int_equal(waits, 3);
    turn_forget(&first, &sessions[1]);
    step(&first, 0, 1);
    assert_int_equal(waits, 3);
    turn_forget(&first, &sessions[0]);
    turn_forget(&second, &sessions[1]);
}

TEST(a_failure_lets_others_go_on)
{
    const struct device device = make_device(5);
    struct status status = {0};
    step(&device, 0, 0);
    result = CU_ERROR_INVALID_VALUE;
    assert_false(turn_begin(&device, &sessions[1], &status));
    assert_non_null(strstr(status.message, "another session's step"));
    result = CU_SUCCESS;
    step(&device, 1, 1);
    turn_forget(&device, &sessions[1]);
}

static atomic_int inside;

static void *steps(void *session)
{
    const struct device device = make_device(6);
    struct status status = {0};
    for (int i = 0; i < 2000; i++) {
        if (!turn_begin(&device, session, &status) || atomic_fetch_add(&inside, 1) != 0) return "two at once";
        atomic_fetch_sub(&inside, 1);
        turn_end(&device, session, event(0));
    }
    return NULL;
}

TEST(one_step_is_queued_at_a_time)
{
    pthread_t threads[2];
    void *failed;
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, steps, &sessions[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
}

int main(void) { return test_run(); }
