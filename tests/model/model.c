/*
 * model.c - checks the protocol in every scenario, or shows that a planted bug
 * is found. world.h says what is modelled.
 *
 *   model [--small | --deep] [--scenario NAME] [--plant NAME] [--list]
 *
 * Exit status: 0 every property holds, 1 one is violated (its trace is
 * printed), 2 it could not be checked.
 */
#include "tests/model/world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds of the usual run, and what a deep or a small one adds to them. */
static const struct scenario scenarios[] = {
    {
        .name = "claims",
        .about = "clients' requests are run at once; what is lost is held",
        .claims = true,
        .requests = 3,
        .tokens = 3,
        .cuts = 2,
        .crashes = 1,
        .late = 1,
    },
    {
        .name = "claims-again",
        .about = "the same, and what is lost may run again",
        .claims = true,
        .reexecute = true,
        .requests = 2,
        .tokens = 3,
        .cuts = 2,
        .crashes = 1,
        .late = 1,
    },
    {
        .name = "accepted",
        .about = "requests are accepted, and couriers bring them",
        .accepts = true,
        .gives_up = true,
        .requests = 1,
        .tokens = 4,
        .cuts = 1,
        .crashes = 1,
        .late = 2,
        .couriers = 2,
    },
    {
        .name = "accepted-again",
        .about = "the same, and what is lost may run again",
        .accepts = true,
        .reexecute = true,
        .gives_up = true,
        .requests = 1,
        .tokens = 3,
        .cuts = 1,
        .crashes = 1,
        .late = 2,
        .couriers = 2,
    },
    {
        .name = "both",
        .about = "one client claims what another has accepted",
        .claims = true,
        .accepts = true,
        .requests = 2,
        .tokens = 3,
        .cuts = 1,
        .crashes = 1,
        .late = 1,
        .couriers = 1,
    },
    {
        .name = "people",
        .about = "operators, probes and the end of a TTL come in between",
        .claims = true,
        .probes = true,
        .requests = 2,
        .tokens = 2,
        .cuts = 1,
        .crashes = 1,
        .late = 1,
        .orders = 2,
        .ends = 1,
    },
    {
        .name = "sql",
        .about = "the app completes in its own transaction; it may run again",
        .claims = true,
        .reexecute = true,
        .app_by_sql = true,
        .requests = 2,
        .tokens = 3,
        .cuts = 2,
        .crashes = 1,
        .late = 2,
    },
};

enum { SCENARIOS = sizeof(scenarios) / sizeof(scenarios[0]) };

static const struct {
    const char *name;
    const char *about;
} plants[] = {
#define X(name, word, about) {word, about},
#include "tests/model/plants.h"
#undef X
};

enum size { SMALL, USUAL, DEEP };

struct arguments {
    enum size size;
    enum plant plant;
    const char *scenario; /* NULL: all of them */
};

static struct scenario scaled(struct scenario scenario, enum size size)
{
    if (size == SMALL) {
        scenario.cuts = 1;
        scenario.late = 1;
        scenario.tokens = scenario.tokens > 3 ? 3 : scenario.tokens;
        scenario.ends = 0;
    }
    if (size == DEEP) {
        scenario.cuts++;
        scenario.late = 2;
        scenario.couriers += scenario.couriers && scenario.couriers < COURIERS;
    }
    return scenario;
}

static int usage(void)
{
    fputs("usage: model [--small | --deep] [--scenario NAME] [--plant NAME] "
          "[--list]\n",
          stderr);
    return 2;
}

static void list_all(void)
{
    for (size_t i = 0; i < SCENARIOS; i++) {
        printf("scenario %-26s %s\n", scenarios[i].name, scenarios[i].about);
    }
    for (size_t i = 1; i < PLANTS; i++) {
        printf("plant    %-26s %s\n", plants[i].name, plants[i].about);
    }
}

static bool read_plant(const char *name, enum plant *plant)
{
    for (size_t i = 0; i < PLANTS; i++) {
        if (strcmp(name, plants[i].name) == 0) {
            *plant = (enum plant)i;
            return true;
        }
    }
    return false;
}

/* False: something is not an argument. */
static bool read_arguments(int count, char **words, struct arguments *out)
{
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : NULL;
        if (strcmp(words[i], "--small") == 0) {
            out->size = SMALL;
        } else if (strcmp(words[i], "--deep") == 0) {
            out->size = DEEP;
        } else if (strcmp(words[i], "--scenario") == 0 && value) {
            out->scenario = words[++i];
        } else if (strcmp(words[i], "--plant") == 0 && value) {
            if (!read_plant(words[++i], &out->plant)) {
                return false;
            }
        } else {
            return false;
        }
    }
    return true;
}

/* The exit status of one scenario. */
static int run(const struct scenario *scenario, enum plant plant)
{
    struct finding finding = search(scenario, plant, UINT32_MAX / 4);

    printf("%s: %" PRIu64 " states, %" PRIu64 " steps, %u deep: %s\n",
           scenario->name, finding.states, finding.steps, finding.depth,
           finding.too_many ? "too many states"
           : finding.broken ? "violated"
                            : "every property holds");
    fflush(stdout);
    return finding.too_many ? 2 : finding.broken ? 1 : 0;
}

int main(int count, char **words)
{
    struct arguments arguments = {.size = USUAL};
    int status = 2;

    if (count == 2 && strcmp(words[1], "--list") == 0) {
        list_all();
        return 0;
    }
    if (!read_arguments(count, words, &arguments)) {
        return usage();
    }
    for (size_t i = 0; i < SCENARIOS; i++) {
        struct scenario scenario = scaled(scenarios[i], arguments.size);
        if (arguments.scenario &&
            strcmp(arguments.scenario, scenario.name) != 0) {
            continue;
        }
        status = run(&scenario, arguments.plant);
        if (status) {
            return status;
        }
    }
    return status == 2 ? usage() : status;
}
