-- idempotency.lua - idempotency as a script for nginx and Redis does it.
--
-- Before the app is called: SET NX with a fingerprint of the request, which
-- also gets what is there (one round trip). After it has responded: SET with
-- the response, and only then the client gets it. No fencing, no locks that
-- end, no doubt about outcomes: the least that is called the same job.

local TTL = 24 * 3600
local idempotency = {}

local function refuse(status, title)
    ngx.status = status
    ngx.header.content_type = "application/problem+json"
    ngx.print('{"title":"', title, '","status":', status, '}')
end

-- One command; its reply, nil for none, or false and an error.
local function call(socket, ...)
    local words = { "*" .. select("#", ...) .. "\r\n" }
    for i = 1, select("#", ...) do
        local word = tostring(select(i, ...))
        words[#words + 1] = "$" .. #word .. "\r\n" .. word .. "\r\n"
    end
    local sent, why = socket:send(words)
    if not sent then
        return false, why
    end
    local line, failed = socket:receive()
    if not line then
        return false, failed
    end
    local kind, rest = line:sub(1, 1), line:sub(2)
    if kind == "+" then
        return rest
    elseif kind == "$" and rest == "-1" then
        return nil
    elseif kind == "$" then
        local value, cut = socket:receive(tonumber(rest) + 2)
        if not value then
            return false, cut
        end
        return value:sub(1, -3)
    end
    return false, line
end

-- Connections stay in a pool of the worker between calls.
local function redis(...)
    local socket = ngx.socket.tcp()
    socket:settimeouts(1000, 5000, 5000)
    local connected, why = socket:connect(ngx.var.redis)
    if not connected then
        return false, why
    end
    local reply, failed = call(socket, ...)
    if reply == false then
        socket:close()
        return false, failed
    end
    socket:setkeepalive(60000, 128)
    return reply
end

local function replay(stored, fingerprint)
    local print, status, kind, location, body =
        stored:match("^(%S+) (%d+)\n(.-)\n(.-)\n(.*)$")
    if not print then
        print = stored
    end
    if print ~= fingerprint then
        return refuse(422, "this key was used for another request")
    elseif not status then
        return refuse(409, "the first request is in progress")
    end
    ngx.status = tonumber(status)
    ngx.header["Content-Type"] = kind
    ngx.header["Location"] = location ~= "" and location or nil
    ngx.header["Content-Length"] = #body
    ngx.header["Idempotent-Replayed"] = "true"
    ngx.print(body)
end

local function run(name, fingerprint)
    local response = ngx.location.capture("/app", {
        method = ngx.HTTP_POST, args = ngx.var.args, always_forward_body = true
    })
    local header = response.header
    if response.status >= 500 or response.truncated then
        redis("DEL", name)
    else
        local kept, why = redis("SET", name, fingerprint .. " " ..
            response.status .. "\n" .. (header["Content-Type"] or "") .. "\n" ..
            (header["Location"] or "") .. "\n" .. response.body,
            "XX", "EX", TTL)
        if not kept then
            ngx.log(ngx.ERR, "not stored: ", why)
            return refuse(503, "the response could not be stored")
        end
    end
    ngx.status = response.status
    ngx.header["Content-Type"] = header["Content-Type"]
    ngx.header["Location"] = header["Location"]
    ngx.header["Content-Length"] = #response.body
    ngx.print(response.body)
end

function idempotency.serve()
    local key, tenant = ngx.var.http_idempotency_key, ngx.var.http_x_api_key
    if not key or not tenant then
        return refuse(400, "Idempotency-Key or X-Api-Key is missing")
    end
    ngx.req.read_body()
    local fingerprint = ngx.encode_base64(ngx.sha1_bin(
        ngx.var.request_method .. ngx.var.uri .. "\n" ..
        (ngx.req.get_body_data() or "")))
    local name = tenant .. ":POST " .. ngx.var.uri .. ":" .. key
    local stored, why = redis("SET", name, fingerprint, "NX", "GET", "EX", TTL)
    if stored == false then
        ngx.log(ngx.ERR, "no claim: ", why)
        return refuse(503, "the store cannot be reached")
    elseif stored then
        return replay(stored, fingerprint)
    end
    return run(name, fingerprint)
end

return idempotency
