/* targets.c - targets and routes as they are found, copied and freed. */
#include "config/targets.h"
#include "config/config_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lk_statuses_have(const struct lk_statuses *set, unsigned status)
{
    unsigned bit = status - LK_STATUS_MIN;

    return status >= LK_STATUS_MIN && status <= LK_STATUS_MAX &&
           (set->bits[bit / 64] >> bit % 64 & 1);
}

const struct lk_target *lk_target_find(const struct lk_targets *targets,
                                       struct lk_slice name)
{
    for (size_t i = 0; i < targets->count; i++) {
        if (latchkey_slice_equal(name,
                                 latchkey_slice(targets->targets[i].name))) {
            return &targets->targets[i];
        }
    }
    return NULL;
}

const char *lk_targets_names(const struct lk_targets *targets,
                             const char *between, char *text, size_t size)
{
    static const char more[] = "...";
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < targets->count; i++) {
        const char *name = targets->targets[i].name;
        const char *before = i ? between : "";
        if (len + strlen(before) + strlen(name) + strlen(between) +
                sizeof(more) >
            size) {
            snprintf(text + len, size - len, "%s%s", before, more);
            break;
        }
        len += (size_t)snprintf(text + len, size - len, "%s%s", before, name);
    }
    return text;
}

/* ---- What a target and a route own --------------------------------------- */

enum { TARGET_TEXTS = 12, ROUTE_TEXTS = 8 };

static void list_target(struct lk_target *target, char **texts[TARGET_TEXTS])
{
    char **all[TARGET_TEXTS] = {
        &target->name,        &target->url,        &target->socket,
        &target->headers,     &target->key_header, &target->id,
        &target->sign_secret, &target->ca_file,    &target->cert_file,
        &target->key_file,    &target->probe.path, &target->probe.list};

    memcpy(texts, all, sizeof(all));
}

static void list_route(struct lk_route *route, char **texts[ROUTE_TEXTS])
{
    char **all[ROUTE_TEXTS] = {&route->name,
                               &route->scope,
                               &route->tenant,
                               &route->target,
                               &route->probe.path,
                               &route->probe.list,
                               &route->rollback_target,
                               &route->rollback_path};

    memcpy(texts, all, sizeof(all));
}

/* Each text of a struct that was copied as it is becomes one of its own. */
static bool own_texts(char ***texts, size_t count)
{
    bool made = true;

    for (size_t i = 0; i < count; i++) {
        if (*texts[i]) {
            *texts[i] = strdup(*texts[i]);
            made = made && *texts[i];
        }
    }
    return made;
}

static void free_texts(char ***texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lk_secret_free(*texts[i]);
    }
}

static bool copy_target(const struct lk_target *from, struct lk_target *to)
{
    char **texts[TARGET_TEXTS];

    *to = *from;
    list_target(to, texts);
    return own_texts(texts, TARGET_TEXTS);
}

static bool copy_route(const struct lk_route *from, struct lk_route *to)
{
    char **texts[ROUTE_TEXTS];

    *to = *from;
    list_route(to, texts);
    return own_texts(texts, ROUTE_TEXTS);
}

enum lk_status lk_targets_copy(const struct lk_targets *from,
                               struct lk_targets *to)
{
    bool made = true;

    *to = (struct lk_targets){0};
    to->targets = calloc(from->count + 1, sizeof(*to->targets));
    to->routes = calloc(from->route_count + 1, sizeof(*to->routes));
    made = to->targets && to->routes;
    for (size_t i = 0; made && i < from->count; i++) {
        made = copy_target(&from->targets[i], &to->targets[i]);
        to->count++;
    }
    for (size_t i = 0; made && i < from->route_count; i++) {
        made = copy_route(&from->routes[i], &to->routes[i]);
        to->route_count++;
    }
    if (!made) {
        lk_targets_free(to);
    }
    return made ? LK_OK : LK_NOMEM;
}

void lk_targets_free(struct lk_targets *targets)
{
    for (size_t i = 0; i < targets->count; i++) {
        char **texts[TARGET_TEXTS];
        list_target(&targets->targets[i], texts);
        free_texts(texts, TARGET_TEXTS);
    }
    for (size_t i = 0; i < targets->route_count; i++) {
        char **texts[ROUTE_TEXTS];
        list_route(&targets->routes[i], texts);
        free_texts(texts, ROUTE_TEXTS);
    }
    free(targets->targets);
    free(targets->routes);
    *targets = (struct lk_targets){0};
}
