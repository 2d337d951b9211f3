/* notify.h - reports to the service manager how far the daemon is. */
#ifndef LK_NOTIFY_H
#define LK_NOTIFY_H

#include "latchkey.h"

enum lk_notify_event {
    LK_NOTIFY_READY,     /* listening; also after a reload */
    LK_NOTIFY_RELOADING, /* followed by READY when done */
    LK_NOTIFY_STOPPING,
    LK_NOTIFY_STATUS, /* nothing but the text */
};

/*
 * Sends the event to NOTIFY_SOCKET, with `text` (NULL for none) as the line
 * that `systemctl status` shows. LK_OK without such a socket: it has not asked.
 * LK_INVALID: the variable is not a socket's address; LK_IO: errno says why.
 */
LK_MUST_CHECK enum lk_status lk_notify(enum lk_notify_event event,
                                       const char *text);

#endif
