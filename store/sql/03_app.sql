-- 03_app.sql - Latchkey inside the transactions of an app.
--
-- Claim, business writes, jobs and completion in one transaction of the app:
-- all of it happens, or nothing. The strongest guarantee that there is.
--
--     BEGIN;
--     SELECT * FROM latchkey.claim('acct_1', 'POST /payments', 'key', 'sha..');
--     -- NEW: do the work; REPLAY: respond with what it returns; see its comment
--     INSERT INTO payment ...;
--     SELECT latchkey.enqueue('acct_1', 'POST /payments', 'key', token,
--                             'receipt', 'mailer', '/send', body => ...);
--     SELECT latchkey.complete('acct_1', 'POST /payments', 'key', token, 201,
--                              'Content-Type: application/json',
--                              convert_to('{"id": 7}', 'UTF8'));
--     COMMIT;
--
-- Behind the gateway, the claim has been made: the app takes tenant, scope, key
-- and token from the headers of the request and only completes.
--
-- The functions run with the rights of their owner and may be called by
-- latchkey_app. What they raise:
--   LK001  STALE: the token is not the current one; another client has taken
--          over, or the operation was released. Roll back.
--   LK002  KEPT: the operation has been completed before, perhaps by yourself,
--          when the reply to COMMIT was lost. Roll back; the first completion
--          stands, latchkey.lookup and latchkey.claim show it.
--   LK003  CONFLICT: an earlier run of the operation has left a job of that
--          name that makes another call. Roll back; the hint says what to do.
--   55P03, 40001, 40P01  another transaction was in the way. Roll back, run
--          the whole transaction again.
--   22023  an argument is wrong; the message names it.
-- Your commit waits for the disk, even if synchronous_commit is off. A claim
-- never waits. The others, which only the holder of a token calls, wait
-- up to two seconds for a transaction that has the operation at that moment:
-- usually a daemon that notes that the holder is alive.

-- Strings with a backslash are E'...': the caller's session may have
-- standard_conforming_strings off, and the bodies are read by its rules.

-- ---- arguments -----------------------------------------------------------

-- A text as the tables have it (01_schema.sql), or 22023.
CREATE OR REPLACE FUNCTION latchkey.take_text(what text, value text,
    lower integer, upper integer)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NULL THEN
        RAISE EXCEPTION 'latchkey: % is null', what
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(value) NOT BETWEEN lower AND upper THEN
        RAISE EXCEPTION 'latchkey: % has % bytes, not % to %', what,
            octet_length(value), lower, upper
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN replace(value, E'\\', E'\\\\');
END
$$;

CREATE OR REPLACE FUNCTION latchkey.take_key(value text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value COLLATE "C" ~ '[^ -~]' THEN
        RAISE EXCEPTION 'latchkey: the key has characters that are not '
            'printable ASCII'
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Use a UUID, or the hash of what you have.';
    END IF;
    RETURN latchkey.take_text('the key', value, 1, 255);
END
$$;

CREATE OR REPLACE FUNCTION latchkey.take_ms(what text, value interval)
RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ms numeric := ceil(extract(epoch FROM value)::numeric * 1000);
BEGIN
    IF ms IS NULL OR ms < 1 OR ms > 36500 * 86400000.0 THEN
        RAISE EXCEPTION 'latchkey: % is %, not between 1 ms and 36500 days',
            what, coalesce(value::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN ms;
END
$$;

CREATE OR REPLACE FUNCTION latchkey.take_token(value bigint)
RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF value IS NULL OR value < 1 THEN
        RAISE EXCEPTION 'latchkey: the token is %, not a positive number',
            coalesce(value::text, 'null')
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'It comes from latchkey.claim, or from the header '
                'Latchkey-Token of the request.';
    END IF;
    RETURN value;
END
$$;

-- A block of header lines as HTTP has them; other line ends are put right.
CREATE OR REPLACE FUNCTION latchkey.take_headers(value text)
RETURNS bytea
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lines text[] := regexp_split_to_array(rtrim(coalesce(value, ''), E'\r\n'),
                                          E'\r?\n');
    line text;
BEGIN
    IF octet_length(value) > 1048576 THEN
        RAISE EXCEPTION 'latchkey: the headers have more than 1 MiB'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF lines = '{""}' THEN
        RETURN '';
    END IF;
    FOREACH line IN ARRAY lines LOOP
        IF line COLLATE "C" !~ (E'^[-!#$%&''*+.^_`|~0-9A-Za-z]+:'
            '[^\\u0001-\\u0008\\u000a-\\u001f\\u007f]*$') THEN
            RAISE EXCEPTION 'latchkey: not a header line: %',
                quote_literal(left(line, 80))
                USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Headers are lines of the form Name: value.';
        END IF;
    END LOOP;
    RETURN convert_to(array_to_string(lines, E'\r\n') || E'\r\n', 'UTF8');
END
$$;

-- What is wrong with the path of a job, or null: the rules of store/call.c. It
-- stays below the target's URL, whatever a server takes for a separator.
CREATE OR REPLACE FUNCTION latchkey.path_fault(path text)
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
    WHEN path IS NULL OR left(path, 1) <> '/' THEN 'must begin with a slash'
    WHEN octet_length(path) > 8192 THEN 'is longer than 8192 bytes'
    WHEN left(path, 2) = '//' THEN 'must not begin with two slashes'
    WHEN path COLLATE "C" ~ '[^!-~]'
        THEN 'must be printable ASCII without spaces'
    WHEN strpos(path, E'\\') > 0 OR strpos(path, '#') > 0
        THEN 'must not contain a backslash or a fragment'
    WHEN EXISTS (
        SELECT FROM regexp_split_to_table(
            lower(substr(split_part(path, '?', 1), 2)),
            '/|;|%(2f|5c|3b|3f|23|00)') AS s(segment)
        WHERE replace(s.segment, '%2e', '.') IN ('.', '..'))
        THEN 'must not contain "." or ".." as a segment'
    END
$$;

-- The same of a method, of the headers as take_headers returns them, and of the
-- name of a target.
CREATE OR REPLACE FUNCTION latchkey.method_fault(method text)
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN method IN ('GET', 'POST', 'PUT', 'PATCH', 'DELETE')
        THEN NULL ELSE 'must be GET, POST, PUT, PATCH or DELETE' END
$$;

CREATE OR REPLACE FUNCTION latchkey.headers_fault(headers bytea)
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN E'\n' || lower(convert_from(headers, 'UTF8')) ~
        (E'\n(host|content-length|transfer-encoding|connection|upgrade|te|'
         'trailer|keep-alive|expect|proxy-connection|idempotency-key|'
         'webhook-id|webhook-timestamp|webhook-signature|latchkey-[^:\n]+):')
        THEN 'must not set the host, the framing of the message, '
            'Idempotency-Key, or what begins with Latchkey-' END
$$;

CREATE OR REPLACE FUNCTION latchkey.target_fault(target text)
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
    WHEN target IS NULL OR octet_length(target) NOT BETWEEN 1 AND 64
        THEN 'must have 1 to 64 characters'
    WHEN target COLLATE "C" !~ '^[a-z0-9][-a-z0-9_.]*$'
        THEN 'must be made of a-z, 0-9, ''-'', ''_'' and ''.'''
    END
$$;

CREATE OR REPLACE FUNCTION latchkey.refuse(what text, fault text, hint text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION 'latchkey: % %', what, fault
            USING ERRCODE = 'invalid_parameter_value', HINT = hint;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION latchkey.as_time(ms bigint)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT pg_catalog.to_timestamp($1 / 1000.0) $$;

-- ---- the lock and the token ----------------------------------------------

-- What others have been sent is not lost in a crash because this session does
-- not wait for the disk: now its commit does.
CREATE OR REPLACE FUNCTION latchkey.be_durable()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- The lock of an operation, for the caller that holds its token.
CREATE OR REPLACE FUNCTION latchkey.hold(id bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
BEGIN
    IF pg_try_advisory_xact_lock(id) THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(id);
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'latchkey: another transaction has this operation'
            USING ERRCODE = 'lock_not_available',
            HINT = 'Roll back and run the whole transaction again.';
    END;
END
$$;

CREATE OR REPLACE FUNCTION latchkey.raise_stale(verdict smallint,
    tenant text, scope text, key text, token bigint)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF verdict = @VERDICT_STALE@ THEN
        RAISE EXCEPTION 'latchkey: STALE: % is not the current token of '
            'operation % / % / %', token, tenant, scope, key
            USING ERRCODE = 'LK001',
            DETAIL = 'Another claim holds the operation now, or the operation was '
                'released or has expired.',
            HINT = 'Roll back. Do not run the transaction again with this '
                'token.';
    ELSIF verdict = @VERDICT_KEPT@ THEN
        RAISE EXCEPTION 'latchkey: KEPT: operation % / % / % has been '
            'completed already', tenant, scope, key
            USING ERRCODE = 'LK002',
            DETAIL = 'The first completion counts, no matter who made it.',
            HINT = 'Roll back, so that its effects happen once, and respond with '
                'what latchkey.lookup returns.';
    END IF;
END
$$;

-- complete, release, doubt, extend: one event by the caller that shows the
-- token.
CREATE OR REPLACE FUNCTION latchkey.by_token(event integer, tenant text,
    scope text, key text, token bigint, ttl bigint, lock bigint,
    status integer, headers bytea, body bytea, reason text)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    _tenant text := latchkey.take_text('the tenant', tenant, 1, 255);
    _scope text := latchkey.take_text('the scope', scope, 1, 1024);
    _key text := latchkey.take_key(key);
    id bigint := latchkey.lock_id(_tenant, _scope, _key);
    d latchkey.decision;
BEGIN
    token := latchkey.take_token(token);
    PERFORM latchkey.be_durable();
    PERFORM latchkey.hold(id);
    d := latchkey.step(1, event::smallint, _tenant, _scope, _key, '', '', ttl,
        lock, 0, token, status, headers, body, reason, '', '', ttl,
        latchkey.now_ms(), id);
    PERFORM latchkey.raise_stale(d.verdict, tenant, scope, key, token);
    PERFORM latchkey.wait_for_standby();
    RETURN 'OK';
END
$$;

-- The row of an open operation whose current token is shown, under its lock
-- until the transaction ends.
CREATE OR REPLACE FUNCTION latchkey.own(tenant text, scope text, key text,
    token bigint)
RETURNS latchkey.operation
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    _tenant text := latchkey.take_text('the tenant', tenant, 1, 255);
    _scope text := latchkey.take_text('the scope', scope, 1, 1024);
    _key text := latchkey.take_key(key);
    r latchkey.operation;
BEGIN
    token := latchkey.take_token(token);
    PERFORM latchkey.be_durable();
    PERFORM latchkey.hold(latchkey.lock_id(_tenant, _scope, _key));
    r := latchkey.read(_tenant, _scope, _key, false);
    -- What may be enqueued may be fenced.
    PERFORM latchkey.raise_stale(@VERDICT(latchkey.decide(@EVENT_ENQUEUE@,
        coalesce(r.state, @STATE_ABSENT@::smallint), false, false, r.omitted,
        r.queued, false, false, r.token = token, 0))@::smallint, tenant, scope,
        key, token);
    RETURN r;
END
$$;

-- ---- what apps call ------------------------------------------------------

CREATE OR REPLACE FUNCTION latchkey.claim(tenant text, scope text, key text,
    fingerprint text, ttl interval DEFAULT '24 hours',
    lock interval DEFAULT '30 seconds', owner text DEFAULT NULL,
    reexecute boolean DEFAULT false)
RETURNS latchkey.verdict
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    _tenant text := latchkey.take_text('the tenant', tenant, 1, 255);
    _scope text := latchkey.take_text('the scope', scope, 1, 1024);
    _key text := latchkey.take_key(key);
    _fingerprint text := latchkey.take_text('the fingerprint', fingerprint, 1,
                                            128);
    _owner text := latchkey.take_text('the owner', coalesce(owner, ''), 0, 64);
    _ttl bigint := latchkey.take_ms('the TTL', ttl);
    _lock bigint := latchkey.take_ms('the lock', lock);
    id bigint := latchkey.lock_id(_tenant, _scope, _key);
    now bigint;
    d latchkey.decision;
    v latchkey.verdict;
BEGIN
    PERFORM latchkey.be_durable();
    PERFORM latchkey.check_timeline(0);
    IF pg_try_advisory_xact_lock(id) THEN
        d := latchkey.step(1, @EVENT_CLAIM@::smallint, _tenant, _scope, _key,
            _fingerprint, _owner, _ttl, _lock, @FLAG_OWNER@
            | CASE WHEN reexecute THEN @FLAG_REEXECUTE@ ELSE 0 END, 0, 0, '',
            '', '', '', '', _ttl, latchkey.now_ms(), id);
    ELSE
        -- In another transaction's hands. What is committed and final may be
        -- returned; but not from an old snapshot, which does not know what is.
        now := latchkey.now_ms();
        d.verdict := @VERDICT_INFLIGHT@;
        d.deadline_ms := now + 1000;
        d.now_ms := now;
        IF NOT latchkey.has_old_snapshot() THEN
            SELECT CASE
                    -- Neither owner nor lapse: what is open may change now.
                    WHEN o.state = @STATE_UNCERTAIN@
                        AND o.fingerprint = _fingerprint
                        THEN @VERDICT_INFLIGHT@
                    ELSE @VERDICT(latchkey.decide(@EVENT_CLAIM@, o.state, false,
                        false, o.omitted, o.queued,
                        o.fingerprint = _fingerprint, false, false, 0))@ END,
                o.token, CASE o.state
                WHEN @STATE_IN_PROGRESS@
                    THEN latchkey.lock_end(o.token, o.deadline_ms)
                ELSE o.deadline_ms END,
                CASE o.state WHEN @STATE_COMPLETED@ THEN o.completed_ms
                             ELSE o.claimed_ms END, o.reason
            INTO d.verdict, d.token, d.deadline_ms, d.changed_ms, d.reason
            FROM latchkey.operation o
            WHERE o.tenant = _tenant AND o.scope = _scope AND o.key = _key
              AND (o.state IN (@STATES_UNFINISHED@)
                   OR o.state = @STATE_COMPLETED@ AND o.deadline_ms > now);
            d.verdict := coalesce(d.verdict, @VERDICT_INFLIGHT@);
            d.deadline_ms := coalesce(d.deadline_ms, now + 1000);
        END IF;
    END IF;

    v.verdict := (@VERDICT_WORDS@)[d.verdict + 1];
    IF d.verdict IN (@VERDICT_NEW@, @VERDICT_REPLAY@, @VERDICT_OMITTED@,
                     @VERDICT_ACCEPTED@) THEN
        PERFORM latchkey.wait_for_standby();
    END IF;
    CASE v.verdict
    WHEN 'NEW' THEN
        v.token := d.token;
        v.attempt := d.attempt;
        v.expires := latchkey.as_time(d.deadline_ms);
    WHEN 'REPLAY', 'OMITTED' THEN
        v.since := latchkey.as_time(d.changed_ms);
        v.expires := latchkey.as_time(d.deadline_ms);
        v.reason := replace(d.reason, E'\\\\', E'\\');
        SELECT o.status INTO v.status FROM latchkey.operation o
        WHERE o.tenant = _tenant AND o.scope = _scope AND o.key = _key
          AND o.token = d.token;
        SELECT a.headers, a.body INTO v.headers, v.body FROM latchkey.answer a
        WHERE a.token = d.token;
        IF v.status IS NULL OR v.verdict = 'REPLAY' AND v.body IS NULL THEN
            -- Not under our lock, and evicted since the verdict.
            v := NULL;
            v.verdict := 'INFLIGHT';
            v.retry_after := '1 millisecond';
        END IF;
    WHEN 'INFLIGHT' THEN
        -- It may end at any time, long before its lock does.
        v.retry_after := least(greatest(d.deadline_ms - d.now_ms, 1), 1000)
            * interval '1 millisecond';
    WHEN 'ACCEPTED' THEN
        v.since := latchkey.as_time(d.changed_ms);
    WHEN 'UNCERTAIN' THEN
        v.since := latchkey.as_time(d.deadline_ms);
        v.reason := coalesce(replace(d.reason, E'\\\\', E'\\'), 'lock lapsed');
    ELSE
        NULL;
    END CASE;
    RETURN v;
END
$$;

CREATE OR REPLACE FUNCTION latchkey.complete(tenant text, scope text, key text,
    token bigint, status integer, headers text, body bytea,
    ttl interval DEFAULT NULL, omit text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    IF status IS NULL OR status NOT BETWEEN 100 AND 599 THEN
        RAISE EXCEPTION 'latchkey: the status is %, not 100 to 599',
            coalesce(status::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF omit = '' THEN
        RAISE EXCEPTION 'latchkey: omit is empty: it must be null or the '
            'reason why the response is not stored'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF omit IS NULL AND coalesce(octet_length(headers), 0)
        + coalesce(octet_length(body), 0) > 16711680 THEN
        -- What a daemon takes, and can send, with its default limits.
        RAISE EXCEPTION 'latchkey: the response has more than 16711680 bytes'
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Store it elsewhere, or complete with omit => ''too large''.';
    END IF;
    RETURN latchkey.by_token(@EVENT_COMPLETE@, tenant, scope, key, token,
        CASE WHEN ttl IS NULL THEN 0 ELSE latchkey.take_ms('the TTL', ttl) END,
        0, status, latchkey.take_headers(headers), coalesce(body, ''),
        latchkey.take_text('omit', coalesce(omit, ''), 0, 255));
END
$$;

CREATE OR REPLACE FUNCTION latchkey.release(tenant text, scope text, key text,
    token bigint)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN latchkey.by_token(@EVENT_RELEASE@, tenant, scope, key, token, 0, 0, 0, '', '', '');
END
$$;

CREATE OR REPLACE FUNCTION latchkey.doubt(tenant text, scope text, key text,
    token bigint, reason text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN latchkey.by_token(@EVENT_DOUBT@, tenant, scope, key, token, 0, 0, 0, '', '',
        latchkey.take_text('the reason', reason, 1, 255));
END
$$;

CREATE OR REPLACE FUNCTION latchkey.extend(tenant text, scope text, key text,
    token bigint, lock interval DEFAULT '30 seconds')
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RETURN latchkey.by_token(@EVENT_EXTEND@, tenant, scope, key, token, 0,
        latchkey.take_ms('the lock', lock), 0, '', '', '');
END
$$;

CREATE OR REPLACE FUNCTION latchkey.keep(tenant text, scope text, key text,
    ttl interval)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    _tenant text := latchkey.take_text('the tenant', tenant, 1, 255);
    _scope text := latchkey.take_text('the scope', scope, 1, 1024);
    _key text := latchkey.take_key(key);
    _ttl bigint := latchkey.take_ms('the TTL', ttl);
    id bigint := latchkey.lock_id(_tenant, _scope, _key);
    d latchkey.decision;
BEGIN
    PERFORM latchkey.be_durable();
    PERFORM latchkey.hold(id);
    d := latchkey.step(1, @EVENT_KEEP@::smallint, _tenant, _scope, _key, '', '', _ttl, 0,
        0, 0, 0, '', '', '', '', '', _ttl, latchkey.now_ms(), id);
    PERFORM latchkey.wait_for_standby();
    RETURN d.verdict = @VERDICT_DONE@;
END
$$;

CREATE OR REPLACE FUNCTION latchkey.fence(tenant text, scope text, key text,
    token bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM latchkey.own(tenant, scope, key, token);
END
$$;

CREATE OR REPLACE FUNCTION latchkey.enqueue(tenant text, scope text, key text,
    token bigint, name text, target text, path text,
    method text DEFAULT 'POST', headers text DEFAULT '',
    body bytea DEFAULT '', delay interval DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    _name text := latchkey.take_text('the name of the job', name, 1, 255);
    _headers bytea := latchkey.take_headers(headers);
    _delay bigint := 0;
    added integer;
    stored latchkey.job;
    r latchkey.operation;
BEGIN
    PERFORM latchkey.refuse('the target of the job',
        latchkey.target_fault(target),
        'It is the name of a [target] in the configuration.');
    PERFORM latchkey.refuse('the path of the job', latchkey.path_fault(path),
        'A job names a target of the configuration and a path there, never a '
        'host.');
    PERFORM latchkey.refuse('the method of the job',
        latchkey.method_fault(method), 'POST is the usual one.');
    PERFORM latchkey.refuse('the headers of the job',
        latchkey.headers_fault(_headers), 'The courier sets these itself.');
    IF octet_length(body) > 16711680 THEN
        PERFORM latchkey.refuse('the body of the job',
            'has more than 16711680 bytes', 'Send a reference to it instead.');
    ELSIF delay <> interval '0' THEN
        _delay := latchkey.take_ms('the delay', delay);
    END IF;
    r := latchkey.own(tenant, scope, key, token);
    PERFORM latchkey.wait_for_standby();
    added := latchkey.add_job(r.tenant, r.scope, r.key, r.number, r.generation,
        r.token, _name, target, method, path, _headers, coalesce(body, ''),
        _delay, latchkey.now_ms());
    IF added = @VERDICT_CONFLICT@ THEN
        SELECT * INTO stored FROM latchkey.job j
        WHERE j.number = r.number AND j.name = _name
        ORDER BY j.id DESC LIMIT 1;
        RAISE EXCEPTION 'latchkey: CONFLICT: operation % / % / % has a job % '
            'already, which makes another call', tenant, scope, key, name
            USING ERRCODE = 'LK003',
            DETAIL = format('Job %s has another target, method, path, headers '
                'or body. An earlier run queued it, and it stays.',
                stored.id),
            HINT = format('Roll back. To make both calls, give this one '
                'another name. To make only this one, drop the first (latchkey '
                'resolve --job %s --drop) and give this one another name.',
                stored.id);
    END IF;
    -- Couriers hear of it when this transaction commits; or else they ask,
    -- several times a second. The caller that may set it delays its own jobs
    -- by that.
    IF added = @VERDICT_DONE@ AND lower(coalesce(current_setting('latchkey.notify', true),
        '')) NOT IN ('off', 'false', 'no', '0') THEN
        PERFORM pg_notify('latchkey_job', '');
    END IF;
    RETURN added = @VERDICT_DONE@;
END
$$;

CREATE OR REPLACE FUNCTION latchkey.lookup(tenant text, scope text, key text)
RETURNS SETOF latchkey.record
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    _tenant text := latchkey.take_text('the tenant', tenant, 1, 255);
    _scope text := latchkey.take_text('the scope', scope, 1, 1024);
    _key text := latchkey.take_key(key);
    now bigint := latchkey.now_ms();
BEGIN
    RETURN QUERY
    SELECT (@STATE_WORDS@)[s.state],
        o.token, o.attempt, latchkey.as_time(o.claimed_ms),
        CASE WHEN s.state = @STATE_IN_PROGRESS@ THEN latchkey.as_time(t.ends_ms) END,
        CASE WHEN s.state IN (@STATE_ACCEPTED@, @STATE_UNCERTAIN@)
             THEN latchkey.as_time(t.ends_ms) END,
        latchkey.as_time(o.completed_ms),
        CASE WHEN s.state IN (@STATES_FINISHED@) THEN latchkey.as_time(o.deadline_ms) END,
        o.status, a.headers, a.body, o.omitted,
        CASE WHEN s.state = @STATE_UNCERTAIN@
             THEN coalesce(replace(o.reason, E'\\\\', E'\\'), 'lock lapsed')
             ELSE replace(o.reason, E'\\\\', E'\\') END
    FROM latchkey.operation o
    -- A lock that ran out is what the sweeper will make of it.
    CROSS JOIN LATERAL (SELECT CASE o.state
        WHEN @STATE_IN_PROGRESS@ THEN latchkey.lock_end(o.token, o.deadline_ms)
        ELSE o.deadline_ms END AS ends_ms OFFSET 0) AS t
    CROSS JOIN LATERAL (SELECT @NEXT(latchkey.decide(@EVENT_SWEEP@, o.state,
        false, t.ends_ms <= now, o.omitted, o.queued, false, false, false,
        0), o.state)@ AS state OFFSET 0) AS s
    LEFT JOIN LATERAL (SELECT k.headers, k.body FROM latchkey.answer k
                       WHERE k.token = o.token
                         AND o.state = @STATE_COMPLETED@
                       LIMIT 1) AS a ON true
    WHERE o.tenant = _tenant AND o.scope = _scope AND o.key = _key
      AND (o.state IN (@STATES_UNFINISHED@) OR o.deadline_ms > now
           OR EXISTS (SELECT FROM latchkey.job j
                      WHERE j.number = o.number
                        AND j.state IN (@JOBS_UNFINISHED@)));
    IF FOUND THEN -- a caller may respond with it
        PERFORM latchkey.be_durable();
        PERFORM latchkey.wait_for_standby();
    END IF;
END
$$;

COMMENT ON FUNCTION latchkey.claim(text, text, text, text, interval, interval,
    text, boolean) IS
'Decides who runs the operation. Never waits. The verdict is one of:
NEW        you run it: do the work and call complete with the token, in this
           transaction or, if you commit before, until the lock ends (extend).
REPLAY     it has run: respond with status, headers and body.
OMITTED    it has run, but its response was not stored. Do not run it again.
INFLIGHT   another client runs it now: try again after retry_after.
UNCERTAIN  it may or may not have run: only a person, or proof, can tell. With
           reexecute => true you get NEW instead: only if running it twice does
           no harm.
ACCEPTED   it is queued and will run.
MISMATCH   the key was used for another request: refuse this one.
fingerprint: a hash of what the request means. owner: a random word of your own:
if you do not learn whether your COMMIT happened, claim again with the same owner
and you get the same token. ttl: how long the response is stored, from its
completion on.';
COMMENT ON FUNCTION latchkey.complete(text, text, text, bigint, integer, text,
    bytea, interval, text) IS
'The operation has run, and this is its response. It counts when your
transaction commits. Returns OK, or an error: LK001 the token is not the current one,
LK002 it has been completed before; roll back in both cases, so that nothing is
done twice. headers: lines of the form Name: value. body: bytes, so for text
convert_to(text, ''UTF8''); both together at most 16711680 bytes. omit: the
reason why the response is not stored; a retry then gets OMITTED.';
COMMENT ON FUNCTION latchkey.release(text, text, text, bigint) IS
'Nothing has happened: the next claim gets NEW. Returns OK, or LK001 or LK002.';
COMMENT ON FUNCTION latchkey.doubt(text, text, text, bigint, text) IS
'It may have happened: the operation is uncertain and does not run again until
that is known. Returns OK, or LK001 or LK002.';
COMMENT ON FUNCTION latchkey.extend(text, text, text, bigint, interval) IS
'A sign of life: the lock lasts for this long from now on. You need it only if you
commit your claim before the work is done. Returns OK, or LK001 or LK002.';
COMMENT ON FUNCTION latchkey.keep(text, text, text, interval) IS
'The operation is remembered longer: a completed one until at least ttl from now,
an open one for at least ttl from its completion. Never makes it shorter. False:
there is no such operation, or it is released.';
COMMENT ON FUNCTION latchkey.fence(text, text, text, bigint) IS
'Raises LK001 if the token is not the current one and LK002 if the operation is
completed; else no other claim
can take the operation over before your transaction ends. For steps
that write before they complete.';
COMMENT ON FUNCTION latchkey.enqueue(text, text, text, bigint, text, text,
    text, text, text, bytea, interval) IS
'Queues a call to a target of the configuration. The courier makes it after your
transaction has committed and the delay is over. Returns true, or false if the
operation already has a job of that name that makes the same call; LK003 if that
job makes another call. path: below the URL of the target, with the query.
headers: lines of the form Name: value. Call it before complete. LK001 and LK002
as for fence.';
COMMENT ON FUNCTION latchkey.lookup(text, text, text) IS
'The state of the operation, with its response; no row if there is no such
operation. It only shows: use claim to decide.';
