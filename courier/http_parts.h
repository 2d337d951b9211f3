/* http_parts.h - what the files of http share. */
#ifndef LK_HTTP_PARTS_H
#define LK_HTTP_PARTS_H

#include "courier/http.h"

/* Sets an option of handle `e` unless one before has failed. */
#define SET(option, value)                                                     \
    (code = code ? code : curl_easy_setopt(e, option, value))

/* http.c: curl's callbacks, with the exchange. */
size_t lk_http_take_body(char *data, size_t one, size_t len, void *context);
size_t lk_http_take_header(char *data, size_t one, size_t len, void *context);
int lk_http_leave(void *context, char *there, char *here, int port,
                  int local_port);

/* http_options.c */
CURLcode lk_http_set_target(struct lk_exchange *exchange,
                            const struct lk_target *target);

/* http_headers.c */
LK_MUST_CHECK enum lk_status lk_http_set_headers(
    struct lk_exchange *exchange, const struct lk_http_request *request);
/* As lk_headers_fault and lk_method_fault, for what the gateway has accepted:
 * only what would break the message is refused. */
const char *lk_http_lines_fault(struct lk_slice lines);
const char *lk_http_method_fault(struct lk_slice method);

#endif
