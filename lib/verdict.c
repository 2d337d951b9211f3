/* verdict.c - verdicts and their words on the wire. */
#include "latchkey.h"

const char *latchkey_verdict_word(enum lk_verdict verdict)
{
    switch (verdict) {
#define X(name, word)                                                          \
    case LK_VERDICT_##name:                                                    \
        return word;
        LK_VERDICT_MAP(X)
#undef X
    }
    return "?";
}

bool latchkey_verdict_parse(struct lk_slice word, enum lk_verdict *verdict)
{
#define X(name, text)                                                          \
    if (latchkey_slice_equal(word, LK_SLICE(text))) {                          \
        *verdict = LK_VERDICT_##name;                                          \
        return true;                                                           \
    }
    LK_VERDICT_MAP(X)
#undef X
    return false;
}
