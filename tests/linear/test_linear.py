"""Every reply to random commands, on every store, fits into one order of
events: from several connections with pipelines, while daemons are killed and
halted, disks fail and power is lost.

LATCHKEY_LINEAR_SECONDS: how long each storm lasts; LATCHKEY_SEED repeats one.
"""

import pytest

from support import linear


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_every_reply_in_a_storm_fits_into_one_order_of_events(store, storms):
    # C02, C10, C20, C22, C23, C41
    seed = linear.seed()
    daemons = storms(store)
    storm = linear.Storm(daemons, seed, linear.seconds(3))
    violated, printed = storm.run()
    print(printed.splitlines()[-1], storm.strikes)
    assert not violated, "make linear STORE=%s SEED=%d\n%s" % (store, seed,
                                                               printed)
    counts = linear.count_words(printed)
    # A storm in which nothing happens proves nothing.
    for word in ("NEW", "REPLAY", "OMITTED", "INFLIGHT", "UNCERTAIN",
                 "MISMATCH", "REFUSED", "OK", "KEPT", "STALE", "NIL",
                 "record", "no reply"):
        assert counts.get(word, 0) > 0, printed
    assert sum(storm.strikes.values()) > 0
    if sum(storm.strikes.get(fault, 0) for fault in linear.FAULTS) > 2:
        assert daemons[0].disk.struck() > 0
