-- The group law (laws 2 and 3), a mirror of kernels.evaluate; in front of it the clock, behind it the answer.
--
-- ARGV: mode, now ('' is the server's own clock), then one string for each group: a record of ten doubles for each
-- limit that is asked: place of its key among the group's, algorithm, count, period, burst, cost, patience and the three
-- numbers of `spent` (-1 where not given). KEYS are those of all groups in turn; while a secret is being changed each
-- is followed by its name under the old one, and a state that is still there is moved first.
-- Answer: now, then for each group either a list of seven numbers for each limit, or a text: why it has none.

local MAKE = {
  [0] = make_gcra, [1] = make_gcra, [2] = make_gcra,
  [3] = make_fixed_window, [4] = make_sliding_log, [5] = make_sliding_counter,
}
local made = {}
local function kernel_of(algorithm)
  local make = MAKE[algorithm]
  local kernel = made[make]
  if not kernel then
    kernel = make()
    made[make] = kernel
  end
  return kernel
end
local RECORD = 80
local FOR_EVER = 86400000 -- with a clock of the caller's own, real time must not expire what its time keeps

local mode, now = ARGV[1], tonumber(ARGV[2])
local injected = now ~= nil
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local names = 1
if string.sub(mode, -4) == '+old' then mode, names = string.sub(mode, 1, -5), 2 end

local function key_of(place)
  local key = KEYS[(place - 1) * names + 1]
  if names == 2 then
    local old = KEYS[place * names]
    if call('EXISTS', key) == 0 and call('EXISTS', old) == 1 then call('RENAME', old, key) end
  end
  return key
end

local function read(text)
  local asks = {}
  for from = 1, #text, RECORD do
    local place, algorithm, count, period, burst, cost, patience, at, till, hole = unpack('<dddddddddd', text, from)
    asks[#asks + 1] = {
      place = place, kernel = kernel_of(algorithm), count = count, period = period, burst = burst,
      queues = algorithm == 2, cost = cost, patience = patience, spent = {at = at, till = till, hole = hole},
    }
  end
  return asks
end

local function copied(states, places)
  local copy = {}
  for place = 1, places do copy[place] = states[place] end
  return copy
end

local function spend(asks, states, lead)
  local rows = {}
  for i, ask in ipairs(asks) do
    local later = ask.patience ~= NEVER and lead or 0
    local state, row = ask.kernel.spend(ask, states[ask.place], now, ask.cost, ask.patience, later)
    states[ask.place], rows[i] = state, row
    if row[1] == 0 then break end
  end
  return rows, rows[#rows][1] == 1
end

local function peek(asks, states)
  local asked, rows = {}, {}
  for i, ask in ipairs(asks) do
    local place = ask.place
    asked[place] = (asked[place] or 0) + ask.cost
    if states[place] then states[place] = ask.kernel.repair(ask, states[place], now) end
    local _, row = ask.kernel.spend(ask, states[place], now, asked[place], ask.patience, 0)
    if row[1] == 1 then
      local remaining, reset_after = ask.kernel.standing(ask, states[place], now)
      row = {1, remaining, 0, reset_after, row[5], 0, 0}
    end
    rows[i] = row
  end
  return rows
end

local function force(asks, states)
  local rows = {}
  for i, ask in ipairs(asks) do
    states[ask.place], rows[i] = ask.kernel.force(ask, states[ask.place], now, ask.cost, ask.spent)
  end
  return rows
end

-- `states` becomes what to store.
local function evaluate(asks, states, places)
  if mode == 'force' then return force(asks, states) end
  if mode == 'peek' then return peek(asks, states) end
  local after = copied(states, places)
  local rows, allowed = spend(asks, after, 0)
  if not allowed then
    local answers = peek(asks, states)
    if answers[#rows][1] == 1 then answers[#rows] = rows[#rows] end
    return answers
  end
  local lead = 0
  for _, row in ipairs(rows) do lead = max(lead, row[5]) end
  if lead > 0 and #rows > 1 then
    local later = copied(states, places)
    local again, fits = spend(asks, later, lead)
    if fits then after, rows = later, again end
  end
  for place = 1, places do states[place] = after[place] end
  return rows
end

-- All reads come before any write, so that a group that cannot be read leaves nothing behind.
local function load(asks, offset)
  local before, places = {}, 0
  for _, ask in ipairs(asks) do
    if ask.place > places then
      places = ask.place
      before[places] = ask.kernel.load(key_of(offset + places))
    end
  end
  return before, places
end

local function store(ask, key, state)
  if state then
    local ttl = max(ceil((ask.kernel.expires(state) - now) / 1000), 1)
    ask.kernel.save(key, state, injected and FOR_EVER or ttl)
  else
    call('DEL', key)
  end
end

-- Each ask on a state of its own, none denied or delayed: what nearly every call is, and what `evaluate` would do with it
-- in more steps. Returns nothing, with nothing written, when it is not so.
local function straight(asks, offset)
  local rows, states = {}, {}
  for i = 1, #asks do
    local ask = asks[i]
    if ask.place ~= i then return nil end
    local before = ask.kernel.load(key_of(offset + i))
    local state, row = ask.kernel.spend(ask, before, now, ask.cost, ask.patience, 0)
    if row[1] == 0 or row[5] > 0 then return nil end
    states[i], rows[i] = state, row
  end
  for i = 1, #asks do store(asks[i], KEYS[(offset + i - 1) * names + 1], states[i]) end
  return rows
end

local function decide(asks, offset)
  local rows = mode == 'spend' and straight(asks, offset)
  if rows then return rows end
  local before, places = load(asks, offset)
  local after = copied(before, places)
  rows = evaluate(asks, after, places)
  local stored = {}
  for _, ask in ipairs(asks) do
    local place = ask.place
    if after[place] ~= before[place] and not stored[place] then
      stored[place] = true
      store(ask, KEYS[(offset + place - 1) * names + 1], after[place])
    end
  end
  return rows
end

local answer, offset = {now}, 0
for g = 3, #ARGV do
  local asks = read(ARGV[g])
  local fine, rows = pcall(decide, asks, offset)
  if fine then
    if #rows == 1 then
      answer[#answer + 1] = rows[1]
    else
      local flat, n = {}, 0
      for r = 1, #rows do
        local row = rows[r]
        for i = 1, 7 do flat[n + i] = row[i] end
        n = n + 7
      end
      answer[#answer + 1] = flat
    end
  else
    local text = type(rows) == 'table' and (rows.err or 'unknown error') or tostring(rows)
    -- Of a replica the client itself has to know, so that it looks for the master.
    if string.find(text, 'READONLY', 1, true) then return {err = text} end
    answer[#answer + 1] = text
  end
  local most = 0
  for _, ask in ipairs(asks) do most = max(most, ask.place) end
  offset = offset + most
end
return answer
