/* charge.c - what a request for a charge says, and what is wrong with it. */
#include "payments.h"

#include <string.h>

enum { CUSTOMER_MAX = 64 };

static bool is_name(struct text text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                    "0123456789_.@-",
                    text.data[i]) ||
            !text.data[i]) {
            return false;
        }
    }
    return text.len > 0 && text.len <= CUSTOMER_MAX;
}

const char *charge_read(const struct request *request, struct charge *charge)
{
    struct text value;
    bool is_string;

    charge->key = request->key;
    if (!json_member(request->body, "amount", &is_string, &value) ||
        is_string || !text_number(value, &charge->amount) ||
        charge->amount == 0) {
        return "amount must be a whole number of cents above 0";
    }
    if (!json_member(request->body, "currency", &is_string,
                     &charge->currency) ||
        !is_string || !ledger_takes(charge->currency)) {
        return "currency must be eur, gbp or usd";
    }
    if (!json_member(request->body, "customer", &is_string,
                     &charge->customer) ||
        !is_string || !is_name(charge->customer)) {
        return "customer must be a name of 1 to 64 letters, digits or _.@-";
    }
    return NULL;
}
