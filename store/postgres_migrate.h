/* postgres_migrate.h - the schema of the PostgreSQL store and its versions. */
#ifndef LK_POSTGRES_MIGRATE_H
#define LK_POSTGRES_MIGRATE_H

#include "latchkey.h"

/* The oldest major version of the server that will do. */
enum { LK_POSTGRES_MINIMUM = 13 };

/* The version of the schema that this program brings and needs. */
long lk_postgres_version(void);

/*
 * Brings the schema of the database that a URL names ("postgres://...",
 * "postgres:host=...") up to that version. Safe to run twice and by two at
 * once, while daemons and apps use the store: it waits for no lock longer than
 * a moment at a time, but tries again. `report` gets a line for each step
 * that was taken, or one that says that there was none; `warning` a sentence,
 * if the schema should not be this role's. On failure nothing of the step that
 * failed remains, and `error` gets a sentence without a password. LK_INVALID:
 * that server or database will never do; LK_DENIED: not with this role, or not
 * with what others may do to the schema; LK_VERSION: the schema is a newer
 * program's; LK_UNAVAILABLE: it may do later.
 */
LK_MUST_CHECK enum lk_status lk_postgres_migrate(const char *url,
                                                 struct lk_buf *report,
                                                 struct lk_buf *warning,
                                                 struct lk_buf *error);

/*
 * Appends the SQL that leads from version `from` (0: there is nothing yet) to
 * the present one, for people who run it themselves: one transaction.
 */
LK_MUST_CHECK enum lk_status lk_postgres_sql(long from, struct lk_buf *text);

#endif
