/*
 * embed.h - text files of the repository as part of the program: the SQL and
 * the Lua that run in other people's servers.
 *
 * LK_EMBED(lk_sql_schema, "store/sql/001_schema.sql") defines lk_sql_schema,
 * a string that ends with a NUL. The path is relative to the top folder,
 * where the compiler runs.
 */
#ifndef LK_EMBED_H
#define LK_EMBED_H

#include <stddef.h>

#define LK_EMBED(name, path)                                                   \
    __asm__(".section .rodata\n"                                               \
            ".global " #name "\n"                                              \
            ".hidden " #name "\n"                                              \
            ".balign 8\n" #name ":\n"                                          \
            ".incbin \"" path "\"\n"                                           \
            ".byte 0\n"                                                        \
            ".previous\n");                                                    \
    extern const char name[]

#endif
