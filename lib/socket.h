/* socket.h - sockets for the client: connect and wait, with a deadline. */
#ifndef LK_SOCKET_H
#define LK_SOCKET_H

#include "latchkey.h"

/*
 * Connects to "unix:PATH" or "HOST:PORT" (an IPv6 host in brackets). LK_OK:
 * the caller owns *fd. Otherwise `why` holds a sentence. LK_INVALID: the
 * address is none. LK_TIMEOUT. LK_IO: errno is the cause, 0 if the name is not
 * known. Looking up a name may take longer than the timeout: the resolver has
 * its own.
 */
LK_MUST_CHECK enum lk_status lk_socket_connect(const char *address,
                                               unsigned timeout_ms, int *fd,
                                               char *why, size_t why_size);

/*
 * Waits until one of `events` (as for poll) happens and sets *happened. The
 * deadline is one of lk_monotonic_ms.
 * LK_TIMEOUT: the deadline came first. LK_IO: see errno.
 */
LK_MUST_CHECK enum lk_status lk_socket_wait(int fd, short events,
                                            int64_t deadline, short *happened);

#endif
