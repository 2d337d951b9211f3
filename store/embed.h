/*
 * embed.h - generated text files as part of the program: the SQL and the Lua
 * that run in other people's servers.
 *
 * LK_EMBED(lk_sql_schema, "sql/01_schema.sql") defines lk_sql_schema, a string
 * that ends with a NUL. The path is relative to build/gen, where the Makefile
 * puts the files of store/sql and store/lua with the rules filled in.
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
