#!lua name=latchkey
-- latchkey.lua - Latchkey's state machine inside Redis. The rules are those of
-- lib/machine.c, filled in when the programs are built (tools/rules_gen.c). One
-- call of `decide` decides one operation or several, each by itself, in order.
--
-- A library of functions for Redis 7. Without its first line it is a script as
-- well, for servers without functions: ARGV[1] then names the function.
--
-- Keys, all of them with the same {prefix}:
--   r:TENANT-LENGTH:SCOPE-LENGTH:TENANT SCOPE KEY  a record, see RECORD below
--   due     sorted set of the records, by state and deadline
--   index   sorted set of the records, by number
--   token   all tokens up to this one may have been handed out; then, which
--           process of Redis said so
--   keeper  who sweeps and reaps now
--   audit   list of what operators did
--   meta    hash: secrets
-- Only finished records have a Redis TTL; it ends after their own, which is
-- compared with the clock here, so that nothing is forgotten early.

-- The caller that changes what a function does raises this: a daemon replaces a library
-- with a lower one.
local REVISION = 8

-- Numbers of enum lk_state, enum lk_event, enum lk_verdict and enum lk_effect.
local ABSENT, IN_PROGRESS = @STATE_ABSENT@, @STATE_IN_PROGRESS@
local UNCERTAIN, COMPLETED = @STATE_UNCERTAIN@, @STATE_COMPLETED@
local RELEASED, STATES = @STATE_RELEASED@, 5
local CLAIM, COMPLETE = @EVENT_CLAIM@, @EVENT_COMPLETE@
local RELEASE = @EVENT_RELEASE@
local DOUBT, EXTEND, KEEP = @EVENT_DOUBT@, @EVENT_EXTEND@, @EVENT_KEEP@
local RESOLVE_COMPLETED = @EVENT_RESOLVE_COMPLETED@
local RESOLVE_RELEASED = @EVENT_RESOLVE_RELEASED@
local EVICT, SWEEP, REAP = @EVENT_EVICT@, @EVENT_SWEEP@, @EVENT_REAP@
local NEW, REPLAY, OMITTED = @VERDICT_NEW@, @VERDICT_REPLAY@, @VERDICT_OMITTED@
local DOUBTFUL, REFUSED = @VERDICT_UNCERTAIN@, @VERDICT_REFUSED@
local DONE, KEPT = @VERDICT_DONE@, @VERDICT_KEPT@
local NONE, BEGIN = @EFFECT_NONE@, @EFFECT_BEGIN@
local TO_FINISH, TO_LOCK = @EFFECT_FINISH@, @EFFECT_LOCK@
local TO_DOUBT, TO_FORGET = @EFFECT_DOUBT@, @EFFECT_FORGET@

-- The rules of lib/machine.c: verdict, effect and next state. What is past its
-- TTL is absent for every event but the reaper's. Conditions that are not given
-- do not hold.
local function rule(event, state, lapsed, expired, token_current, doubted,
                    same_fingerprint, same_owner, omitted, no_new, reexecute,
                    proof, running, queued)
@DECIDE@end

-- A record: version, state, flags, length of owner; attempt; token, number,
-- generation, claimed, deadline, ttl, keep, at; lengths of fingerprint and
-- reason, two spare bytes; then fingerprint, owner, reason, response. The
-- deadline is the end of the lock (in progress), since when (uncertain) or the
-- expiry (completed, released); `at` is when it was completed or doubted.
local RECORD = '<BBBBIllllllllBBH'
local HEAD = 76
local FORMAT = 1
local FLAG_OMITTED, FLAG_EVICTED = 1, 2

-- What every operation returns: verdict, state before and after, whether
-- anything was written, now; then the record, whole where the caller needs its
-- answer or reason, else only its head. Of one with a long answer there is only
-- the head, too: a batch of retries must not fill anybody's memory. The daemon
-- fetches it by itself.
local REPLY = '<BBBBl'
local LONG = 16384

-- Scores in `due` are a state times this, and a time in ms.
local STATE = 2 ^ 43

-- Tokens are never behind the clock, in units of 16 us since 2024, so they
-- last for 142 years below 2^48. A second's worth is reserved at a time. A
-- record's number is its first token.
local UNIT, EPOCH, TOKEN_MAX = 16, 1704067200000000, 2 ^ 48 - 1
local RESERVE = 62500
-- After a restart or a failover tokens leap by 18 minutes, and by up to two
-- hours more: what a lost primary handed out last must not be handed out again,
-- whatever its clock said, and two that go on from the same token, each taking
-- itself for the primary, must not hand out the same.
local LEAP, SPREAD = 2 ^ 26, 2 ^ 29

local SLACK = 1000 -- ms between our expiry and the one of Redis

-- A library has these only once it is called: awake() fetches them.
local call, try, pack, unpack, spread, sub, floor, max
local is_library = redis.register_function ~= nil

local function awake()
    call, try, pack, unpack = redis.call, pcall, struct.pack, struct.unpack
    spread, sub, floor, max = _G.unpack, string.sub, math.floor, math.max
end

-- In ms, and in the unit of tokens.
local function clock()
    if not call then
        awake()
    end
    local time = call('TIME')
    local us = time[1] * 1000000 + time[2]
    return floor(us / 1000), floor((us - EPOCH) / UNIT)
end

local function reply(verdict, before, after, written, now, record)
    return pack(REPLY, verdict, before, after, written, now) .. record
end

local function short(verdict, found, now, record)
    return pack(REPLY, verdict, found, found, 0, now) .. sub(record, 1, HEAD)
end

-- The beginning of a record, with more than its head; '' if there is none.
local function look(name)
    return call('GETRANGE', name, 0, LONG)
end

local function tell(verdict, found, now, record)
    if #record > LONG then
        return short(verdict, found, now, record)
    end
    return reply(verdict, found, found, 0, now, record)
end

-- The record in hand: take() reads one, head() writes it with what has been
-- changed. Owner, fingerprint and reason are lengths.
local state, flags, owner, attempt, token, number, generation, claimed
local deadline, ttl, kept, at, fingerprint, reason

-- Returns the state that an event finds: what is past its TTL is absent.
local function take(record, now)
    local _
    _, state, flags, owner, attempt, token, number, generation, claimed,
        deadline, ttl, kept, at, fingerprint, reason = unpack(RECORD, record)
    if state >= COMPLETED and deadline <= now then
        return ABSENT
    end
    return state
end

local function head()
    return pack(RECORD, FORMAT, state, flags, owner, attempt, token, number,
        generation, claimed, deadline, ttl, kept, at, fingerprint, reason, 0)
end

-- A finished record. Redis 6 may not know PXAT; with PX it has to work out for
-- its replicas when that is.
local function set_finished(name, value, till, now)
    if is_library then
        call('SET', name, value, 'PXAT', till + SLACK)
    else
        call('SET', name, value, 'PX', till - now + SLACK)
    end
end

-- ---- The sets ----

-- Scores and names for one ZADD each, at the end of the call. The last one of a
-- name counts.
local to_due, to_index = {}, {}

local function put_due(score, name)
    local n = #to_due
    to_due[n + 1], to_due[n + 2] = score, name
end

local function put_index(score, name)
    local n = #to_index
    to_index[n + 1], to_index[n + 2] = score, name
end

local function flush(due, index)
    local dues, indexed = to_due, to_index
    to_due, to_index = {}, {}
    if #dues > 0 then
        call('ZADD', due, spread(dues))
    end
    if #indexed > 0 then
        call('ZADD', index, spread(indexed))
    end
end

-- ---- Tokens ----

-- What this process has handed out and reserved, by key. A replica runs no
-- functions: when it is promoted, or after a restart, there is nothing here,
-- or the key says that another client wrote it.
local tokens = {}

-- Returns the last token that may have been handed out, and who said so.
local function read_token(text)
    local last, by = string.match(text or '', '^(%d+) ?(.*)$')
    return tonumber(last) or 0, by or ''
end

local function write_token(key, last, by)
    local text = string.format(by == '' and '%.0f' or '%.0f %s', last, by)
    call('SET', key, text)
    return text
end

-- `by` tells one process from another, in hexadecimal digits.
local function leap(tick, by)
    local own = tonumber(sub(by, -7), 16) or 0
    return LEAP + (tick % 65536 * 8192 + own) % SPREAD
end

-- Daemons say something random when they come; else the time has to do.
local function tokens_of(key, tick, random)
    local mine = tokens[key]
    if not mine then
        mine = {last = 0, till = -1, by = random or string.format('%.0f', tick)}
        tokens[key] = mine
    end
    return mine
end

-- Scripts remember nothing: they count in the key, and leap when a daemon
-- comes. Functions beside them are not to take that for a failover.
local function script_token(key, tick, above)
    local last, by = read_token(call('GET', key))
    local next = max(last + 1, tick, above + 1)
    write_token(key, next, by)
    return next
end

-- The key is not as this process left it, or all that is reserved is used up.
local function reserve(key, mine, next, tick, text)
    local last, by = read_token(text)
    if by == mine.by and last >= mine.till then
        if next <= mine.till then
            mine.text = text
            return next
        end
        next = max(next, last + 1)
    else
        next = max(next, last + 1) + leap(tick, mine.by)
    end
    mine.till = next + RESERVE
    mine.text = write_token(key, mine.till, mine.by)
    return next
end

-- Above the one that the record had, in any case.
local function next_token(key, tick, above)
    if not is_library then
        return script_token(key, tick, above)
    end
    local mine = tokens_of(key, tick)
    local text = call('GET', key)
    local next = max(mine.last + 1, tick, above + 1)
    if next > mine.till or text ~= mine.text then
        next = reserve(key, mine, next, tick, text)
    end
    mine.last = next
    return next
end

-- ---- Claims ----

-- Each operation gets the name of its record, its arguments from args[i] on, the
-- key of the tokens, and the time.

-- The record in hand begins again, under the next token; what it was before is
-- not looked at.
local function renew(args, i, tokens_key, now, tick, above)
    token = next_token(tokens_key, tick, above)
    fingerprint, owner, reason = #args[i], #args[i + 1], 0
    state, flags, claimed, deadline = IN_PROGRESS, 0, now, now + args[i + 3]
    ttl, kept, at = args[i + 2], 0, 0
end

local function begin(name, args, i, was, now)
    if token > TOKEN_MAX then
        return {err = 'LKFULL the store is out of tokens'}
    end
    if was == ABSENT then
        number, generation, attempt = token, token, 1
        put_index(number, name)
    end
    local start = head()
    call('SET', name, start .. args[i] .. args[i + 1])
    put_due(IN_PROGRESS * STATE + deadline, name)
    return reply(NEW, was, IN_PROGRESS, 1, now, start)
end

-- NEW, of the record in hand. Released and uncertain ones keep number, attempts
-- and what KEEP has promised; those past their TTL do not (`was` is ABSENT).
local function begin_again(name, args, i, was, tokens_key, now, tick)
    local evicted, promised = flags >= FLAG_EVICTED, kept
    renew(args, i, tokens_key, now, tick, token)
    attempt = attempt + 1
    if evicted then
        generation = token
    elseif was ~= ABSENT then
        kept = promised
    end
    return begin(name, args, i, was, now)
end

-- The same NEW: its owner, who has not heard of it, has repeated its claim, and
-- the lock, which has run out, begins again.
local function go_on(name, record, lock, now)
    local was = state
    state, deadline = IN_PROGRESS, now + lock
    local start = head()
    call('SET', name, start .. sub(record, HEAD + 1))
    put_due(IN_PROGRESS * STATE + deadline, name)
    return reply(NEW, was, IN_PROGRESS, 1, now, start)
end

-- The lock of the record in hand has run out: its owner's words stay.
local function lapse(name, record, now)
    state, at, reason = UNCERTAIN, 0, 0
    record = head() .. sub(record, HEAD + 1)
    call('SET', name, record)
    put_due(UNCERTAIN * STATE + deadline, name)
    return reply(DOUBTFUL, IN_PROGRESS, UNCERTAIN, 1, now, record)
end

-- Redis is out of memory: nothing is begun, but what was begun is finished.
local full = false

-- The reply where nothing is written: whole where the caller needs the response
-- or the reason.
local function unchanged(verdict, found, now, record)
    if record == '' then
        return reply(verdict, ABSENT, ABSENT, 0, now, '')
    end
    if verdict == REPLAY or verdict == OMITTED or verdict == KEPT then
        return tell(verdict, found, now, record)
    end
    if verdict == DOUBTFUL then
        return reply(verdict, found, found, 0, now, record)
    end
    return short(verdict, found, now, record)
end

-- Fingerprint, owner, ttl, lock, options (1 reexecute, 2 no new).
local function claim(name, args, i, tokens_key, now, tick)
    local record = look(name)
    local found, options = ABSENT, args[i + 4]
    local lapsed, doubted, omitted, same_fingerprint, same_owner
    if record ~= '' then
        found = take(record, now)
        local start = HEAD + fingerprint
        lapsed, doubted = deadline <= now, at > 0
        omitted = flags == FLAG_OMITTED
        same_fingerprint = sub(record, HEAD + 1, start) == args[i]
        same_owner = owner > 0 and
            sub(record, start + 1, start + owner) == args[i + 1]
    end
    local verdict, effect = rule(CLAIM, found, lapsed, false, false, doubted,
        same_fingerprint, same_owner, omitted, options >= '2',
        options == '1' or options == '3')
    if effect == BEGIN and full then
        verdict, effect = REFUSED, NONE
    end
    if effect == NONE then
        return unchanged(verdict, found, now, record)
    elseif effect == TO_LOCK then
        return go_on(name, record, args[i + 3], now)
    elseif effect == TO_DOUBT then
        return lapse(name, record, now)
    elseif record == '' then
        renew(args, i, tokens_key, now, tick, 0)
        return begin(name, args, i, ABSENT, now)
    end
    return begin_again(name, args, i, found, tokens_key, now, tick)
end

-- ---- What becomes of a claim ----

-- Writes what a holder or an operator makes of the record in hand: its state
-- and deadline, flags, time, reason and response; the rest stays.
local function change(name, record, now, becomes, till, marks, when, why,
                      response)
    local was = state
    state, deadline, flags, at, reason = becomes, till, marks, when, #why
    local start = head()
    local value = start ..
        sub(record, HEAD + 1, HEAD + fingerprint + owner) .. why .. response
    if becomes >= COMPLETED then
        set_finished(name, value, till, now)
    else
        call('SET', name, value)
    end
    put_due(becomes * STATE + till, name)
    return reply(DONE, was, becomes, 1, now, start)
end

-- As asked for now, else at the claim; never less than KEEP was promised.
local function expiry(now, asked)
    return now + max(asked ~= '0' and asked + 0 or ttl, kept)
end

local function finish(name, record, now, ttl_asked, why, response)
    return change(name, record, now, COMPLETED, expiry(now, ttl_asked),
        why ~= '' and FLAG_OMITTED or 0, now, why, response)
end

local function set_free(name, record, now, marks)
    return change(name, record, now, RELEASED, expiry(now, '0'), marks, 0, '',
        '')
end

-- Of all of these the first argument is the token.
local function with_token(event, act)
    return function(name, args, i, _, now)
        local record = look(name)
        local found = record == '' and ABSENT or take(record, now)
        local present = record ~= ''
        local verdict, effect = rule(event, found, false, false,
            present and token == args[i] + 0, present and at > 0)
        if effect == NONE then
            return unchanged(verdict, found, now, record)
        end
        return act(name, args, i, record, now)
    end
end

-- Token, ttl, reason, response.
local complete = with_token(COMPLETE, function(name, args, i, record, now)
    return finish(name, record, now, args[i + 1], args[i + 2], args[i + 3])
end)

local release = with_token(RELEASE, function(name, _, _, record, now)
    return set_free(name, record, now, 0)
end)

-- Token, reason.
local doubt = with_token(DOUBT, function(name, args, i, record, now)
    return change(name, record, now, UNCERTAIN, now, 0, now, args[i + 1], '')
end)

-- Token, lock. A lock is only ever extended: a late, shorter one does not cut
-- it.
local extend = with_token(EXTEND, function(name, args, i, record, now)
    local till = now + args[i + 1]
    if state == IN_PROGRESS and deadline > till then
        till = deadline
    end
    return change(name, record, now, IN_PROGRESS, till, 0, 0, '', '')
end)

-- ---- Operators ----

local log -- the key of the audit log

local function audit(key, now, concerned, entry)
    call('RPUSH', key, pack('<ll', now, concerned) .. entry)
end

-- By an app, or by an operator: then the first argument is the audit entry.
local function keep(by_operator)
    return function(name, args, i, _, now)
        local record = call('GET', name)
        local found = record and take(record, now) or ABSENT
        local verdict, effect = rule(KEEP, found)
        if effect == NONE then
            return unchanged(verdict, found, now, record or '')
        end
        local asked = args[by_operator and i + 1 or i] + 0
        if by_operator then
            audit(log, now, token, args[i])
        end
        if state == COMPLETED and now + asked > deadline then
            deadline = now + asked
            set_finished(name, head() .. sub(record, HEAD + 1), deadline, now)
            put_due(state * STATE + deadline, name)
        elseif state ~= COMPLETED and asked > kept then
            kept = asked
            call('SET', name, head() .. sub(record, HEAD + 1))
        else
            return short(DONE, state, now, record)
        end
        return reply(DONE, state, state, 1, now, head())
    end
end

-- Of all of these the first argument is the audit entry; then, to complete, ttl,
-- reason and response. proof: the place of the token that the proof is about;
-- running: also while the lock is valid.
local function operator(event, proof, running)
    return function(name, args, i, _, now)
        local record = look(name)
        local found = record == '' and ABSENT or take(record, now)
        local present = record ~= ''
        local verdict, effect = rule(event, found, present and deadline <= now,
            false,
            present and proof ~= nil and token == args[i + (proof or 0)] + 0,
            false, false, false, false, false, false, proof ~= nil, running)
        if effect == NONE then
            return unchanged(verdict, found, now, record)
        end
        local done
        if effect == TO_FINISH then
            done = finish(name, record, now, args[i + 1], args[i + 2],
                args[i + 3])
        else
            done = set_free(name, record, now,
                event == EVICT and FLAG_EVICTED or 0)
        end
        audit(log, now, token, args[i])
        return done
    end
end

-- ---- Operations ----

-- What is added to an event: as in store/redis_write.c.
local BY_PROOF, WHILE_RUNNING, BY_OPERATOR = 100, 200, 300

-- By the number of the event: what decides it, and how many arguments it has.
local operations = {
    [CLAIM] = {claim, 5}, [COMPLETE] = {complete, 4}, [RELEASE] = {release, 1},
    [DOUBT] = {doubt, 2}, [EXTEND] = {extend, 2}, [KEEP] = {keep(false), 1},
    [KEEP + BY_OPERATOR] = {keep(true), 2},
    [RESOLVE_COMPLETED] = {operator(RESOLVE_COMPLETED), 4},
    [RESOLVE_RELEASED] = {operator(RESOLVE_RELEASED), 1},
    [RESOLVE_COMPLETED + WHILE_RUNNING] =
        {operator(RESOLVE_COMPLETED, nil, true), 4},
    [RESOLVE_RELEASED + WHILE_RUNNING] =
        {operator(RESOLVE_RELEASED, nil, true), 1},
    [RESOLVE_COMPLETED + BY_PROOF] = {operator(RESOLVE_COMPLETED, 4), 5},
    [RESOLVE_RELEASED + BY_PROOF] = {operator(RESOLVE_RELEASED, 1), 2},
    [EVICT] = {operator(EVICT), 1},
}

-- keys: index, due, token, audit, then the records, one for each operation.
-- args: for each operation its event and its arguments. Returns the replies. If
-- one fails, which no one expects, the others are still decided.
local function decide(keys, args)
    local now, tick = clock()
    local tokens_key, replies, i = keys[3], {}, 1
    log = keys[4]
    for place = 5, #keys do
        local operation = operations[args[i] + 0]
        local well, answer = try(operation[1], keys[place], args, i + 1,
            tokens_key, now, tick)
        if not well then
            answer = {err = 'LKFAILED ' ..
                tostring(type(answer) == 'table' and answer.err or answer)}
        end
        replies[place - 4] = answer
        i = i + operation[2] + 1
    end
    flush(keys[2], keys[1])
    return replies
end

-- The same, where Redis has refused it for want of memory.
local function decide_full(keys, args)
    full = true
    local well, answers = pcall(decide, keys, args)
    full = false
    return well and answers or redis.error_reply('LKFAILED ' ..
        tostring(type(answers) == 'table' and answers.err or answers))
end

-- keys: audit. args: entry.
local function note(keys, args)
    local now = clock()
    audit(keys[1], now, 0, args[1])
    return 'OK'
end

-- keys: audit. args: entries that have their time and token.
local function import_audit(keys, args)
    clock()
    for _, entry in ipairs(args) do
        call('RPUSH', keys[1], entry)
    end
    return 'OK'
end

-- ---- Keeper ----

-- Adds to `found`: records by state, their number and the last token. As LIST
-- has them, whether or not the keeper has been by: what has expired is gone, and
-- what has lapsed is uncertain.
local function add_counts(found, now, due, last)
    local counts, all = {}, 0
    for each = 1, STATES do
        local from = each * STATE
        if each == IN_PROGRESS or each == COMPLETED or each == RELEASED then
            from = from + now + 1
        end
        counts[each] = call('ZCOUNT', due, from, (each + 1) * STATE - 1)
    end
    counts[UNCERTAIN] = counts[UNCERTAIN] + call('ZCOUNT', due,
        IN_PROGRESS * STATE, IN_PROGRESS * STATE + now)
    for each = 1, STATES do
        found[#found + 1] = counts[each]
        all = all + counts[each]
    end
    found[#found + 1] = all
    found[#found + 1] = (read_token(call('GET', last)))
    return found
end

local function due_in(due, which, now, most)
    return call('ZRANGEBYSCORE', due, which * STATE, which * STATE + now,
        'LIMIT', 0, most)
end

local function forget(keys, name)
    call('ZREM', keys[2], name)
    call('ZREM', keys[3], name)
end

-- One that is due, and what has to be done about it: 'swept' if it is
-- uncertain now, 'reaped' if it is gone, nil if it was only in a wrong place.
local function tend_one(keys, name, now)
    local start = call('GETRANGE', name, 0, HEAD - 1)
    if #start < HEAD then -- gone by its TTL, or never written
        forget(keys, name)
        return 'reaped'
    end
    local expired = take(start, now) == ABSENT
    local _, effect = rule(REAP, state, false, expired)
    if effect == TO_FORGET then
        call('DEL', name)
        forget(keys, name)
        return 'reaped'
    end
    call('ZADD', keys[3], number, name)
    _, effect = rule(SWEEP, state, deadline <= now)
    if effect == TO_DOUBT then
        lapse(name, call('GET', name), now)
        flush(keys[2], keys[3])
        return 'swept'
    end
    call('ZADD', keys[2], state * STATE + deadline, name)
    return nil
end

-- Returns how many were reaped; adds the names of those swept.
local function tend_all(keys, now, most, swept)
    local reaped = 0
    for _, which in ipairs({IN_PROGRESS, COMPLETED, RELEASED}) do
        for _, name in ipairs(due_in(keys[2], which, now, most - reaped)) do
            local what = tend_one(keys, name, now)
            if what == 'swept' then
                swept[#swept + 1] = name
            elseif what == 'reaped' and which ~= IN_PROGRESS then
                reaped = reaped + 1
            end
        end
        if reaped >= most then
            break
        end
    end
    return reaped
end

-- keys: keeper, due, index, token. args: who, lease in ms, at most so many.
-- Returns whether we are the keeper, now, how many were reaped, how many are
-- still to be reaped and to be swept; then the counts, then the names of those
-- swept.
local function tend(keys, args)
    local now = clock()
    local holder = call('GET', keys[1])
    local mine = not holder or holder == args[1]
    local swept, reaped = {}, 0
    if mine then
        call('SET', keys[1], args[1], 'PX', args[2])
        reaped = tend_all(keys, now, args[3] + 0, swept)
    end
    local dead = 0
    for which = COMPLETED, RELEASED do
        dead = dead + call('ZCOUNT', keys[2], which * STATE,
            which * STATE + now)
    end
    local late = call('ZCOUNT', keys[2], IN_PROGRESS * STATE,
        IN_PROGRESS * STATE + now)
    local found = add_counts({mine and 1 or 0, now, reaped, dead, late},
        now, keys[2], keys[4])
    for _, name in ipairs(swept) do
        found[#found + 1] = name
    end
    return found
end

-- keys: keeper. args: who. The next one need not wait for the lease.
local function resign(keys, args)
    clock()
    if call('GET', keys[1]) == args[1] then
        call('DEL', keys[1])
    end
    return 'OK'
end

-- keys: any. A write that WAIT then waits for, with all before it.
local function mark(keys)
    clock()
    call('SET', keys[1], '1')
    return 'OK'
end

-- ---- Opening ----

-- Uses every command once, so that a user who lacks one is found out here and
-- not in the middle of an operation. Returns an error, or nil.
local function try_commands(key)
    for _, words in ipairs({
        {'TIME'}, {'DEL', key}, {'SET', key, '1', 'PX', 60000}, {'GET', key},
        {'GETRANGE', key, 0, 1}, {'DEL', key}, {'ZADD', key, 1, 'x'},
        {'ZCOUNT', key, 1, 1}, {'ZSCORE', key, 'x'},
        {'ZRANGEBYSCORE', key, 1, 1}, {'ZREVRANGEBYSCORE', key, 1, 1},
        {'ZREM', key, 'x'}, {'RPUSH', key, 'x'},
        {'LRANGE', key, 0, 0}, {'LLEN', key}, {'DEL', key},
        {'HSET', key, 'x', 'x'}, {'HGET', key, 'x'}, {'DEL', key}}) do
        local got = redis.pcall(spread(words))
        if type(got) == 'table' and got.err then
            return redis.error_reply('NOPERM ' .. words[1] .. ': ' .. got.err)
        end
    end
    return nil
end

-- keys: meta, index, due, token, check. args: two secrets, in case there are
-- none yet, and something random. Returns revision, now, the secrets, then the
-- counts.
local function hello(keys, args)
    awake()
    local failed = try_commands(keys[5])
    if failed then
        return failed
    end
    local now, tick = clock()
    for place, name in ipairs({'secret', 'reference_secret'}) do
        if not call('HGET', keys[1], name) then
            call('HSET', keys[1], name, args[place])
        end
    end
    local text = call('GET', keys[4])
    if is_library then
        tokens_of(keys[4], tick, args[3])
    elseif text then
        local last, by = read_token(text)
        write_token(keys[4], max(last, tick) + leap(tick, args[3]), by)
    end
    return add_counts({REVISION, now, call('HGET', keys[1], 'secret'),
        call('HGET', keys[1], 'reference_secret')}, now, keys[3], keys[4])
end

local function revision()
    return REVISION
end

-- keys: meta, index, token. args: the other store's secret.
local function adopt(keys, args)
    clock()
    if call('ZCOUNT', keys[2], '-inf', '+inf') > 0 or call('GET', keys[3]) then
        return 'BUSY'
    end
    call('HSET', keys[1], 'reference_secret', args[1])
    return 'OK'
end

-- ---- Looking ----

-- keys: record. Returns now, the record or nothing.
local function get(keys)
    local now = clock()
    return {now, call('GET', keys[1])}
end

-- keys: index. args: number. Returns now, name, record.
local function find(keys, args)
    local now = clock()
    local name = call('ZRANGEBYSCORE', keys[1], args[1], args[1])[1]
    if not name then
        return {now}
    end
    return {now, name, call('GET', name)}
end

-- keys: index. args: number to begin behind, at most so many, 0 or so many
-- bytes of whole records. Returns now, the number of the last one (0: there
-- are no more), then name and record (or what stands before its response).
local function page_of(args, list)
    local found, size, last = {(clock()), '0'}, 0, nil
    local most, bytes = args[2] + 0, args[3] + 0
    local listed = list()
    for i = 1, #listed, 2 do
        local record
        if bytes > 0 then
            record = call('GET', listed[i]) or ''
        else
            record = call('GETRANGE', listed[i], 0, 600)
        end
        size = size + #record
        if bytes > 0 and size > bytes and last then
            found[2] = last
            return found
        end
        last = listed[i + 1]
        found[#found + 1] = listed[i]
        found[#found + 1] = record
    end
    if #listed == 2 * most then
        found[2] = last
    end
    return found
end

local function page(keys, args)
    return page_of(args, function()
        return call('ZRANGEBYSCORE', keys[1], '(' .. args[1], '+inf',
            'WITHSCORES', 'LIMIT', 0, args[2])
    end)
end

-- The same backwards; 0: from the last one.
local function page_newest(keys, args)
    return page_of(args, function()
        return call('ZREVRANGEBYSCORE', keys[1],
            args[1] == '0' and '+inf' or '(' .. args[1], '-inf',
            'WITHSCORES', 'LIMIT', 0, args[2])
    end)
end

-- keys: audit. args: after, at most so many.
local function audits(keys, args)
    clock()
    return call('LRANGE', keys[1], args[1], args[1] + args[2] - 1)
end

-- keys: audit.
local function audit_length(keys)
    clock()
    return call('LLEN', keys[1])
end

-- What is wrong with a record and its places in the sets, or nil.
local function fault(keys, name, listed, now)
    local record = call('GET', name)
    local score = tonumber(call('ZSCORE', keys[2], name) or '')
    if not record then
        local ended = score and score >= COMPLETED * STATE and
            score % STATE <= now
        return not ended and 'is in the index, but gone' or nil
    end
    if #record < HEAD or unpack('<B', record) ~= FORMAT then
        return 'is no record'
    end
    take(record, now)
    local size = HEAD + owner + fingerprint + reason
    if number ~= listed + 0 then
        return 'has another number than the index says'
    end
    if score ~= state * STATE + deadline then
        return 'is not due when it says it is'
    end
    if #record < size or (state == COMPLETED and #record == size) then
        return 'is cut short'
    end
    return nil
end

-- keys: index, due. args: number to begin behind, at most so many. Returns
-- the number of the last one (0: there are no more), then name and fault.
local function verify(keys, args)
    local now = clock()
    local listed = call('ZRANGEBYSCORE', keys[1], '(' .. args[1], '+inf',
        'WITHSCORES', 'LIMIT', 0, args[2])
    local found = {#listed == 2 * args[2] and listed[#listed] or '0'}
    for i = 1, #listed, 2 do
        local wrong = fault(keys, listed[i], listed[i + 1], now)
        if wrong then
            found[#found + 1] = listed[i]
            found[#found + 1] = wrong
        end
    end
    return found
end

-- ---- Moving ----

-- What follows what, under one token. The caller that completed it has run it, so that
-- wins over a release elsewhere.
local function rank()
    if state == RELEASED then
        return flags >= FLAG_EVICTED and 5 or 3
    end
    return state == COMPLETED and 4 or state - 1
end

-- Whether the one in hand is newer than the other, which is then in hand. The
-- same state with a later end counts too: KEEP and EXTEND are promises.
local function is_newer(other, now)
    local its, order, ends, keeps = token, rank(), deadline, kept
    local waits = state == UNCERTAIN
    if take(other, now) == ABSENT or its > token then
        return true
    end
    if its < token or order ~= rank() then
        return its == token and order > rank()
    end
    return (not waits and ends > deadline) or keeps > kept
end

-- Tokens go on above what came from elsewhere. Functions do not see what a
-- script takes in: they have to leap.
local function raise_token(key, least)
    local last, by = read_token(call('GET', key))
    if least > last then
        write_token(key, least, is_library and by or '')
    end
    if tokens[key] then
        tokens[key].last = max(tokens[key].last, least)
    end
end

-- keys: record, due, index, token. args: a record, the highest token there.
-- Returns 0 (there is a newer one), 1 (taken), 2 (taken under a new number).
local function import(keys, args)
    local now, tick = clock()
    local there, result = call('GET', keys[1]), 1
    local found = take(args[1], now)
    raise_token(keys[4], max(token, number, args[2] + 0))
    if found == ABSENT or (there and not is_newer(there, now)) then
        return 0
    end
    take(args[1], now)
    local holder = call('ZRANGEBYSCORE', keys[3], number, number)[1]
    if number == 0 or (holder and holder ~= keys[1]) then
        number = next_token(keys[4], tick, 0)
        result = 2
    end
    local value = head() .. sub(args[1], HEAD + 1)
    if state >= COMPLETED then
        set_finished(keys[1], value, deadline, now)
    else
        call('SET', keys[1], value)
    end
    call('ZADD', keys[3], number, keys[1])
    call('ZADD', keys[2], state * STATE + deadline, keys[1])
    return result
end

-- ---- Names ----

-- Names a function of the library, or is the one that a script is to run.
local asked, answer = not is_library and table.remove(ARGV, 1), nil
local function offer(name, body, flags)
    if is_library then
        redis.register_function{function_name = 'latchkey_' .. name,
            callback = body, flags = flags or {}}
    elseif asked == name then
        answer = body(KEYS, ARGV)
    end
end

offer('decide', decide)
offer('decide_full', decide_full, {'allow-oom'})
offer('note', note, {'allow-oom'})
offer('tend', tend, {'allow-oom'})
offer('resign', resign, {'allow-oom'})
offer('mark', mark, {'allow-oom'})
offer('hello', hello, {'allow-oom'})
offer('adopt', adopt)
offer('import', import)
offer('import_audit', import_audit)
offer('revision', revision, {'no-writes'})
offer('get', get, {'no-writes'})
offer('find', find, {'no-writes'})
offer('page', page, {'no-writes'})
offer('page_newest', page_newest, {'no-writes'})
offer('audits', audits, {'no-writes'})
offer('audit_length', audit_length, {'no-writes'})
offer('verify', verify, {'no-writes'})
return answer
