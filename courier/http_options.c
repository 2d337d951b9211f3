/* http_options.c - what every call to a target has in common, as curl's
 * options. */
#include "courier/http_parts.h"

#include <strings.h>

static long http_version(const struct lk_target *target)
{
    bool tls = !strncasecmp(target->url, "https:", 6);

    if (target->http == LK_HTTP_2) {
        return tls ? CURL_HTTP_VERSION_2TLS
                   : CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE;
    }
    return tls && target->http == LK_HTTP_AUTO && target->honours
               ? CURL_HTTP_VERSION_2TLS
               : CURL_HTTP_VERSION_1_1;
}

/* TLS is verified, always. */
static CURLcode set_tls(CURL *e, const struct lk_target *target)
{
    CURLcode code = CURLE_OK;

    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (target->ca_file) {
        SET(CURLOPT_CAINFO, target->ca_file);
        SET(CURLOPT_CAPATH, NULL);
    }
    if (target->cert_file) {
        SET(CURLOPT_SSLCERT, target->cert_file);
    }
    if (target->key_file) {
        SET(CURLOPT_SSLKEY, target->key_file);
    }
    return code;
}

/* Nothing of the world outside may lead a call elsewhere. */
static CURLcode set_rules(CURL *e)
{
    CURLcode code = CURLE_OK;

    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_USERAGENT, "latchkey/" LATCHKEY_VERSION);
#if LIBCURL_VERSION_NUM >= 0x075700
    /* A name that does not resolve must not hold up the others: without this,
     * giving up waits for the resolver's thread. */
    SET(CURLOPT_QUICK_EXIT, 1L);
#endif
    return code;
}

/*
 * On a connection that was used before, curl may find out that it is dead only
 * after it has sent the request: nobody knows then whether it has happened.
 * Where the key is not honoured, each call has a connection of its own.
 */
static CURLcode set_connection(CURL *e, const struct lk_target *target)
{
    long fresh = !target->honours;
    CURLcode code = CURLE_OK;

    SET(CURLOPT_FRESH_CONNECT, fresh);
    SET(CURLOPT_FORBID_REUSE, fresh);
    SET(CURLOPT_HTTP_VERSION, http_version(target));
    SET(CURLOPT_PIPEWAIT,
        (long)(http_version(target) != CURL_HTTP_VERSION_1_1));
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    if (target->socket) {
        SET(CURLOPT_UNIX_SOCKET_PATH, target->socket);
    }
    return code;
}

CURLcode lk_http_set_target(struct lk_exchange *exchange,
                            const struct lk_target *target)
{
    CURL *e = exchange->easy;
    CURLcode code;

    curl_easy_reset(e);
    code = set_rules(e);
    code = code ? code : set_tls(e, target);
    code = code ? code : set_connection(e, target);
    SET(CURLOPT_PRIVATE, exchange);
    SET(CURLOPT_ERRORBUFFER, exchange->answer.error);
    SET(CURLOPT_WRITEFUNCTION, lk_http_take_body);
    SET(CURLOPT_WRITEDATA, exchange);
    SET(CURLOPT_HEADERFUNCTION, lk_http_take_header);
    SET(CURLOPT_HEADERDATA, exchange);
    SET(CURLOPT_PREREQFUNCTION, lk_http_leave);
    SET(CURLOPT_PREREQDATA, exchange);
    exchange->ready = !code;
    return code;
}
