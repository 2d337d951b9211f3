/*
 * search.c - every world that can be reached, breadth first, each one once; and
 * then the liveness of the graph that this is.
 */
#include "tests/model/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STORY_DEPTH = 400 };

/* Worlds in the order in which they were found: a parent comes before its
 * children, so a path back to the start is a shortest one. */
struct graph {
    struct world *worlds;
    uint32_t *parents;
    uint32_t count;
    uint32_t room;
    uint32_t *table; /* of indexes + 1, open addressing */
    uint32_t mask;
    uint32_t at; /* the world whose steps are being taken */
    uint64_t steps;
    uint64_t states_max;
    bool too_many;
    /* The first violation: */
    enum property broken;
    const char *why;
    struct world last; /* the world that it leads to; its parent is `at` */
};

static void *need(void *memory)
{
    if (!memory) {
        fputs("model: out of memory\n", stderr);
        exit(2);
    }
    return memory;
}

/* ---- the set of worlds -----------------------------------------------------
 */

static uint64_t hash_world(const struct world *w)
{
    const uint8_t *bytes = (const uint8_t *)w;
    uint64_t hash = 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < sizeof(*w); i += sizeof(uint64_t)) {
        uint64_t part = 0;
        size_t rest = sizeof(*w) - i;
        memcpy(&part, bytes + i, rest < sizeof(part) ? rest : sizeof(part));
        hash = (hash ^ part) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

/* Its place in the table, whether or not it is there. */
static uint32_t *find_place(const struct graph *graph, const struct world *w)
{
    uint32_t at = (uint32_t)hash_world(w) & graph->mask;

    while (graph->table[at] &&
           memcmp(&graph->worlds[graph->table[at] - 1], w, sizeof(*w)) != 0) {
        at = (at + 1) & graph->mask;
    }
    return &graph->table[at];
}

static void grow(struct graph *graph)
{
    graph->room = graph->room ? 2 * graph->room : 1 << 14;
    graph->worlds =
        need(realloc(graph->worlds, graph->room * sizeof(*graph->worlds)));
    graph->parents =
        need(realloc(graph->parents, graph->room * sizeof(*graph->parents)));
    free(graph->table);
    graph->mask = 2 * graph->room - 1;
    graph->table = need(calloc(2 * (size_t)graph->room, sizeof(uint32_t)));
    for (uint32_t i = 0; i < graph->count; i++) {
        *find_place(graph, &graph->worlds[i]) = i + 1;
    }
}

static void add_world(struct graph *graph, const struct world *w)
{
    uint32_t *place;

    if (graph->count == graph->room) {
        grow(graph);
    }
    place = find_place(graph, w);
    if (*place) {
        return;
    }
    graph->worlds[graph->count] = *w;
    graph->parents[graph->count] = graph->at;
    *place = ++graph->count;
    graph->too_many = graph->count >= graph->states_max;
}

static void free_graph(struct graph *graph)
{
    free(graph->worlds);
    free(graph->parents);
    free(graph->table);
}

/* ---- safety ----------------------------------------------------------------
 */

static void see_edge(struct explore *x, const struct world *next)
{
    struct graph *graph = x->context;

    graph->steps++;
    if (x->broken) {
        graph->broken = x->broken;
        graph->why = x->why;
        graph->last = *next;
        x->enough = true;
        return;
    }
    add_world(graph, next);
}

static void visit_all(struct graph *graph, struct explore x)
{
    struct world start = first_world();

    x.edge = see_edge;
    x.context = graph;
    add_world(graph, &start);
    for (graph->at = 0; graph->at < graph->count; graph->at++) {
        struct world from = graph->worlds[graph->at]; /* the array may move */
        x.from = &from;
        expand(&x);
        if (graph->broken || graph->too_many) {
            return;
        }
    }
}

/* ---- liveness --------------------------------------------------------------
 */

typedef bool (*bad_fn)(const struct explore *x, const struct world *w);

struct leaving {
    const struct graph *graph;
    bad_fn is_bad;
    uint8_t *leaves; /* by index: bad, but known to have a way out */
};

static void see_way_out(struct explore *x, const struct world *next)
{
    struct leaving *leaving = x->context;
    uint32_t index = *find_place(leaving->graph, next);

    x->enough =
        !leaving->is_bad(x, next) || (index && leaving->leaves[index - 1]);
}

/* One round, from the last world to the first: most ways lead to later ones.
 * Where a bound of the model ends all ways, that is not the protocol's doing.
 */
static bool find_ways_out(struct leaving *leaving, struct explore x,
                          uint32_t *first)
{
    const struct graph *graph = leaving->graph;
    bool found = false;

    *first = graph->count;
    for (uint32_t i = graph->count; i-- > 0;) {
        x.from = &graph->worlds[i];
        if (leaving->leaves[i] || !leaving->is_bad(&x, x.from)) {
            continue;
        }
        x.enough = x.bounded = false;
        expand(&x);
        leaving->leaves[i] = x.enough || x.bounded;
        found |= leaving->leaves[i];
        *first = leaving->leaves[i] ? *first : i;
    }
    return found;
}

/* Backward reachability, among the bad worlds alone. */
static void check_leaving(struct graph *graph, struct explore x, bad_fn is_bad,
                          enum property property, const char *why)
{
    struct leaving leaving = {graph, is_bad, need(calloc(graph->count, 1))};
    uint32_t first;

    x.edge = see_way_out;
    x.context = &leaving;
    x.fair_only = true;
    while (find_ways_out(&leaving, x, &first)) {
        continue;
    }
    if (first < graph->count) {
        graph->broken = property;
        graph->why = why;
        graph->last = graph->worlds[first];
        graph->at = graph->parents[first];
    }
    free(leaving.leaves);
}

/* ---- the trace -------------------------------------------------------------
 */

struct telling {
    const struct world *to;
    char story[sizeof(((struct explore *)0)->story)];
    bool found;
};

static void see_step(struct explore *x, const struct world *next)
{
    struct telling *telling = x->context;

    if (memcmp(next, telling->to, sizeof(*next)) == 0) {
        memcpy(telling->story, x->story, sizeof(telling->story));
        telling->found = true;
        x->enough = true;
    }
}

static void print_step(struct explore x, unsigned number,
                       const struct world *from, const struct world *to)
{
    struct telling telling = {.to = to, .story = "?"};
    const struct record *record = &to->record;

    x.from = from;
    x.edge = see_step;
    x.context = &telling;
    x.narrate = true;
    expand(&x);
    printf("%4u  %-62s %s", number, telling.story,
           lk_state_word((enum lk_state)record->state));
    if (record->token) {
        printf(" %u%s%s", record->token, record->lapsed ? ", lapsed" : "",
               to->job.called ? ", called" : "");
    }
    putchar('\n');
}

static unsigned depth_of(const struct graph *graph, uint32_t index)
{
    unsigned depth = 0;

    for (; index; index = graph->parents[index]) {
        depth++;
    }
    return depth;
}

static void print_trace(const struct graph *graph, struct explore x)
{
    uint32_t path[STORY_DEPTH];
    unsigned depth = depth_of(graph, graph->at);
    uint32_t index = graph->at;

    printf("violated: %s\n%4s  %-62s %s\n", property_text(graph->broken), "",
           "step", "the record: state, token");
    for (unsigned i = depth + 1; i-- > 0 && i < STORY_DEPTH;) {
        path[i] = index;
        index = graph->parents[index];
    }
    for (unsigned i = 0; i < depth && i + 1 < STORY_DEPTH; i++) {
        print_step(x, i + 1, &graph->worlds[path[i]],
                   &graph->worlds[path[i + 1]]);
    }
    print_step(x, depth + 1, &graph->worlds[graph->at], &graph->last);
    printf("      => %s\n", graph->why);
}

/* ---- all of it -------------------------------------------------------------
 */

struct finding search(const struct scenario *scenario, enum plant plant,
                      uint64_t states_max)
{
    struct graph graph = {.states_max = states_max};
    struct explore x = {.scenario = scenario, .plant = plant};
    struct finding finding;

    visit_all(&graph, x);
    if (!graph.broken && !graph.too_many) {
        finding.depth = depth_of(&graph, graph.count - 1);
        check_leaving(&graph, x, is_uncertain_for_nothing,
                      NOT_UNCERTAIN_FOR_GOOD,
                      "nothing but luck or a person leads out of this");
    }
    if (!graph.broken && !graph.too_many) {
        check_leaving(&graph, x, is_unsettled, NOT_STUCK,
                      "nothing but luck or a person ends it");
    }
    if (graph.broken) {
        finding.depth = depth_of(&graph, graph.at) + 1;
        print_trace(&graph, x);
    }
    finding.broken = graph.broken;
    finding.states = graph.count;
    finding.steps = graph.steps;
    finding.too_many = graph.too_many && !graph.broken;
    free_graph(&graph);
    return finding;
}
