/*
 * fault.h - named points at which a test can kill, fail or delay the daemon.
 *
 * Compiled in by FAULTS=1 and in sanitizer builds only; the programs that are
 * installed have none of it. See tests/README.md for the language of the fault
 * file.
 */
#ifndef LK_FAULT_H
#define LK_FAULT_H

#include <stdint.h>

#ifdef LK_FAULTS

/* Does what the fault file plans for this point: nothing, kill -9, stop. */
void lk_fault_point(const char *name);
/* Added to the wall clock, in milliseconds. */
int64_t lk_fault_wall_offset_ms(void);
/* Replaces the machine's boot id; NULL: none given. */
const char *lk_fault_boot_id(void);
/* The SQLite VFS that fails writes and syncs on demand; registers it. NULL
 * when no fault file is named. */
const char *lk_fault_vfs(void);

#else

#define lk_fault_point(name)      ((void)0)
#define lk_fault_wall_offset_ms() ((int64_t)0)
#define lk_fault_boot_id()        ((const char *)0)
#define lk_fault_vfs()            ((const char *)0)

#endif

#endif
