/* thread.h - threads that leave signals to the loop. */
#ifndef LK_THREAD_H
#define LK_THREAD_H

#include <uv.h>

/*
 * As uv_thread_create, but the thread has all signals blocked: one that asks
 * the daemon to stop must reach the loop, not a thread that sleeps.
 */
int lk_thread_create(uv_thread_t *thread, uv_thread_cb run, void *context);

#endif
