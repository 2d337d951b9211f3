/* cli.h - what the commands of `latchkey` share. */
#ifndef LK_CLI_H
#define LK_CLI_H

#include "cli/output.h"
#include "latchkey.h"

/* What the program's exit status says; --help and the manual list them. */
enum lk_exit {
    LK_EXIT_DONE = 0,
    LK_EXIT_NO = 1,          /* not found, refused, damaged, unchanged */
    LK_EXIT_USAGE = 2,       /* a file that cannot be read included */
    LK_EXIT_UNREACHABLE = 3, /* no daemon, or its store cannot decide */
    LK_EXIT_DENIED = 4,
    LK_EXIT_FAILED = 5,
};

/* ---- Commands and their options ----------------------------------------- */

struct lk_option {
    const char *name; /* without the dashes; NULL ends a list */
    /* What it takes, for the help; NULL: a flag; "[=VALUE]": it may be left
     * out, and is given behind an equals sign. */
    const char *value;
    const char *help;
};

/* What `latchkey COMMAND --help` adds to the row of the command's table. */
struct lk_manual {
    const char *about;
    const struct lk_option *options;
};

struct lk_cli;

/* Which of the options of every command mean something to one. */
enum lk_reach {
    LK_ALONE,    /* --help and --version */
    LK_PRINTS,   /* --json too */
    LK_CONNECTS, /* all: it talks to the daemon */
};

struct lk_command {
    const char *name;
    const char *usage; /* its words and the options that matter */
    size_t least_words;
    size_t most_words;
    enum lk_reach reach;
    const char *summary;
    enum lk_exit (*run)(struct lk_cli *cli);
    const struct lk_manual *manual;
};

extern const struct lk_command lk_commands[]; /* a NULL name ends it */
extern const struct lk_option lk_global_options[];
/* The end of these that means something to a command. */
const struct lk_option *lk_options_for(const struct lk_command *command);

/* One option as it was given. */
struct lk_given {
    const struct lk_option *option;
    const char *value; /* NULL for a flag */
};

struct lk_args {
    const struct lk_command *command; /* NULL: none was named */
    const char **words;               /* those after the command's name */
    size_t word_count;
    struct lk_given *given;
    size_t given_count;
};

/* Sorts argv into words and options, in any order. Complains and returns
 * LK_EXIT_USAGE about an unknown option or command. */
LK_MUST_CHECK enum lk_exit lk_args_read(struct lk_args *args, int argc,
                                        char **argv);
void lk_args_free(struct lk_args *args);

bool lk_args_flag(const struct lk_args *args, const char *name);
/* The last value given, or NULL. */
const char *lk_args_value(const struct lk_args *args, const char *name);
/* The next value of an option that may be repeated; start *at as 0. */
const char *lk_args_next(const struct lk_args *args, const char *name,
                         size_t *at);
/* These complain and return LK_EXIT_USAGE. If the option was not given, the
 * number stays as it is. */
LK_MUST_CHECK enum lk_exit lk_args_number(const struct lk_args *args,
                                          const char *name, uint64_t least,
                                          uint64_t most, uint64_t *number);
/* 500ms, 10s, 5m, 2h, 7d; a bare number is seconds. */
LK_MUST_CHECK enum lk_exit lk_args_duration(const struct lk_args *args,
                                            const char *name, uint64_t *ms);
/* A point in time: a date, a time stamp as latchkey_timestamp_parse reads it,
 * or a duration with its unit, before now. */
LK_MUST_CHECK enum lk_exit lk_args_time(const struct lk_args *args,
                                        const char *name, uint64_t now_ms,
                                        uint64_t *ms);

void lk_help_write(struct lk_buf *out, const struct lk_command *command);
/* Complains, with a guess at what was meant, and returns NULL. */
const struct lk_command *lk_help_find(const char *name);
/* The name closest to `word`, or NULL if none is close. */
const char *lk_help_nearest_option(const struct lk_command *command,
                                   const char *word);

/* ---- Named servers (where.c) ------------------------------------------- */

/* NULL: not said. */
struct lk_profile {
    char *name;
    char *server;
    char *user;
    char *password_file;
    char *place;  /* "FILE:LINE: server", of a server in the file */
    bool running; /* it is a `latchkey up`, not of the file */
};

/* Start it as {0}. */
struct lk_profiles {
    char *path; /* of the file, which need not be there; NULL: no home */
    struct lk_profile *items;
    size_t count;
};

/* Reads the file. A file that is not there has no profiles. */
LK_MUST_CHECK enum lk_exit lk_profiles_read(struct lk_profiles *profiles);
/* Adds each `latchkey up` whose daemon takes connections; what a killed one
 * left behind does not count. A profile of the file wins over one of the same
 * name. */
void lk_profiles_add_running(struct lk_profiles *profiles);
/* NULL: there is none. */
const struct lk_profile *lk_profiles_find(const struct lk_profiles *profiles,
                                          const char *name);
void lk_profiles_free(struct lk_profiles *profiles);

/* $VARIABLE/latchkey/NAME, else ~/FOLDER/latchkey/NAME, in memory of its own;
 * NULL: there is no home. */
char *lk_home_path(const char *variable, const char *folder, const char *name);
/* In this folder of the user's, each running `latchkey up` has a link to its
 * own folder, by the name of its profile; there is its socket. */
char *lk_running_folder(void);
#define LK_UP_SOCKET "latchkeyd.sock"

/* ---- One run of the program --------------------------------------------- */

/* The operation that a command is about at the moment. */
struct lk_subject {
    struct lk_name name;
    struct lk_slice reference; /* empty: it was named by `name` */
    uint64_t token;            /* found uncertain, under this one; else 0 */
    struct lk_buf text;        /* what these point into, if not into argv */
};

struct lk_cli {
    struct lk_args args;
    struct lk_subject subject; /* lk_each_operation sets it */
    struct lk_client_options where;
    const char *where_from; /* what has named the address, for complaints */
    struct lk_profiles profiles;
    struct lk_client *client; /* opened by the first call */
    struct lk_buf password;
    struct lk_buf out; /* goes to standard output when the command ends */
    bool json;
    bool colour;
    uint64_t now_ms;
};

/* A line on standard error; control characters in it are escaped. */
void lk_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, returning LK_EXIT_USAGE and naming the command's help. */
enum lk_exit lk_complain_usage(const struct lk_cli *cli, const char *format,
                               ...) __attribute__((format(printf, 2, 3)));
/* A hint for people on standard error; nothing with --json. */
void lk_hint(const struct lk_cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

uint64_t lk_wall_clock_ms(void);

/* An environment variable that is set and not empty; else NULL. */
const char *lk_environment(const char *name);

/* Writes cli->out to standard output, and empties it. */
LK_MUST_CHECK enum lk_exit lk_cli_flush(struct lk_cli *cli);

/* Appends a file ("-": standard input); complains and gives LK_EXIT_USAGE. */
LK_MUST_CHECK enum lk_exit lk_read_file(const char *path, struct lk_buf *data);

/* Fills cli->where from options, environment and profiles (where.c). */
#define LK_DEFAULT_SERVER "unix:/run/latchkey/latchkeyd.sock"
LK_MUST_CHECK enum lk_exit lk_where_read(struct lk_cli *cli);
/* Whether it would be the one `latchkey up` that runs, without any option. */
bool lk_where_is_running(void);

/* ---- Talking to the daemon (connect.c) ----------------------------------- */

enum { LK_WORDS_MAX = 32, LK_NUMBERS_MAX = 8 };

/* A command to the daemon. Start it as {0}; the words must outlive it. */
struct lk_words {
    struct lk_slice words[LK_WORDS_MAX];
    size_t count;
    char numbers[LK_NUMBERS_MAX][24];
    size_t number_count;
};

void lk_words_add(struct lk_words *words, const char *text);
void lk_words_add_slice(struct lk_words *words, struct lk_slice slice);
void lk_words_add_number(struct lk_words *words, uint64_t number);
/* An option and its value; nothing if that is NULL or 0. */
void lk_words_add_text(struct lk_words *words, const char *option,
                       const char *value);
void lk_words_add_count(struct lk_words *words, const char *option,
                        uint64_t value);

/* Complains unless it returns LK_EXIT_DONE. */
LK_MUST_CHECK enum lk_exit lk_connect(struct lk_cli *cli);
/*
 * Connects first if there is no connection yet, so that a wrong command line is
 * reported before anything else. Complains unless it returns LK_EXIT_DONE; then
 * *reply is not an error. The client owns it, and it is valid until the next
 * call.
 */
LK_MUST_CHECK enum lk_exit lk_call(struct lk_cli *cli,
                                   const struct lk_words *words,
                                   const struct lk_reply **reply);
/* The same for what may take hours; only an explicit --timeout bounds it. */
LK_MUST_CHECK enum lk_exit lk_call_patiently(struct lk_cli *cli,
                                             const struct lk_words *words,
                                             const struct lk_reply **reply);
/* An error reply, in words for people, and the exit status that it means. */
LK_MUST_CHECK enum lk_exit lk_complain_error(const struct lk_cli *cli,
                                             struct lk_slice text);
/* The connection broke under a command that had perhaps been carried out. */
LK_MUST_CHECK enum lk_exit lk_complain_lost(const struct lk_cli *cli,
                                            enum lk_status status);
/* What listens at the daemon's address and is not latchkeyd: "a Redis", "an
 * HTTP server" ...; NULL: it may be latchkeyd. Asks on a connection of its
 * own. */
const char *lk_stranger(const struct lk_cli *cli);
/* The daemon's reply does not have the form that it should have. */
LK_MUST_CHECK enum lk_exit lk_complain_reply(const struct lk_cli *cli);

bool lk_reply_is(const struct lk_reply *reply, const char *word);
/* A cursor, which comes as a number or as its digits. */
uint64_t lk_reply_cursor(const struct lk_reply *reply);
/* The value beside `name` in a flat list, or NULL; '-' and '_' are one. */
const struct lk_reply *lk_field(const struct lk_reply *list, const char *name);
struct lk_slice lk_field_text(const struct lk_reply *list, const char *name);
/* 0 if there is none. */
uint64_t lk_field_number(const struct lk_reply *list, const char *name);

/* ---- What several commands share ----------------------------------------- */

/*
 * Which operations the words of the command line mean (find.c): TENANT SCOPE
 * KEY; TENANT REFERENCE; one or more references; or what a provider calls what
 * a job of the operation has made, which several operations may share.
 */
enum lk_meaning {
    LK_MEANS_EACH, /* all of those that share it */
    LK_MEANS_ONE,  /* none of them: they are named, and nothing is done */
};

typedef enum lk_exit (*lk_subject_fn)(struct lk_cli *cli, void *context);

/* Calls `act` for each, as cli->subject, and returns the worst result.
 * Complains about what is not found. */
LK_MUST_CHECK enum lk_exit lk_each_operation(struct lk_cli *cli,
                                             enum lk_meaning meaning,
                                             lk_subject_fn act, void *context);

/* Shows cli->subject in full, with its history (show.c); an lk_subject_fn. */
LK_MUST_CHECK enum lk_exit lk_operation_show(struct lk_cli *cli, void *context);
/* As lk_call; then *operation is the subject's state, with the stored response
 * if --headers or --body asks for it, which needs --why. LK_EXIT_NO: there is
 * no such operation, and it has complained. */
LK_MUST_CHECK enum lk_exit lk_operation_fetch(
    struct lk_cli *cli, const struct lk_reply **operation);
enum lk_put_colour lk_operation_colour(struct lk_slice state);
/* An operation in progress for longer needs a person, even if its lock is
 * valid. */
enum { LK_LONG_MS = 3600 * 1000 };

/* HEALTH (daemon_status.c). As lk_call; then it has a status that is known. */
LK_MUST_CHECK enum lk_exit lk_health_fetch(struct lk_cli *cli,
                                           const struct lk_reply **health);
/* The exit status that it means; LK_EXIT_FAILED: it is not HEALTH's. */
enum lk_exit lk_health_exit(const struct lk_reply *health);

/*
 * What an operator does and why (operate.c). lk_action_words completes the
 * words of a command with WHO and WHY; lk_action_send sends it and prints the
 * outcome, with the reference of the operation if it has a name. lk_action_run
 * does both.
 */
struct lk_action {
    const char *verb;     /* "released", for people and for JSON */
    const char *state;    /* the operation's state afterwards; NULL: no name */
    struct lk_slice file; /* that was written; may be empty */
    bool patient;         /* it may take hours */
    struct lk_words words;
};

#define LK_OPTION_RUNNING                                                      \
    {                                                                          \
        "running", NULL,                                                       \
            "also while its lock is valid: you know that its\n"                \
            "holder does not work on it any more"                              \
    }
#define LK_OPTION_WHY                                                          \
    {                                                                          \
        "why", "TEXT", "the reason, kept in the audit log"                     \
    }
#define LK_OPTION_WHO                                                          \
    {                                                                          \
        "who", "NAME", "who does it (your login name)"                         \
    }

extern const struct lk_option lk_action_options[]; /* these two alone */

LK_MUST_CHECK enum lk_exit lk_action_words(struct lk_cli *cli,
                                           struct lk_action *action,
                                           const char *default_why);
LK_MUST_CHECK enum lk_exit lk_action_send(struct lk_cli *cli,
                                          struct lk_action *action);
LK_MUST_CHECK enum lk_exit lk_action_run(struct lk_cli *cli,
                                         struct lk_action *action);
/* The state of the named operation; empty if it is not known. It is valid until
 * the next call. */
struct lk_slice lk_action_state(struct lk_cli *cli);
/* lk_each_operation, once who and why are known. */
LK_MUST_CHECK enum lk_exit lk_action_each(struct lk_cli *cli, lk_subject_fn act,
                                          void *context);
/* For RESOLVE: the operation that was found uncertain may have another claim by
 * now, or be another operation of the same name; the fence refuses these. */
void lk_words_add_fence(struct lk_words *words, const struct lk_cli *cli);
/* Adds the name of cli->subject. */
void lk_words_add_name(struct lk_words *words, const struct lk_cli *cli);

/*
 * A progress bar on a terminal, drawn by a thread that asks the daemon on a
 * connection of its own (terminal.c). NULL where there is nothing to draw on.
 */
struct lk_progress;
struct lk_progress *lk_progress_start(const struct lk_cli *cli,
                                      const char *title);
void lk_progress_stop(struct lk_progress *progress); /* NULL is fine */

/* ---- Lists that come in pages, with --limit, --all and --cursor (list.c) ---
 */

enum { LK_LISTING_PAGE = 1000 };

/* Filled by the command, up to `doc`. */
struct lk_listing {
    struct lk_cli *cli;
    const char *title; /* of the array in JSON */
    void (*put_heading)(struct lk_table *table);
    void (*put_row)(struct lk_table *table, const struct lk_reply *row,
                    uint64_t now_ms);
    bool (*needs_person)(const struct lk_reply *row, uint64_t now_ms);
    /* Asks for at most `limit` rows from list->cursor on, moves the cursor (0:
     * that was the last page) and shows them. */
    enum lk_exit (*page)(struct lk_listing *list, uint64_t limit);
    const void *context;
    uint64_t
        most; /* at most N rows, also with --limit and --all; 0: any number */
    struct lk_table table;
    struct lk_doc doc;

    uint64_t left; /* how many are still wanted */
    uint64_t cursor;
    uint64_t shown;
    uint64_t alarms; /* of these, for a person */
};

/* One row, of a page. */
void lk_listing_show(struct lk_listing *list, const struct lk_reply *row);
/* All pages. Complains unless it returns LK_EXIT_DONE. */
LK_MUST_CHECK enum lk_exit lk_listing_run(struct lk_listing *list);
/* "3 jobs, 1 dead or uncertain", and how to see more. */
void lk_listing_end(const struct lk_listing *list, const char *noun,
                    const char *alarm);

/* ---- A bar that is drawn by the one who works (terminal.c) ------------
 */

struct lk_bar {
    const char *title;
    bool on;
    uint64_t drawn_ms;
};

void lk_bar_start(struct lk_bar *bar, const struct lk_cli *cli,
                  const char *title);
void lk_bar_show(struct lk_bar *bar, uint64_t done, uint64_t total);
void lk_bar_stop(struct lk_bar *bar);

#endif
