-- Ask Ratebound about a request: http-request lua.ratebound URL open|closed
-- A denial of the service is sent to the client as it is: status, headers and body.

local TIMEOUT = 500 -- milliseconds for one check
local TOKEN = nil -- the token of the service, if it wants one
-- The most header lines of a client. With ours they must stay below tune.http.maxhdr (101): the HTTP client of HAProxy 2.6
-- does not check that, and the whole process ends. Lower both together.
local MOST_LINES = 90

-- The headers of a client that must not reach the service: it would take them for ours. The last ones are about the
-- body, which is not sent.
local DROPPED = {}
for _, name in ipairs({
    "x-forwarded-uri", "x-forwarded-method", "x-forwarded-host", "x-forwarded-proto", "x-original-uri",
    "x-original-method", "x-real-ip", "x-ratebound-token", "host", "connection", "upgrade", "expect", "te",
    "content-length", "transfer-encoding",
}) do
    DROPPED[name] = true
end

-- The headers of a denial that are about the connection to the service.
local OWN = { ["connection"] = true, ["content-length"] = true, ["transfer-encoding"] = true, ["date"] = true }

-- Return the headers of the check; nil if the client sent too many.
local function described(txn)
    local headers, addresses, count = {}, {}, 0
    for name, values in pairs(txn.http:req_get_headers()) do
        if not DROPPED[name] then
            local lines = {}
            for place = 0, #values do
                lines[#lines + 1] = values[place]
            end
            count = count + #lines
            if name == "x-forwarded-for" then
                addresses = lines
            else
                headers[name] = lines
            end
        end
    end
    if count > MOST_LINES then
        return nil
    end
    addresses[#addresses + 1] = tostring(txn.sf:src())
    headers["x-forwarded-for"] = { table.concat(addresses, ", ") }
    headers["x-forwarded-method"] = { txn.sf:method() }
    local uri = txn.sf:pathq()
    headers["x-forwarded-uri"] = { uri ~= "" and uri or "*" } -- OPTIONS * has no path
    headers["x-forwarded-host"] = { txn.sf:req_fhdr("host") }
    headers["x-forwarded-proto"] = { txn.sf:ssl_fc() == "1" and "https" or "http" }
    if TOKEN then
        headers["x-ratebound-token"] = { TOKEN }
    end
    return headers
end

local function header(response, name)
    local lines = response.headers and response.headers[name]
    return lines and (lines[0] or lines[1])
end

local function deny(txn, response)
    local reply = txn:reply({ status = response.status, reason = response.reason or "" })
    for name, lines in pairs(response.headers or {}) do
        if not OWN[name] then
            for _, line in pairs(lines) do
                reply:add_header(name, line)
            end
        end
    end
    reply:set_body(response.body or "")
    txn:done(reply)
end

-- A status of 500 or more that is not a decision comes from the client of HAProxy, or from a service that cannot decide.
local function is_away(response)
    return not response or response.status < 200
        or (response.status >= 500 and not header(response, "x-ratelimit-decision"))
end

core.register_action("ratebound", { "http-req" }, function(txn, url, choice)
    local headers = described(txn)
    if not headers then
        deny(txn, { status = 431, reason = "Request Header Fields Too Large" })
        return
    end
    local response = core.httpclient():get({ url = url, headers = headers, timeout = TIMEOUT })
    if is_away(response) then
        if choice ~= "open" then
            deny(txn, { status = 503, reason = "Service Unavailable", headers = { ["retry-after"] = { "1" } } })
        end
    elseif response.status ~= 200 then
        deny(txn, response)
    else
        local limits, policy = header(response, "ratelimit"), header(response, "ratelimit-policy")
        if limits and policy then -- a request without limits has none
            txn:set_var("txn.ratelimit", limits)
            txn:set_var("txn.ratelimit_policy", policy)
        end
    end
end, 2)
