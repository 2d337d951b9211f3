/*
 * redis_settings.c - the server's settings: what is refused, and what the rest
 * promises.
 *
 * A user who may not see them is not refused: the daemon says what it could not
 * see, and the promise is the weakest one.
 */
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS = 4 };

static void copy_text(char *to, size_t size, struct lk_slice text)
{
    snprintf(to, size, "%.*s", (int)text.len, text.data ? text.data : "");
}

/* The value of CONFIG GET, or an empty slice if it may not be seen. */
static enum lk_status read_setting(struct lk_link *link, int64_t deadline,
                                   struct lk_reply **reply,
                                   struct lk_slice *value)
{
    enum lk_status status = lk_link_reply(link, deadline, reply);

    *value = (struct lk_slice){0};
    if (!status && (*reply)->type == LK_REPLY_ARRAY && (*reply)->count == 2) {
        *value = lk_reply_text(&(*reply)->elements[1]);
    }
    return status;
}

static void set_policy(struct lk_redis_settings *settings,
                       struct lk_slice policy)
{
    settings->policy_known = policy.len != 0;
    settings->evicts =
        policy.len && !latchkey_slice_equal(policy, LK_SLICE("noeviction"));
    copy_text(settings->policy, sizeof(settings->policy), policy);
}

static void take_setting(struct lk_redis_settings *settings, size_t which,
                         bool known, struct lk_slice value)
{
    switch (which) {
    case 0:
        set_policy(settings, value);
        break;
    case 1:
        settings->aof_known = known;
        settings->aof = latchkey_slice_equal(value, LK_SLICE("yes"));
        break;
    case 2:
        settings->fsync_known = known;
        copy_text(settings->fsync, sizeof(settings->fsync), value);
        break;
    default:
        settings->saves_known = known;
        settings->saves = value.len != 0;
        break;
    }
}

static enum lk_status read_config(struct lk_link *link, int64_t deadline,
                                  struct lk_redis_settings *settings)
{
    static const char *const names[SETTINGS] = {
        "maxmemory-policy", "appendonly", "appendfsync", "save"};
    enum lk_status status = LK_OK;

    lk_link_reset(link);
    for (size_t i = 0; i < SETTINGS && !status; i++) {
        const struct lk_slice words[] = {LK_SLICE("CONFIG"), LK_SLICE("GET"),
                                         latchkey_slice(names[i])};
        status = lk_link_command(link, words, 3);
    }
    for (size_t i = 0; i < SETTINGS && !status; i++) {
        struct lk_reply *reply = NULL;
        struct lk_slice value;
        status = read_setting(link, deadline, &reply, &value);
        if (!status) {
            take_setting(settings, i,
                         reply->type == LK_REPLY_ARRAY && reply->count == 2,
                         value);
        }
        free(reply);
    }
    return status;
}

/* The value of a line "name:value" of INFO. */
static struct lk_slice info_field(struct lk_slice text, const char *name)
{
    size_t len = strlen(name);
    const char *at = text.data;
    const char *end = text.data + text.len;

    while (at && at < end) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        const char *stop = next ? next : end;
        if ((size_t)(stop - at) > len && !memcmp(at, name, len) &&
            at[len] == ':') {
            at += len + 1;
            while (stop > at && (stop[-1] == '\r' || stop[-1] == ' ')) {
                stop--;
            }
            return (struct lk_slice){at, (size_t)(stop - at)};
        }
        at = next ? next + 1 : NULL;
    }
    return (struct lk_slice){0};
}

/* Where CONFIG is not allowed, INFO may be. */
static enum lk_status read_info(struct lk_link *link, int64_t deadline,
                                struct lk_redis_settings *settings)
{
    const struct lk_slice words[] = {LK_SLICE("INFO")};
    struct lk_reply *reply = NULL;
    enum lk_status status = LK_OK;

    if (settings->policy_known && settings->aof_known) {
        return LK_OK;
    }
    status = lk_link_ask(link, deadline, words, 1, &reply);
    if (!status && reply->type == LK_REPLY_TEXT) {
        struct lk_slice text = lk_reply_text(reply);
        struct lk_slice aof = info_field(text, "aof_enabled");
        set_policy(settings, info_field(text, "maxmemory_policy"));
        settings->aof_known = aof.len != 0;
        settings->aof = latchkey_slice_equal(aof, LK_SLICE("1"));
    }
    free(reply);
    return status;
}

enum { WARN_UNSEEN = 1, WARN_NO_FILE = 2 };

/* Of each once, and again if it was well in between. */
static void warn(struct lk_redis *store,
                 const struct lk_redis_settings *settings)
{
    bool no_file =
        settings->aof_known && !settings->aof && !store->config.accept_loss;
    unsigned now = (settings->policy_known ? 0 : WARN_UNSEEN) |
                   (no_file ? WARN_NO_FILE : 0);
    unsigned news = now & ~atomic_exchange(&store->warned, now);

    if (news & WARN_UNSEEN) {
        lk_redis_log(store, 1,
                     "the user may not see Redis's settings: make sure that "
                     "maxmemory-policy is noeviction, or records are "
                     "forgotten while they are needed (+config|get lets the "
                     "daemon see for itself)");
    }
    if (news & WARN_NO_FILE) {
        lk_redis_log(store, 1,
                     "Redis keeps no append-only file: a restart may lose "
                     "every record, and operations run again (appendonly yes; "
                     "or accept_loss, if that is wanted)");
    }
}

enum lk_status lk_redis_check(struct lk_redis *store, struct lk_link *link,
                              int64_t deadline, struct lk_buf *error)
{
    struct lk_redis_settings settings = {0};
    enum lk_status status = read_config(link, deadline, &settings);

    if (!status) {
        status = read_info(link, deadline, &settings);
    }
    if (!status && settings.evicts) {
        status = latchkey_buf_printf(
            error,
            "maxmemory-policy of Redis is %s, which may drop records while "
            "they are needed; set it to noeviction",
            settings.policy);
        status = status ? status : LK_INVALID;
    }
    if (!status) {
        warn(store, &settings);
        pthread_mutex_lock(&store->numbers_lock);
        store->settings = settings;
        pthread_mutex_unlock(&store->numbers_lock);
    }
    return status;
}

/* ---- In words --------------------------------------------------------------
 */

/* What a crash of the server, or the loss of power, takes with it. */
static const char *crash_loses(const struct lk_redis_settings *settings)
{
    if (!settings->aof_known) {
        return "what Redis has not written to disk when it stops";
    }
    if (!settings->aof) {
        return settings->saves_known && !settings->saves
                   ? "everything when Redis stops"
                   : "what came after its last snapshot when Redis stops";
    }
    if (!settings->fsync_known || !strcmp(settings->fsync, "no")) {
        return "what is not on disk yet when the machine stops";
    }
    return !strcmp(settings->fsync, "always") ? NULL
                                              : "the last second in a crash";
}

static void fail_over_loses(const struct lk_redis *store, char *text,
                            size_t size)
{
    if (store->config.wait_replicas) {
        snprintf(text, size,
                 "on a fail-over to a replica beyond the %u that confirmed it",
                 store->config.wait_replicas);
    } else {
        snprintf(text, size,
                 "on a fail-over what had not reached the new primary");
    }
}

/* The scout looks again after a fail-over. */
static struct lk_redis_settings present(struct lk_redis *store)
{
    pthread_mutex_lock(&store->numbers_lock);
    struct lk_redis_settings settings = store->settings;
    pthread_mutex_unlock(&store->numbers_lock);
    return settings;
}

void lk_redis_promise(struct lk_store *base, char text[LK_PROMISE_SIZE])
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_redis_settings settings = present(store);
    const char *crash = crash_loses(&settings);
    char fail_over[72];

    fail_over_loses(store, fail_over, sizeof(fail_over));
    snprintf(text, LK_PROMISE_SIZE,
             "weaker than the other stores: Redis may lose %.66s%s%s; an "
             "operation may then run twice",
             crash ? crash : "", crash ? ", and " : "", fail_over);
}

enum lk_status lk_redis_describe(struct lk_store *base, struct lk_buf *text,
                                 bool *strict)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_redis_settings settings = present(store);
    const char *crash = crash_loses(&settings);
    char fail_over[72];
    enum lk_status status;

    *strict = false;
    fail_over_loses(store, fail_over, sizeof(fail_over));
    if (crash) {
        status = latchkey_buf_printf(text, "Redis may lose %s.\n", crash);
    } else {
        status = latchkey_buf_add_text(
            text, "An acknowledged claim or result survives power loss of "
                  "the one server that has it (appendfsync always).\n");
    }
    if (!status) {
        status = latchkey_buf_printf(text, "Redis may lose %s.\n", fail_over);
    }
    if (!status) {
        status = latchkey_buf_add_text(
            text, "Whatever is lost that way may run twice.\n"
                  "Several latchkeyd on several machines may share it.\n");
    }
    if (!status && !settings.policy_known) {
        status = latchkey_buf_add_text(
            text, "The user may not see maxmemory-policy: it has to be "
                  "noeviction.\n");
    }
    return status;
}
