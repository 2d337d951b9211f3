
/*
 * The counters as JSON, for people, and as metrics, for Prometheus:
 * idempotency_counters.
 */


#include "ngx_http_latchkey_counters.h"


static ngx_uint_t ngx_http_latchkey_write_json(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf);
static ngx_uint_t ngx_http_latchkey_json_location(struct lk_buf *text,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_place_t *place,
    ngx_http_latchkey_slot_t *slot);
static ngx_uint_t ngx_http_latchkey_json_counts(struct lk_buf *text,
    const char *name, ngx_str_t *words, ngx_atomic_t *counts, ngx_uint_t n);
static ngx_uint_t ngx_http_latchkey_add_location_name(struct lk_buf *text,
    ngx_http_latchkey_place_t *place);
static ngx_uint_t ngx_http_latchkey_write_metrics(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf);
static ngx_uint_t ngx_http_latchkey_write_metric(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_uint_t metric);
static ngx_uint_t ngx_http_latchkey_add_samples(struct lk_buf *text,
    const char *name, ngx_http_latchkey_place_t *place, const char *label,
    ngx_str_t *words, ngx_atomic_t *counts, ngx_uint_t n, ngx_uint_t off);
static ngx_uint_t ngx_http_latchkey_add_sample(struct lk_buf *text,
    const char *name, ngx_http_latchkey_place_t *place, const char *label,
    ngx_str_t *word, ngx_atomic_uint_t value);
static ngx_uint_t ngx_http_latchkey_add_label(struct lk_buf *text,
    ngx_str_t *value);


static ngx_str_t  ngx_http_latchkey_guards[] = {
    ngx_string("off"),
    ngx_string("observe"),
    ngx_string("optional"),
    ngx_string("required")
};


static ngx_str_t  ngx_http_latchkey_covers[] = {
#define X(name, word, help)  ngx_string(word),
    NGX_HTTP_LATCHKEY_COVERS(X)
#undef X
};


static const char  *ngx_http_latchkey_covers_help[] = {
#define X(name, word, help)  help,
    NGX_HTTP_LATCHKEY_COVERS(X)
#undef X
};


/* showing */

/* JSON, unless "?format=prometheus" is asked for. */

ngx_int_t
ngx_http_latchkey_counters_handler(ngx_http_request_t *r)
{
    ngx_str_t                       format, allow;
    ngx_uint_t                      metrics, failed;
    struct lk_buf                   text;
    struct lk_problem               problem;
    ngx_http_latchkey_main_conf_t  *lmcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        ngx_str_set(&allow, "GET, HEAD");

        if (ngx_http_latchkey_add_header(r, "Allow", &allow) == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_HTTP_NOT_ALLOWED;
    }

    if (ngx_http_arg(r, (u_char *) "format", 6, &format) != NGX_OK) {
        ngx_str_set(&format, "json");
    }

    metrics = format.len == 10
              && ngx_strncmp(format.data, "prometheus", 10) == 0;

    if (!metrics
        && (format.len != 4 || ngx_strncmp(format.data, "json", 4) != 0))
    {
        ngx_memzero(&problem, sizeof(struct lk_problem));
        problem.kind = LK_PROBLEM_QUERY_INVALID;
        problem.detail = LK_SLICE("The format is json or prometheus.");

        return ngx_http_latchkey_send_problem(r, &problem, 0);
    }

    lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);

    ngx_memzero(&text, sizeof(struct lk_buf));

    failed = metrics ? ngx_http_latchkey_write_metrics(&text, lmcf)
                     : ngx_http_latchkey_write_json(&text, lmcf);

    if (failed) {
        latchkey_buf_free(&text);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send_text(r, metrics
                               ? "text/plain; version=0.0.4; charset=utf-8"
                               : "application/json", &text);
}


/* write_ and add_ functions return 0, or 1 if out of memory */

static ngx_uint_t
ngx_http_latchkey_write_json(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf)
{
    ngx_uint_t                      i, n, failed;
    ngx_http_core_loc_conf_t       *clcf;
    ngx_http_latchkey_loc_conf_t  **llcf;
    ngx_http_latchkey_counters_t   *counters;

    counters = lmcf->zone->data;
    llcf = lmcf->locations.elts;
    n = 0;

    failed = latchkey_buf_add_text(text, "{\"locations\":[") != LK_OK;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        clcf = llcf[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (clcf->noname) {
            continue;
        }

        failed |= latchkey_buf_add_text(text, n++ ? ",\n" : "\n") != LK_OK;
        failed |= ngx_http_latchkey_json_location(text, llcf[i],
                                      &counters->places[llcf[i]->counter],
                                      counters->slots[llcf[i]->counter]);
    }

    failed |= latchkey_buf_add_text(text, "\n]}\n") != LK_OK;

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_json_location(struct lk_buf *text,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_place_t *place,
    ngx_http_latchkey_slot_t *slot)
{
    ngx_uint_t     i, failed;
    struct lk_buf  name;

    ngx_memzero(&name, sizeof(struct lk_buf));

    failed = ngx_http_latchkey_add_location_name(&name, place);

    failed |= latchkey_buf_add_text(text, "{\"server\":") != LK_OK;
    failed |= latchkey_json_quote(ngx_http_latchkey_slice(&place->server),
                                  text)
              != LK_OK;
    failed |= latchkey_buf_add_text(text, ",\"location\":") != LK_OK;
    failed |= latchkey_json_quote(latchkey_buf_slice(&name), text) != LK_OK;
    failed |= latchkey_buf_printf(text, ",\"mode\":\"%s\"",
                          (char *) ngx_http_latchkey_guards[llcf->mode].data)
              != LK_OK;

    for (i = 0; i < NGX_HTTP_LATCHKEY_COVER_LAST; i++) {
        failed |= latchkey_buf_printf(text, ",\"%s\":%lu",
                             (char *) ngx_http_latchkey_covers[i].data,
                             (unsigned long) slot->covers[i])
                  != LK_OK;
    }

    failed |= ngx_http_latchkey_json_counts(text, "verdicts",
                                            ngx_http_latchkey_verdict_words,
                                            slot->verdicts,
                                            NGX_HTTP_LATCHKEY_VERDICT_LAST);
    failed |= ngx_http_latchkey_json_counts(text, "outcomes",
                                            ngx_http_latchkey_outcome_words,
                                            slot->outcomes,
                                            NGX_HTTP_LATCHKEY_OUTCOME_LAST);
    failed |= latchkey_buf_add_text(text, "}") != LK_OK;

    latchkey_buf_free(&name);

    return failed;
}


/* without the first word, which is empty */

static ngx_uint_t
ngx_http_latchkey_json_counts(struct lk_buf *text, const char *name,
    ngx_str_t *words, ngx_atomic_t *counts, ngx_uint_t n)
{
    ngx_uint_t  i, failed;

    failed = latchkey_buf_printf(text, ",\"%s\":{", name) != LK_OK;

    for (i = 1; i < n; i++) {
        failed |= latchkey_buf_printf(text, "%s\"%s\":%lu", i > 1 ? "," : "",
                                      (char *) words[i].data,
                                      (unsigned long) counts[i])
                  != LK_OK;
    }

    failed |= latchkey_buf_add_text(text, "}") != LK_OK;

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_add_location_name(struct lk_buf *text,
    ngx_http_latchkey_place_t *place)
{
    ngx_uint_t  failed;

    failed = latchkey_buf_add_slice(text,
                                    ngx_http_latchkey_slice(&place->location))
             != LK_OK;

    if (place->copy) {
        failed |= latchkey_buf_printf(text, " #%lu",
                                      (unsigned long) place->copy + 1)
                  != LK_OK;
    }

    return failed;
}


/*
 * Prometheus wants all samples of a metric together: first the covers, then
 * the others
 */

static ngx_uint_t
ngx_http_latchkey_write_metrics(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf)
{
    ngx_uint_t  i, failed;

    failed = 0;

    for (i = 0; i < NGX_HTTP_LATCHKEY_COVER_LAST; i++) {
        failed |= latchkey_buf_printf(text,
                              "# HELP latchkey_gateway_%s_total %s\n"
                              "# TYPE latchkey_gateway_%s_total counter\n",
                              (char *) ngx_http_latchkey_covers[i].data,
                              ngx_http_latchkey_covers_help[i],
                              (char *) ngx_http_latchkey_covers[i].data)
                  != LK_OK;
        failed |= ngx_http_latchkey_write_metric(text, lmcf, i);
    }

    failed |= latchkey_buf_add_text(text,
                  "# HELP latchkey_gateway_requests_total Requests by "
                  "verdict.\n"
                  "# TYPE latchkey_gateway_requests_total counter\n")
              != LK_OK;
    failed |= ngx_http_latchkey_write_metric(text, lmcf, i++);

    failed |= latchkey_buf_add_text(text,
                  "# HELP latchkey_gateway_outcomes_total Requests by "
                  "outcome.\n"
                  "# TYPE latchkey_gateway_outcomes_total counter\n")
              != LK_OK;
    failed |= ngx_http_latchkey_write_metric(text, lmcf, i++);

    failed |= latchkey_buf_add_text(text,
                  "# HELP latchkey_gateway_location_info Locations and how "
                  "they are guarded.\n"
                  "# TYPE latchkey_gateway_location_info gauge\n")
              != LK_OK;
    failed |= ngx_http_latchkey_write_metric(text, lmcf, i);

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_write_metric(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_uint_t metric)
{
    u_char                          name[64];
    ngx_uint_t                      i, off, failed;
    ngx_http_core_loc_conf_t       *clcf;
    ngx_http_latchkey_slot_t       *slot;
    ngx_http_latchkey_place_t      *place;
    ngx_http_latchkey_loc_conf_t  **llcf;
    ngx_http_latchkey_counters_t   *counters;

    counters = lmcf->zone->data;
    llcf = lmcf->locations.elts;
    failed = 0;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        clcf = llcf[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (clcf->noname) {
            continue;
        }

        place = &counters->places[llcf[i]->counter];
        slot = counters->slots[llcf[i]->counter];
        off = (llcf[i]->mode == NGX_HTTP_LATCHKEY_OFF);

        switch (metric) {

        case NGX_HTTP_LATCHKEY_COVER_LAST:
            failed |= ngx_http_latchkey_add_samples(text, "requests_total",
                              place, "verdict",
                              ngx_http_latchkey_verdict_words, slot->verdicts,
                              NGX_HTTP_LATCHKEY_VERDICT_LAST, off);
            break;

        case NGX_HTTP_LATCHKEY_COVER_LAST + 1:
            failed |= ngx_http_latchkey_add_samples(text, "outcomes_total",
                              place, "outcome",
                              ngx_http_latchkey_outcome_words, slot->outcomes,
                              NGX_HTTP_LATCHKEY_OUTCOME_LAST, off);
            break;

        case NGX_HTTP_LATCHKEY_COVER_LAST + 2:
            failed |= ngx_http_latchkey_add_sample(text, "location_info",
                                 place, "mode",
                                 &ngx_http_latchkey_guards[llcf[i]->mode], 1);
            break;

        default:
            *ngx_snprintf(name, sizeof(name) - 1, "%V_total",
                          &ngx_http_latchkey_covers[metric]) = '\0';

            failed |= ngx_http_latchkey_add_sample(text, (char *) name, place,
                                                   NULL, NULL,
                                                   slot->covers[metric]);
        }
    }

    return failed;
}


/*
 * one sample for each word but the empty first; without a guard, only those
 * that are not 0
 */

static ngx_uint_t
ngx_http_latchkey_add_samples(struct lk_buf *text, const char *name,
    ngx_http_latchkey_place_t *place, const char *label, ngx_str_t *words,
    ngx_atomic_t *counts, ngx_uint_t n, ngx_uint_t off)
{
    ngx_uint_t  k, failed;

    failed = 0;

    for (k = 1; k < n; k++) {

        if (off && counts[k] == 0) {
            continue;
        }

        failed |= ngx_http_latchkey_add_sample(text, name, place, label,
                                               &words[k], counts[k]);
    }

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_add_sample(struct lk_buf *text, const char *name,
    ngx_http_latchkey_place_t *place, const char *label, ngx_str_t *word,
    ngx_atomic_uint_t value)
{
    ngx_str_t      location;
    ngx_uint_t     failed;
    struct lk_buf  buf;

    ngx_memzero(&buf, sizeof(struct lk_buf));

    failed = ngx_http_latchkey_add_location_name(&buf, place);

    location.data = (u_char *) buf.data;
    location.len = buf.len;

    failed |= latchkey_buf_printf(text, "latchkey_gateway_%s{server=", name)
              != LK_OK;
    failed |= ngx_http_latchkey_add_label(text, &place->server);
    failed |= latchkey_buf_add_text(text, ",location=") != LK_OK;
    failed |= ngx_http_latchkey_add_label(text, &location);

    if (label) {
        failed |= latchkey_buf_printf(text, ",%s=", label) != LK_OK;
        failed |= ngx_http_latchkey_add_label(text, word);
    }

    failed |= latchkey_buf_printf(text, "} %lu\n", (unsigned long) value)
              != LK_OK;

    latchkey_buf_free(&buf);

    return failed;
}


/*
 * Prometheus knows only these three escapes; other characters that JSON would
 * escape are control characters and are left out.
 */

static ngx_uint_t
ngx_http_latchkey_add_label(struct lk_buf *text, ngx_str_t *value)
{
    size_t         i, len;
    ngx_uint_t     failed;
    struct lk_buf  json;

    ngx_memzero(&json, sizeof(struct lk_buf));

    failed = latchkey_json_quote(ngx_http_latchkey_slice(value), &json)
             != LK_OK;

    for (i = 0; i < json.len; i += len) {

        if (json.data[i] != '\\') {
            len = 1;
            failed |= latchkey_buf_add(text, json.data + i, 1) != LK_OK;
            continue;
        }

        len = json.data[i + 1] == 'u' ? 6 : 2;

        if (ngx_strchr("\\\"n", json.data[i + 1])) {
            failed |= latchkey_buf_add(text, json.data + i, 2) != LK_OK;
        }
    }

    latchkey_buf_free(&json);

    return failed;
}
