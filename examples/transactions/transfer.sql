-- transfer.sql - a money transfer that is made once, as a session of psql.
--
--   psql -X -d bank -U bank -v key=k1 -v source=alice -v target=bob \
--        -v amount=25 -f transfer.sql
--
-- Run it twice: the second time it shows the stored response and moves nothing.
-- Any error (psql then exits with 3) has undone everything, the claim too; a
-- connection that was lost at COMMIT leaves open whether it counts. In either
-- case run the same again.

\set ON_ERROR_STOP on
\set QUIET on
\pset footer off

-- What the request means: the same key with another fingerprint is refused.
SELECT 'transfer:' || encode(sha256(convert_to(
    concat_ws(' ', :'source', :'target', :'amount'), 'UTF8')), 'hex')
    AS fingerprint \gset

BEGIN;

SELECT verdict, coalesce(token, 0) AS token, coalesce(status, 0) AS status,
    coalesce(convert_from(body, 'UTF8'), '') AS response,
    verdict = 'NEW' AS is_new
FROM latchkey.claim('bank', 'transfer', :'key', :'fingerprint') \gset

\if :is_new

    -- In order of their names, so that two transfers do not lock crosswise.
    SELECT FROM account WHERE id IN (:'source', :'target')
    ORDER BY id FOR UPDATE \g /dev/null

    UPDATE account SET balance = balance - :amount WHERE id = :'source';
    UPDATE account SET balance = balance + :amount WHERE id = :'target';

    INSERT INTO ledger (key, source, target, amount)
    VALUES (:'key', :'source', :'target', :amount)
    RETURNING json_build_object('transfer', id, 'from', source, 'to', target,
                                'amount', amount) AS response \gset

    -- Delivered later, by the courier, once this has been committed.
    SELECT latchkey.enqueue('bank', 'transfer', :'key', :token, 'receipt',
        'mail', '/receipts', 'POST', E'Content-Type: application/json\r\n',
        convert_to(:'response', 'UTF8')) \g /dev/null

    -- The last step: it raises LK001 if another client has the operation by
    -- now, and then nothing of the above has happened.
    SELECT latchkey.complete('bank', 'transfer', :'key', :token, 201,
        E'Content-Type: application/json\r\n',
        convert_to(:'response', 'UTF8')) \g /dev/null

    \set status 201

\endif

COMMIT;

-- NEW: made just now. REPLAY: made before, this is the stored response.
-- MISMATCH: the key was used for another transfer. INFLIGHT: another client is making
-- it at this moment, run this again.
SELECT :'verdict' AS verdict, nullif(:status, 0) AS status, :'response' AS response;
