/* compare_judge.c - what it means that a job and a line met, or did not. */
#include "cli/compare.h"

static const struct {
    const char *word;
    bool open;
} classes[LK_CLASSES] = {
#define X(name, word, open) {word, open},
    LK_CLASS_MAP(X)
#undef X
};

const char *lk_class_word(enum lk_class of)
{
    return classes[of].word;
}

bool lk_class_is_open(enum lk_class of)
{
    return classes[of].open;
}

/* The provider has it. That it has it otherwise than we asked is for a person
 * to see, whatever state the job is in. */
static enum lk_class judge_both(const struct lk_finding *finding)
{
    switch (finding->here->state) {
    case LK_JOB_LEASED:
        return LK_CLASS_UNDER_WAY;
    case LK_JOB_DROPPED:
        return LK_CLASS_DIFFERING;
    case LK_JOB_DELIVERED:
        return finding->differs != 0 ? LK_CLASS_DIFFERING : LK_CLASS_MATCHED;
    default:
        return finding->differs != 0 ? LK_CLASS_DIFFERING : LK_CLASS_HAPPENED;
    }
}

static enum lk_class judge_here(const struct lk_item *here)
{
    if ((here->flags & LK_ITEM_WINDOW) == 0) {
        return LK_CLASS_OUTSIDE;
    }
    switch (here->state) {
    case LK_JOB_UNCERTAIN:
        /* What has no key cannot be missed by it. */
        return (here->flags & LK_ITEM_SHARED) != 0 ? LK_CLASS_AMBIGUOUS
               : (here->flags & LK_ITEM_SETTLED) != 0 &&
                       (here->flags & LK_ITEM_KEY) != 0
                   ? LK_CLASS_ABSENT
                   : LK_CLASS_OPEN;
    case LK_JOB_DEAD:
        return (here->flags & LK_ITEM_SHARED) != 0 ? LK_CLASS_AMBIGUOUS
                                                   : LK_CLASS_NEITHER;
    case LK_JOB_DELIVERED:
        return (here->flags & LK_ITEM_SHARED) != 0  ? LK_CLASS_AMBIGUOUS
               : (here->flags & LK_ITEM_LATER) != 0 ? LK_CLASS_LATER
                                                    : LK_CLASS_HERE;
    default:
        return LK_CLASS_NEITHER;
    }
}

/* What has been forgotten here is not unknown. But if another line of the same
 * key has met the job, the job is here. */
static enum lk_class judge_there(const struct lk_finding *finding)
{
    uint16_t flags = finding->there->flags;

    if ((flags & LK_ITEM_WINDOW) == 0) {
        return LK_CLASS_OUTSIDE;
    }
    return (flags & LK_ITEM_OLDER) != 0 && finding->here == NULL
               ? LK_CLASS_OLDER
           : (flags & LK_ITEM_SHARED) != 0 ? LK_CLASS_AMBIGUOUS
                                           : LK_CLASS_THERE;
}

enum lk_class lk_judge(const struct lk_finding *finding)
{
    switch (finding->meeting) {
    case LK_BOTH:
        return judge_both(finding);
    case LK_REPEATED:
        return LK_CLASS_REPEATED;
    case LK_ONLY_THERE:
        return judge_there(finding);
    default:
        return judge_here(finding->here);
    }
}

/*
 * Absence is the weaker proof, and a wrong one lets something happen twice. So
 * every line must have been understood, none may be the job's without saying
 * so, and the keys must be known to be ours.
 */
const char *lk_absence_fault(const struct lk_coverage *coverage)
{
    if (!coverage->complete) {
        return "it is not said until when the export is complete "
               "(--complete-until)";
    }
    if (coverage->malformed > 0) {
        return "some lines could not be read";
    }
    if (coverage->keyless > 0) {
        return "some lines without a key belong to no known job, and may be "
               "what is looked for";
    }
    if (coverage->strange > 0) {
        return "some lines have a value of --match that no job has, and may be "
               "what is looked for, cut or written otherwise";
    }
    if (coverage->lines > 0 ? coverage->by_key == 0 : !coverage->has_header) {
        return "no line of the export has a key of ours, so the keys may be "
               "others";
    }
    if (coverage->missing > 0) {
        return "jobs that were delivered before that time are not in the "
               "export, so it is not complete (or --since is missing)";
    }
    if (coverage->unended) {
        return "the last line has no newline, so the file may be cut off";
    }
    if (coverage->unsettled) {
        return "the daemon does not have this target, so it is not known how "
               "long a call may be on its way";
    }
    return NULL;
}
