/*
 * rules_gen.c - writes what SQL and Lua need of the rules, when the programs
 * are built: a template comes in, the text that the stores embed goes out.
 *
 *   rules_gen sql <store/sql/X.sql          names become numbers, with the name
 *   rules_gen lua <store/lua/X.lua          in a comment behind each
 *   rules_gen header                        the numbers as strings, for SQL in
 *                                           C: LK_SQL_STATE_COMPLETED is "4"
 *   rules_gen steps operation|job           what the rules say of every input
 *   rules_gen names operation|job           what the input is made of: events,
 *                                           states, conditions, one list a line
 *
 * In a template @NAME@ stands for a number, @NAME(expression)@ for a part of a
 * code that decide or decide_job has returned, and @DECIDE@ and @DECIDE_JOB@
 * for the rules themselves. A name that there is not ends the build.
 *
 * A code is verdict + effect * 16 + (next + 1) * 256, where 0 is "the state
 * stays"; of a job outcome + (next + 1) * 8 + (tells + 1) * 64 + effects *
 * 2048.
 */
#include "lib/job_machine.h"
#include "store/jobs.h"
#include "store/sql_codes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EFFECT_SHIFT = 4,
    NEXT_SHIFT = 8,
    JOB_NEXT_SHIFT = 3,
    JOB_TELLS_SHIFT = 6,
    JOB_EFFECT_SHIFT = 11,
};

static bool lua;
static FILE *out;

/* ---- names --------------------------------------------------------------- */

struct name {
    const char *name;
    long value;
    const char *word;
};

static const struct name names[] = {
#define X(name, word) {"STATE_" #name, LK_STATE_##name, word},
    LK_STATE_MAP(X)
#undef X
#define X(name, word) {"EVENT_" #name, LK_EVENT_##name, word},
        LK_EVENT_MAP(X)
#undef X
#define X(name, word) {"VERDICT_" #name, LK_VERDICT_##name, word},
            LK_VERDICT_MAP(X)
#undef X
#define X(name, text) {"EFFECT_" #name, LK_EFFECT_##name, #name},
                LK_EFFECT_MAP(X)
#undef X
#define X(name, word) {"JOB_" #name, LK_JOB_##name, word},
                    LK_JOB_STATE_MAP(X)
#undef X
#define X(name, word) {"JOB_EVENT_" #name, LK_JOB_EVENT_##name, word},
                        LK_JOB_EVENT_MAP(X)
#undef X
#define X(name, member, text)                                                  \
    {"JOB_IF_" #name, 1L << LK_JOB_CONDITION_##name, #member},
                            LK_JOB_CONDITION_MAP(X)
#undef X
#define X(name, text) {"JOB_OUTCOME_" #name, LK_JOB_OUTCOME_##name, #name},
                                LK_JOB_OUTCOME_MAP(X)
#undef X
#define X(name, value, text) {"FLAG_" #name, value, #name},
                                    LK_SQL_FLAG_MAP(X)
#undef X
#define X(name, value, text) {"VERDICT_" #name, value, #name},
                                        LK_SQL_VERDICT_MAP(X)
#undef X
#define X(name, value, text) {"END_FLAG_" #name, value, #name},
                                            LK_SQL_END_MAP(X)
#undef X
#define X(name, value, text) {"FENCE_" #name, value, #name},
                                                LK_SQL_FENCE_MAP(X)
#undef X
#define X(name, value, text) {"LEASE_" #name, value, #name},
                                                    LK_SQL_LEASE_MAP(X)
#undef X
#define X(name, value, text) {"SETTLE_" #name, value, #name},
                                                        LK_SQL_SETTLE_MAP(X)
#undef X
#define X(name, value, text) {"IMPORT_" #name, value, #name},
                                                            LK_SQL_IMPORT_MAP(X)
#undef X
    /* The orders that enum lk_end and enum lk_job_action_kind share with the
     * events of jobs. */
    {"END_FIRST", LK_JOB_EVENT_END_DELIVERED, "end delivered"},
    {"ACTION_FIRST", LK_JOB_EVENT_ACTION_RETRY, "action retry"},
    {"ACTION_PAUSE", LK_ACTION_PAUSE, "pause"},
    {"ACTION_RESUME", LK_ACTION_RESUME, "resume"},
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(
    const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("rules_gen: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void print_comment(const char *word)
{
    fprintf(out, lua ? " --[[ " : " /* ");
    fputs(word, out);
    fprintf(out, lua ? " ]]" : " */");
}

static void print_number(const struct name *name)
{
    fprintf(out, "%ld", name->value);
    print_comment(name->word);
}

/* ---- sets of states ------------------------------------------------------ */

static const char *const state_words[] = {
#define X(name, word) word,
    LK_STATE_MAP(X)
#undef X
};

static const char *const event_words[] = {
#define X(name, word) word,
    LK_EVENT_MAP(X)
#undef X
};

static const char *const verdict_words[] = {
#define X(name, word) word,
    LK_VERDICT_MAP(X)
#undef X
};

static const char *const effect_names[] = {
#define X(name, text) #name,
    LK_EFFECT_MAP(X)
#undef X
};

static const char *const job_state_words[] = {
#define X(name, word) word,
    LK_JOB_STATE_MAP(X)
#undef X
};

static const char *const job_event_words[] = {
#define X(name, word) word,
    LK_JOB_EVENT_MAP(X)
#undef X
};

static const char *const job_outcome_names[] = {
#define X(name, text) #name,
    LK_JOB_OUTCOME_MAP(X)
#undef X
};

static const char *const job_effect_names[] = {
#define X(name, text) #name,
    LK_JOB_EFFECT_MAP(X)
#undef X
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The conditions as SQL and Lua name them: a parameter, or in SQL a flag. */
struct condition {
    const char *name;
    const char *parameter;
    const char *text;
};

static const struct condition conditions[] = {
#define X(name, member, text) {#name, #member, text},
    LK_CONDITION_MAP(X)
#undef X
};

static const struct condition job_conditions[] = {
#define X(name, member, text) {#name, #member, text},
    LK_JOB_CONDITION_MAP(X)
#undef X
};

static long sql_flag_of(unsigned condition)
{
    switch (condition) {
    case LK_CONDITION_REEXECUTE:
        return LK_SQL_FLAG_REEXECUTE;
    case LK_CONDITION_NO_NEW:
        return LK_SQL_FLAG_NO_NEW;
    case LK_CONDITION_PROOF:
        return LK_SQL_FLAG_PROOF;
    case LK_CONDITION_RUNNING:
        return LK_SQL_FLAG_RUNNING;
    case LK_CONDITION_DOUBTED:
        return LK_SQL_FLAG_DOUBTED;
    default:
        return 0;
    }
}

static unsigned count_bits(unsigned set)
{
    return (unsigned)__builtin_popcount(set);
}

/* ---- conditions of a rule ------------------------------------------------ */

static void print_and(bool *first)
{
    if (!*first) {
        fprintf(out, lua ? " and " : " AND ");
    }
    *first = false;
}

static void print_member(unsigned value, const char *word)
{
    fprintf(out, "%u", value);
    print_comment(word);
}

/* `of` is one of `set`; nothing if it is always so. */
static void print_set(const char *of, unsigned set, unsigned all,
                      const char *const *words, bool *first)
{
    bool inner = true;

    if ((set & all) == all) {
        return;
    }
    print_and(first);
    if (count_bits(all & ~set) == 1 && count_bits(set) > 1) {
        unsigned other = (unsigned)__builtin_ctz(all & ~set);
        fprintf(out, lua ? "%s ~= " : "%s <> ", of);
        print_member(other, words[other]);
        return;
    }
    bool several = count_bits(set) > 1;
    if (lua && several) {
        putc('(', out);
    } else if (!lua) {
        fprintf(out, several ? "%s IN (" : "%s = ", of);
    }
    for (unsigned i = 0; i < 32; i++) {
        if (!(set >> i & 1)) {
            continue;
        }
        if (!inner) {
            fprintf(out, lua ? " or " : ", ");
        }
        inner = false;
        if (lua) {
            fprintf(out, "%s == ", of);
        }
        print_member(i, words[i]);
    }
    if (several) {
        putc(')', out);
    }
}

static void print_flags(long flags, bool wanted, bool *first)
{
    if (!flags) {
        return;
    }
    print_and(first);
    if (!wanted) {
        fprintf(out, "(flags & %ld) = 0", flags);
    } else if (flags & (flags - 1)) {
        fprintf(out, "(flags & %ld) = %ld", flags, flags);
    } else {
        fprintf(out, "(flags & %ld) <> 0", flags);
    }
}

static void print_conditions(unsigned set, bool wanted, bool *first)
{
    long flags = 0;

    for (unsigned i = 0; i < LK_CONDITIONS; i++) {
        if (!(set >> i & 1)) {
            continue;
        }
        if (!lua && sql_flag_of(i)) {
            flags |= sql_flag_of(i);
            continue;
        }
        print_and(first);
        fprintf(out, "%s%s",
                wanted ? ""
                : lua  ? "not "
                       : "NOT ",
                conditions[i].parameter);
    }
    print_flags(flags, wanted, first);
}

/* Behind a rule: which flags it looks at. */
static void print_flag_names(const struct condition *of, unsigned count,
                             unsigned required, unsigned forbidden)
{
    bool any = false;

    for (unsigned i = 0; i < count; i++) {
        bool flag = of == job_conditions || sql_flag_of(i);
        if (flag && ((required | forbidden) >> i & 1)) {
            fprintf(out, "%s%s%s", any ? ", " : " -- ",
                    forbidden >> i & 1 ? "not " : "", of[i].parameter);
            any = true;
        }
    }
}

/* ---- the rules of operations --------------------------------------------- */

static unsigned group_events(const struct lk_rule *rows)
{
    unsigned events = 0;

    for (unsigned event = 0; event < LK_EVENTS; event++) {
        if (lk_machine_rules[event].rows == rows) {
            events |= 1u << event;
        }
    }
    return events;
}

static int code_of(const struct lk_rule *rule)
{
    return rule->verdict | rule->effect << EFFECT_SHIFT |
           (rule->next + 1) << NEXT_SHIFT;
}

static void print_result(const struct lk_rule *rule)
{
    if (lua) {
        fprintf(out, "return %d, %d, ", rule->verdict, rule->effect);
        fprintf(out, rule->next == LK_STATE_SAME ? "state" : "%d", rule->next);
        fprintf(out, " -- ");
    } else {
        fprintf(out, "%d /* ", code_of(rule));
    }
    if (rule->next != LK_STATE_SAME) {
        fprintf(out, "%s, ", state_words[rule->next]);
    }
    fprintf(out, "%s", verdict_words[rule->verdict]);
    if (rule->effect) {
        fprintf(out, ", %s", effect_names[rule->effect]);
    }
    if (!lua) {
        fprintf(out, " */");
    }
}

static void print_group(const struct lk_rules *group)
{
    unsigned events = group_events(group->rows);

    for (size_t i = 0; i < group->count; i++) {
        const struct lk_rule *rule = &group->rows[i];
        bool last = i + 1 == group->count;
        bool first = true;

        fprintf(out, last  ? (lua ? "        " : "        ELSE ")
                     : lua ? "        if "
                           : "        WHEN ");
        if (!last) {
            print_set("event", rule->events, events, event_words, &first);
            print_set(lua ? "state" : "was", rule->states,
                      (1u << LK_STATES) - 1, state_words, &first);
            print_conditions(rule->required, true, &first);
            print_conditions(rule->forbidden, false, &first);
            fprintf(out, lua ? " then\n            " : "\n            THEN ");
        }
        print_result(rule);
        if (!last && !lua) {
            print_flag_names(conditions, LK_CONDITIONS, rule->required,
                             rule->forbidden);
        }
        fprintf(out, last  ? (lua ? "\n" : " END\n")
                     : lua ? "\n        end\n"
                           : "\n");
    }
}

static void print_decide(void)
{
    unsigned all = 0;

    fprintf(out, lua ? "" : "CASE\n");
    for (unsigned event = 0; event < LK_EVENTS; event++) {
        const struct lk_rules *group = &lk_machine_rules[event];
        unsigned events = group_events(group->rows);
        bool first = true;

        if (all & events) {
            continue; /* with an event before it */
        }
        fprintf(out, lua ? "    %s " : "    %s",
                !lua  ? "WHEN "
                : all ? "elseif"
                      : "if");
        print_set("event", events, UINT32_MAX, event_words, &first);
        fprintf(out, lua ? " then\n" : " THEN CASE\n");
        print_group(group);
        all |= events;
    }
    if (lua) {
        fprintf(out, "    end\n");
    } else {
        fprintf(out, "    ELSE %d /* no such event */ END\n",
                LK_SQL_VERDICT_UNKNOWN_EVENT);
    }
}

/* ---- the rules of jobs --------------------------------------------------- */

static unsigned job_group_events(const struct lk_job_rule *rows)
{
    unsigned events = 0;

    for (unsigned event = 0; event < LK_JOB_EVENTS; event++) {
        if (lk_job_machine_rules[event].rows == rows) {
            events |= 1u << event;
        }
    }
    return events;
}

static unsigned long job_code(unsigned outcome, int next, int tells,
                              unsigned effects)
{
    return outcome | (unsigned)(next + 1) << JOB_NEXT_SHIFT |
           (unsigned)(tells + 1) << JOB_TELLS_SHIFT |
           (unsigned long)effects << JOB_EFFECT_SHIFT;
}

static void print_job_result(const struct lk_job_rule *rule)
{
    fprintf(out, "%lu /* ",
            job_code(rule->outcome, rule->next, rule->tells, rule->effects));
    if (rule->next != LK_JOB_SAME) {
        fprintf(out, "%s, ", job_state_words[rule->next]);
    }
    fprintf(out, "%s", job_outcome_names[rule->outcome]);
    if (rule->tells != LK_JOB_TELLS_NOTHING) {
        fprintf(out, ", operation: %s", event_words[rule->tells]);
    }
    for (unsigned i = 0; i < LK_JOB_EFFECT_BITS; i++) {
        if (rule->effects >> i & 1) {
            fprintf(out, ", %s", job_effect_names[i]);
        }
    }
    fprintf(out, " */");
}

static void print_mask(unsigned set, bool wanted, bool *first)
{
    if (!set) {
        return;
    }
    print_and(first);
    fprintf(out, wanted ? "(conditions & %u) = %u" : "(conditions & %u) = 0",
            set, set);
}

static void print_decide_job(void)
{
    unsigned all = 0;

    fprintf(out, "CASE\n");
    for (unsigned event = 0; event < LK_JOB_EVENTS; event++) {
        const struct lk_job_rules *group = &lk_job_machine_rules[event];
        unsigned events = job_group_events(group->rows);
        bool first = true;

        if (all & events) {
            continue;
        }
        fprintf(out, "    WHEN ");
        print_set("event", events, UINT32_MAX, job_event_words, &first);
        fprintf(out, " THEN CASE\n");
        for (size_t i = 0; i < group->count; i++) {
            const struct lk_job_rule *rule = &group->rows[i];
            bool last = i + 1 == group->count;
            first = true;
            fprintf(out, last ? "        ELSE " : "        WHEN ");
            if (!last) {
                print_set("event", rule->events, events, job_event_words,
                          &first);
                print_set("state", rule->states, (1u << LK_JOB_STATES) - 1,
                          job_state_words, &first);
                print_mask(rule->required, true, &first);
                print_mask(rule->forbidden, false, &first);
                fprintf(out, "\n            THEN ");
            }
            print_job_result(rule);
            if (!last) {
                print_flag_names(job_conditions, LK_JOB_CONDITIONS,
                                 rule->required, rule->forbidden);
            }
            fprintf(out, last ? " END\n" : "\n");
        }
        all |= events;
    }
    fprintf(out, "    END\n");
}

/* ---- every input --------------------------------------------------------- */

/* The codes in the order of event, state, conditions, one a line. */
static void print_steps(void)
{
    for (unsigned event = 0; event < LK_EVENTS; event++) {
        for (unsigned state = 0; state < LK_STATES; state++) {
            for (unsigned mask = 0; mask < 1u << LK_CONDITIONS; mask++) {
                struct lk_standing operation = {.state = (enum lk_state)state};
#define X(name, member, text)                                                  \
    operation.member = mask >> LK_CONDITION_##name & 1;
                LK_CONDITION_MAP(X)
#undef X
                struct lk_step step =
                    lk_machine_step((enum lk_event)event, operation);
                fprintf(out, "%d\n",
                        (int)step.verdict | (int)step.effect << EFFECT_SHIFT |
                            (int)(step.next + 1) << NEXT_SHIFT);
            }
        }
    }
}

static void print_job_steps(void)
{
    for (unsigned event = 0; event < LK_JOB_EVENTS; event++) {
        for (unsigned state = 0; state < LK_JOB_STATES; state++) {
            for (unsigned mask = 0; mask < 1u << LK_JOB_CONDITIONS; mask++) {
                struct lk_job_standing job = {.state =
                                                  (enum lk_job_state)state};
#define X(name, member, text) job.member = mask >> LK_JOB_CONDITION_##name & 1;
                LK_JOB_CONDITION_MAP(X)
#undef X
                struct lk_job_step step =
                    lk_job_machine_step((enum lk_job_event)event, job);
                fprintf(out, "%lu\n",
                        job_code(step.outcome, (int)step.next, step.tells,
                                 step.effects));
            }
        }
    }
}

static void print_list(const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s%s", i ? "|" : "", words[i]);
    }
    putc('\n', out);
}

static void print_condition_names(const struct condition *of, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s%s", i ? "|" : "", of[i].parameter);
    }
    putc('\n', out);
}

/* ---- templates ----------------------------------------------------------- */

static void print_words(const char *const *words, size_t from, size_t count)
{
    fprintf(out, "ARRAY[");
    for (size_t i = from; i < count; i++) {
        fprintf(out, "%s'%s'", i > from ? ", " : "", words[i]);
    }
    fprintf(out, "]");
}

static void print_states(unsigned set, const char *const *words)
{
    bool first = true;

    for (unsigned i = 0; i < 32; i++) {
        if (set >> i & 1) {
            fprintf(out, "%s", first ? "" : ", ");
            print_member(i, words[i]);
            first = false;
        }
    }
}

/* States that SQL asks for together. */
#define STATE(name) (1u << LK_STATE_##name)
#define JOB(name)   (1u << LK_JOB_##name)

static const struct set {
    const char *name;
    const char *const *words;
    unsigned states;
} sets[] = {
    {"STATES_OPEN", state_words, STATE(IN_PROGRESS) | STATE(UNCERTAIN)},
    {"STATES_FINISHED", state_words, STATE(COMPLETED) | STATE(RELEASED)},
    {"STATES_UNFINISHED", state_words,
     STATE(ACCEPTED) | STATE(IN_PROGRESS) | STATE(UNCERTAIN)},
    {"JOBS_UNFINISHED", job_state_words,
     JOB(WAITING) | JOB(LEASED) | JOB(UNCERTAIN) | JOB(DEAD)},
    /* they have a time to be due */
    {"JOBS_TIMED", job_state_words, JOB(WAITING) | JOB(LEASED)},
    /* they need a person, or proof */
    {"JOBS_STUCK", job_state_words, JOB(UNCERTAIN) | JOB(DEAD)},
};

static bool print_named_set(const char *name)
{
    for (size_t i = 0; i < COUNT(sets); i++) {
        if (!strcmp(sets[i].name, name)) {
            print_states(sets[i].states, sets[i].words);
            return true;
        }
    }
    return false;
}

static bool print_special(const char *name)
{
    if (!strcmp(name, "DECIDE")) {
        print_decide();
    } else if (!strcmp(name, "DECIDE_JOB")) {
        print_decide_job();
    } else if (!strcmp(name, "STATE_WORDS")) { /* from 1 on, as in rows */
        print_words(state_words, 1, LK_STATES);
    } else if (!strcmp(name, "JOB_STATE_WORDS")) { /* from 0 on */
        print_words(job_state_words, 0, LK_JOB_STATES);
    } else if (!strcmp(name, "VERDICT_WORDS")) { /* from 0 on */
        print_words(verdict_words, 0, COUNT(verdict_words));
    } else {
        return print_named_set(name);
    }
    return true;
}

static long job_effect_of(const char *name)
{
    for (unsigned i = 0; i < LK_JOB_EFFECT_BITS; i++) {
        if (!strcmp(name, job_effect_names[i])) {
            return 1L << (JOB_EFFECT_SHIFT + i);
        }
    }
    die("there is no effect %s", name);
    return 0;
}

static void fill_template(char *text);

/* The same text with the names in it filled in; the caller frees it. */
static char *fill_copy(char *text)
{
    FILE *whole = out;
    char *filled = NULL;
    size_t len;

    out = open_memstream(&filled, &len);
    if (!out) {
        die("out of memory");
    }
    fill_template(text);
    fclose(out);
    out = whole;
    char *copy = strdup(filled);
    free(filled);
    return copy;
}

/* @NAME(code)@: a part of a code. */
static void print_part(const char *name, char *code)
{
    char *comma = strrchr(code, ',');

    if (!strcmp(name, "VERDICT")) {
        fprintf(out, "(%s & %d)", code, (1 << EFFECT_SHIFT) - 1);
    } else if (!strcmp(name, "EFFECT")) {
        fprintf(out, "(%s >> %d & %d)", code, EFFECT_SHIFT,
                (1 << (NEXT_SHIFT - EFFECT_SHIFT)) - 1);
    } else if (!strcmp(name, "NEXT") && comma) { /* code, state now */
        *comma = 0;
        fprintf(out, "coalesce(nullif(%s >> %d, 0) - 1,%s)", code, NEXT_SHIFT,
                comma + 1);
    } else if (!strcmp(name, "JOB_OUTCOME")) {
        fprintf(out, "(%s & %d)", code, (1 << JOB_NEXT_SHIFT) - 1);
    } else if (!strcmp(name, "JOB_NEXT") && comma) {
        *comma = 0;
        fprintf(out, "coalesce(nullif(%s >> %d & %d, 0) - 1,%s)", code,
                JOB_NEXT_SHIFT, (1 << (JOB_TELLS_SHIFT - JOB_NEXT_SHIFT)) - 1,
                comma + 1);
    } else if (!strcmp(name, "JOB_TELLS")) { /* null: nothing */
        fprintf(out, "(nullif(%s >> %d & %d, 0) - 1)", code, JOB_TELLS_SHIFT,
                (1 << (JOB_EFFECT_SHIFT - JOB_TELLS_SHIFT)) - 1);
    } else if (!strcmp(name, "JOB_DOES") && comma) { /* code, EFFECT */
        *comma = 0;
        comma += 1 + strspn(comma + 1, " \n");
        fprintf(out, "(%s & %ld /* %s */) <> 0", code, job_effect_of(comma),
                comma);
    } else {
        die("there is no part %s(%s)", name, code);
    }
}

static void print_name(const char *name)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        if (!strcmp(names[i].name, name)) {
            print_number(&names[i]);
            return;
        }
    }
    if (!print_special(name)) {
        die("there is no name @%s@", name);
    }
}

static char *read_all(void)
{
    size_t len = 0, cap = 1 << 16;
    char *text = malloc(cap);
    size_t got;

    while (text && (got = fread(text + len, 1, cap - len - 1, stdin)) > 0) {
        len += got;
        if (cap - len - 1 == 0) {
            cap *= 2;
            text = realloc(text, cap);
        }
    }
    if (!text) {
        die("out of memory");
    }
    text[len] = 0;
    return text;
}

/* The length of @NAME or @NAME(...) at `at`, without the last @; 0: neither. */
static size_t token_length(const char *at)
{
    size_t len = 1 + strspn(at + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");

    if (len > 1 && at[len] == '(') {
        const char *end = strstr(at, ")@");
        return end ? (size_t)(end - at) + 1 : 0;
    }
    return len > 1 && at[len] == '@' ? len : 0;
}

static void fill_template(char *text)
{
    while (*text) {
        size_t len = *text == '@' ? token_length(text) : 0;
        if (!len) {
            putc(*text++, out);
            continue;
        }
        char *part = text[len - 1] == ')' ? strchr(text, '(') : NULL;
        text[len] = 0;
        if (part) {
            text[len - 1] = 0;
            *part = 0;
            char *code = fill_copy(part + 1);
            print_part(text + 1, code);
            free(code);
        } else {
            print_name(text + 1);
        }
        text += len + 1;
    }
}

/* ---- names for SQL in C -------------------------------------------------- */

static void print_define(const char *part, const char *name, long value)
{
    fprintf(out, "#define LK_SQL_%s%s \"%ld\"\n", part, name, value);
}

static void print_header(void)
{
    fputs("/* sql_names.h - states, events and kinds of rows as SQL has them;\n"
          " * written by rules_gen. */\n"
          "#ifndef LK_SQL_NAMES_H\n#define LK_SQL_NAMES_H\n\n",
          out);
#define X(name, word) print_define("STATE_", #name, LK_STATE_##name);
    LK_STATE_MAP(X)
#undef X
#define X(name, word) print_define("EVENT_", #name, LK_EVENT_##name);
    LK_EVENT_MAP(X)
#undef X
#define X(name, word) print_define("JOB_", #name, LK_JOB_##name);
    LK_JOB_STATE_MAP(X)
#undef X
#define X(name, value, text) print_define("ROW_", #name, value);
    LK_ROW_MAP(X)
#undef X
    for (size_t i = 0; i < COUNT(sets); i++) {
        const char *comma = "";
        fprintf(out, "#define LK_SQL_%s \"", sets[i].name);
        for (unsigned state = 0; state < 32; state++) {
            if (sets[i].states >> state & 1) {
                fprintf(out, "%s%u", comma, state);
                comma = ", ";
            }
        }
        fputs("\"\n", out);
    }
    fputs("\n#endif\n", out);
}

static bool print_about(const char *what, const char *machine)
{
    bool job = !strcmp(machine, "job");

    if (!job && strcmp(machine, "operation") != 0) {
        return false;
    }
    if (!strcmp(what, "steps") && job) {
        print_job_steps();
    } else if (!strcmp(what, "steps")) {
        print_steps();
    } else if (!strcmp(what, "names") && job) {
        print_list(job_event_words, LK_JOB_EVENTS);
        print_list(job_state_words, LK_JOB_STATES);
        print_condition_names(job_conditions, LK_JOB_CONDITIONS);
    } else if (!strcmp(what, "names")) {
        print_list(event_words, LK_EVENTS);
        print_list(state_words, LK_STATES);
        print_condition_names(conditions, LK_CONDITIONS);
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    out = stdout;
    if (!strcmp(what, "sql") || !strcmp(what, "lua")) {
        lua = !strcmp(what, "lua");
        char *text = read_all();
        fill_template(text);
        free(text);
    } else if (!strcmp(what, "header")) {
        print_header();
    } else if (!print_about(what, argc > 2 ? argv[2] : "")) {
        die("usage: rules_gen sql|lua <template, or rules_gen header, or "
            "rules_gen steps|names operation|job");
    }
    if (fflush(stdout) || ferror(stdout)) {
        die("the output cannot be written");
    }
    return 0;
}
