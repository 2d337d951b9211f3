/* provider_api.c - what the provider does with a request. */
#include "provider.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char CHARGES[] = "/v1/charges/ch_";
static const char KEYS[] = "/v1/keys/";

static struct buf body;    /* of the present response */
static struct buf escaped; /* the key in hand, as the ledger writes it */
static uint64_t calls, effects, replays;
static int calls_fd = -1;

void calls_open(const char *path)
{
    calls_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (calls_fd < 0) {
        die("%s: %s", path, strerror(errno));
    }
}

/* Not synced: it outlives this process, not the machine. */
static void note_call(struct text key, const char *did)
{
    char line[1024];
    struct timespec now;
    int len;

    calls++;
    if (calls_fd < 0) {
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    len =
        snprintf(line, sizeof(line),
                 "{\"key\":\"%.*s\",\"did\":\"%s\",\"ms\":%" PRIu64 "}\n",
                 (int)(key.len < 256 ? key.len : 256), key.data, did,
                 (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
    if (write(calls_fd, line, (size_t)len) != len) {
        die("the list of calls cannot be written: %s", strerror(errno));
    }
}

static void refuse(struct response *response, int status, const char *why)
{
    response->status = status;
    body.len = 0;
    buf_printf(&body, "{\"error\":\"%s\"}", why);
}

static void add_header(struct response *response, const char *name,
                       const char *value)
{
    size_t len = strlen(response->headers);

    snprintf(response->headers + len, sizeof(response->headers) - len,
             "%s: %s\r\n", name, value);
}

/* The key as the ledger writes it; valid until the next one. */
static struct text escape(struct text key)
{
    escaped.len = 0;
    buf_add_string(&escaped, key);
    return (struct text){escaped.data + 1, escaped.len - 2};
}

/* Is it what the earlier charge of that key was for? */
static bool is_same(struct text line, const struct charge *charge)
{
    struct text value;
    uint64_t amount = 0;
    bool is_string;

    return json_member(line, "amount", &is_string, &value) &&
           text_number(value, &amount) && amount == charge->amount &&
           json_member(line, "customer", &is_string, &value) &&
           value.len == charge->customer.len &&
           !memcmp(value.data, charge->customer.data, value.len);
}

static void show_charge(struct response *response, int status, uint64_t number,
                        struct text line)
{
    char text[64];

    response->status = status;
    snprintf(text, sizeof(text), "ch_%06" PRIu64, number);
    add_header(response, "Provider-Id", text);
    snprintf(text, sizeof(text), "%s%06" PRIu64, CHARGES, number);
    add_header(response, "Location", text);
    buf_add(&body, line.data, line.len);
}

/* Makes the charge, or finds the one of that key; what it did. */
static const char *act(struct key *key, const struct charge *charge,
                       struct response *response)
{
    struct text line;
    uint64_t number;

    if (provider.honours && charge->key.len > 0 && key->effects > 0) {
        if (!ledger_find(key->first, &line) || !is_same(line, charge)) {
            refuse(response, 409, "the key was used for another charge");
            return "refused";
        }
        replays++;
        add_header(response, "Idempotent-Replayed", "true");
        show_charge(response, 201, key->first, line);
        return "replayed";
    }
    line = ledger_charge(charge, &number);
    key_charged(key, number);
    effects++;
    show_charge(response, 201, number, line);
    return "charged";
}

/* What it does instead of acting, if it does; NULL: it acts. */
static const char *act_not(const struct manner *manner,
                           struct response *response)
{
    if (manner->die == BEFORE) {
        kill(getpid(), SIGKILL);
    }
    if (manner->drop == BEFORE || manner->hang == BEFORE) {
        response->drop = true;
        response->hang = manner->hang == BEFORE;
        return manner->hang == BEFORE ? "hung" : "dropped";
    }
    if (manner->retry_after[0]) {
        add_header(response, "Retry-After", manner->retry_after);
    }
    if (manner->redirect[0]) {
        add_header(response, "Location", manner->redirect);
        refuse(response, 302, "elsewhere");
        return "redirected";
    }
    if (manner->fail) {
        refuse(response, (int)manner->fail,
               "out of order, nothing was charged");
        return "failed";
    }
    return NULL;
}

static void pad_body(uint64_t bytes)
{
    body.len--; /* the closing brace */
    buf_printf(&body, ",\"pad\":\"");
    buf_reserve(&body, bytes);
    memset(body.data + body.len, 'x', bytes);
    body.len += bytes;
    buf_printf(&body, "\"}");
}

/* How the response leaves, or does not. */
static void spoil(const struct manner *manner, struct response *response)
{
    response->drop = response->drop || manner->drop == AFTER;
    response->hang = response->hang || manner->hang == AFTER;
    response->die = manner->die == AFTER;
    response->delay_ms = manner->delay_ms;
    response->pace_ms = manner->pace_ms;
    if (manner->garbage || manner->cut) {
        response->bare = true;
        body.len = 0;
        buf_printf(&body, manner->cut ? "HTTP/1.1 201 Created\r\n"
                                        "Content-Length: 100\r\n\r\n{"
                                      : "this is not HTTP\r\n\r\n");
    }
}

static void make_charge(const struct request *request,
                        struct response *response)
{
    struct charge charge = {0};
    struct manner manner;
    struct text given = {0}, text = escape(request->key);
    struct key *key = key_get(text);
    const char *wrong = charge_read(request, &charge), *did = NULL;
    bool is_string;

    key->calls++;
    if (!wrong) {
        if (!json_member(request->body, "manner", &is_string, &given)) {
            given.len = 0;
        }
        wrong = manner_choose(given, key, &manner);
    }
    if (wrong) {
        refuse(response, 422, wrong);
        note_call(text, "refused");
        return;
    }
    did = act_not(&manner, response);
    if (!did) {
        did = act(key, &charge, response);
        if (provider.pad + manner.giant > 0) {
            pad_body(provider.pad + manner.giant);
        }
    }
    spoil(&manner, response);
    note_call(text, did);
}

static void get_charge(struct text digits, struct response *response)
{
    struct text line;
    uint64_t number;

    if (!text_number(digits, &number) || !ledger_find(number, &line)) {
        refuse(response, 404, "there is no such charge");
        return;
    }
    show_charge(response, 200, number, line);
}

/* What was made under a key: 200 with the first charge, or 404. */
static void get_key(struct text text, struct response *response)
{
    const struct key *key = key_find(escape(text));
    struct text line;

    if (!key || !ledger_find(key->first, &line)) {
        refuse(response, 404, "nothing was charged under that key");
        return;
    }
    show_charge(response, 200, key->first, line);
}

static void list_key(const struct key *key)
{
    struct text line;

    buf_printf(&body, "[");
    for (uint64_t at = key ? key->first : 0; at && ledger_find(at, &line);
         at = keys_next(at)) {
        buf_printf(&body, "%s", at == key->first ? "" : ",\n");
        buf_add(&body, line.data, line.len);
    }
    buf_printf(&body, "]");
}

static void list_charges(struct text query, struct response *response)
{
    struct text wanted;

    response->status = 200;
    buf_printf(&body, "{\"data\":");
    if (http_query(query, "idempotency_key", &wanted)) {
        list_key(key_find(escape(wanted)));
    } else {
        ledger_list(&body);
    }
    buf_printf(&body, "}");
}

static void export_jsonl(struct response *response)
{
    struct text line;

    response->status = 200;
    response->type = "application/jsonl";
    for (uint64_t number = 1; ledger_find(number, &line); number++) {
        buf_add(&body, line.data, line.len);
        buf_add(&body, "\n", 1);
    }
}

static void export_csv(struct response *response)
{
    static const char *const columns[] = {"id",       "amount", "currency",
                                          "customer", "key",    "created"};
    struct text line, value;
    bool is_string;

    response->status = 200;
    response->type = "text/csv";
    buf_printf(&body, "id,amount,currency,customer,idempotency_key,created\n");
    for (uint64_t number = 1; ledger_find(number, &line); number++) {
        for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
            json_member(line, columns[i], &is_string, &value);
            buf_printf(&body, "%s", i > 0 ? "," : "");
            buf_add(&body, value.data, value.len);
        }
        buf_printf(&body, "\n");
    }
}

static void show_control(struct response *response, bool whole)
{
    unsigned now, most;

    server_load(&now, &most);
    response->status = 200;
    buf_printf(&body,
               "{\"calls\":%" PRIu64 ",\"effects\":%" PRIu64
               ",\"replays\":%" PRIu64 ",\"charges\":%" PRIu64
               ",\"in_flight\":%u,\"most_in_flight\":%u",
               calls, effects, replays, ledger_count(), now, most);
    if (whole) {
        buf_printf(&body, ",\"keys\":");
        keys_list(&body);
    }
    buf_printf(&body, "}");
}

/* A new manner, or {"release":1}: what hangs is let go. */
static void control(struct text object, struct response *response)
{
    struct text value;
    bool is_string;
    const char *wrong = NULL;

    if (json_member(object, "release", &is_string, &value)) {
        server_release();
    } else {
        wrong = manner_set(object);
    }
    if (wrong) {
        refuse(response, 422, wrong);
        return;
    }
    show_control(response, false);
}

static bool is_allowed(const struct request *request)
{
    struct text text = request->authorization;
    const size_t bearer = sizeof("Bearer ") - 1;

    return !provider.token ||
           (text.len > bearer && !memcmp(text.data, "Bearer ", bearer) &&
            text_is((struct text){text.data + bearer, text.len - bearer},
                    provider.token));
}

static bool begins(struct text path, const char *prefix, struct text *rest)
{
    size_t len = strlen(prefix);

    if (path.len <= len || memcmp(path.data, prefix, len) != 0) {
        return false;
    }
    *rest = (struct text){path.data + len, path.len - len};
    return true;
}

static void respond_get(const struct request *request,
                        struct response *response)
{
    struct text path = request->path, rest;

    if (text_is(path, "/v1/charges")) {
        list_charges(request->query, response);
    } else if (text_is(path, "/v1/charges.csv")) {
        export_csv(response);
    } else if (text_is(path, "/v1/charges.jsonl")) {
        export_jsonl(response);
    } else if (begins(path, CHARGES, &rest)) {
        get_charge(rest, response);
    } else if (begins(path, KEYS, &rest)) {
        get_key(rest, response);
    } else if (text_is(path, "/v1/ledger")) {
        response->status = 200;
        ledger_sum(&body);
    } else {
        refuse(response, 404, "try /v1/charges");
    }
}

void api_respond(const struct request *request, struct response *response)
{
    bool is_get = text_is(request->method, "GET");
    bool is_post = text_is(request->method, "POST");

    body.len = 0;
    if (is_post && text_is(request->path, "/control")) {
        control(request->body, response);
    } else if (is_get && text_is(request->path, "/control")) {
        show_control(response, false);
    } else if (is_get && text_is(request->path, "/control/calls")) {
        show_control(response, true);
    } else if (!is_allowed(request)) {
        refuse(response, 401, "show your token");
    } else if (is_post && text_is(request->path, "/v1/charges")) {
        make_charge(request, response);
    } else if (is_get) {
        respond_get(request, response);
    } else {
        refuse(response, is_post ? 404 : 405, "try POST /v1/charges");
    }
    response->body = (struct text){body.data, body.len};
}
