/* api.c - what the payments API does with a request. */
#include "payments.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DELAY_MAX_MS = 600000 };

static const char CHARGES[] = "/charges/ch_";

/* The body of the present response. */
static struct buf body;
static uint64_t asked; /* charges that were asked for, made or not */

static void refuse(struct response *response, int status, const char *why)
{
    response->status = status;
    body.len = 0;
    buf_printf(&body, "{\"error\":\"%s\"}", why);
}

/* The trouble that was asked for, for all requests or in this one's query. */
static bool is_in_trouble(const struct request *request,
                          struct response *response)
{
    uint64_t status = 503, drop = 0;

    response->delay_ms = options.delay_ms;
    http_query_number(request->query, "delay", &response->delay_ms);
    if (response->delay_ms > DELAY_MAX_MS) {
        response->delay_ms = DELAY_MAX_MS;
    }
    response->drop =
        (options.drop && (ledger_count() + 1) % options.drop == 0) ||
        (http_query_number(request->query, "drop", &drop) && drop);
    if (http_query_number(request->query, "fail", &status) ||
        (options.fail && asked % options.fail == 0)) {
        response->drop = false;
        refuse(response, status >= 400 && status <= 599 ? (int)status : 503,
               "out of order, nothing was charged");
        return true;
    }
    return false;
}

/* Every call is a charge, whatever its Idempotency-Key. */
static void make_charge(const struct request *request,
                        struct response *response)
{
    struct charge charge = {0};
    const char *wrong = charge_read(request, &charge);
    struct text made;
    uint64_t number;

    asked++;
    if (wrong) {
        refuse(response, 422, wrong);
        return;
    }
    if (is_in_trouble(request, response)) {
        return;
    }
    made = ledger_charge(&charge, &number);
    response->status = 201;
    snprintf(response->headers, sizeof(response->headers),
             "Location: %s%06" PRIu64 "\r\n", CHARGES, number);
    buf_add(&body, made.data, made.len);
    if (options.pad > 0) {
        buf_reserve(&body, options.pad + 16);
        body.len--; /* the closing brace */
        buf_printf(&body, ",\"pad\":\"%0*d\"}", (int)options.pad, 0);
    }
}

static void get_charge(struct text path, struct response *response)
{
    struct text line, digits = {path.data + sizeof(CHARGES) - 1,
                                path.len - (sizeof(CHARGES) - 1)};
    uint64_t number;

    if (!text_number(digits, &number) || !ledger_find(number, &line)) {
        refuse(response, 404, "there is no such charge");
        return;
    }
    response->status = 200;
    buf_add(&body, line.data, line.len);
}

void api_respond(const struct request *request, struct response *response)
{
    bool is_get = text_is(request->method, "GET");
    bool is_charges = text_is(request->path, "/charges");

    body.len = 0;
    if (is_charges && text_is(request->method, "POST")) {
        make_charge(request, response);
    } else if (is_charges && is_get) {
        response->status = 200;
        ledger_list(&body);
    } else if (is_get && text_is(request->path, "/ledger")) {
        response->status = 200;
        ledger_sum(&body);
    } else if (is_get && request->path.len > sizeof(CHARGES) - 1 &&
               !memcmp(request->path.data, CHARGES, sizeof(CHARGES) - 1)) {
        get_charge(request->path, response);
    } else if (is_charges) {
        refuse(response, 405, "POST makes a charge, GET lists them");
    } else {
        refuse(response, 404, "try /charges or /ledger");
    }
    buf_add(&body, "\n", 1);
    response->body = (struct text){body.data, body.len};
}
