/*
 * webhook_sign.h - signatures of webhooks in the form of Standard Webhooks, by
 * which a service can check who sent a call, and when.
 */
#ifndef LK_WEBHOOK_SIGN_H
#define LK_WEBHOOK_SIGN_H

#include "latchkey.h"

/*
 * Appends the headers webhook-id, webhook-timestamp and webhook-signature as
 * lines. `secret` is "whsec_" and base64, or any other text, which is then the
 * key itself; several with spaces between give a signature each, so that a
 * secret can be replaced while both are known. LK_INVALID: none of them can be
 * read. LK_NOMEM.
 */
LK_MUST_CHECK enum lk_status lk_sign(struct lk_slice secret, struct lk_slice id,
                                     uint64_t seconds, struct lk_slice body,
                                     struct lk_buf *headers);

#endif
