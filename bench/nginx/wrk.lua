-- wrk.lua - POSTs for wrk, each with a key of its own.
--
--   wrk ... URL -- KEY     KEY ends in -: the beginning of keys that differ
--
-- Prints requests a second, and how many of them went wrong.

local BODY = '{"amount":4200,"currency":"eur","customer":"cus_1"}'
local threads = 0
local head, tail, fixed, prefix
local count = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

function init(arguments)
    local key = arguments[1]
    head = "POST " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.host ..
        "\r\nX-Api-Key: acme\r\nContent-Type: application/json\r\n" ..
        "Content-Length: " .. #BODY .. "\r\nIdempotency-Key: "
    tail = "\r\n\r\n" .. BODY
    if key:sub(-1) == "-" then
        prefix = key .. number .. "-"
    else
        fixed = head .. key .. tail
    end
end

function request()
    if fixed then
        return fixed
    end
    count = count + 1
    return head .. prefix .. count .. tail
end

function done(summary, latency, requests)
    local e = summary.errors
    print(string.format("%.1f %d", summary.requests * 1e6 / summary.duration,
        e.connect + e.read + e.write + e.timeout + e.status))
end
