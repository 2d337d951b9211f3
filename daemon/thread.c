/* thread.c - threads that leave signals to the loop. */
#include "daemon/thread.h"

#include <signal.h>

int lk_thread_create(uv_thread_t *thread, uv_thread_cb run, void *context)
{
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = uv_thread_create(thread, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}
