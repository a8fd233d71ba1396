-- The group law (laws 2 and 3), a mirror of kernels/group_law.py, and the reply.
--
-- ARGV: mode, now ('' is the server's own clock), then one string for each group. It has a record of eleven doubles for
-- each limit: the index of its key among the group's keys, algorithm, count, period, burst, cost, patience and the four
-- numbers of its extra (-1 if absent). A single string is a group to spend, by the server's clock. KEYS are those of all
-- groups in turn; while a secret is being changed (the mode ends with '+old') each is followed by its old name.
-- The record of a quota is followed by another one, whose first number is 0: then 1 if it is metered, 1 if it has periods
-- of the calendar, and of these the ordinal of the first of three windows, their beginnings, the end of the last, and the
-- end of the window after that.
-- Of the extra of a penalty only the first number is sent, then the places of the first and the last limit of its ask among
-- the limits of the group. Its record is followed by another one: 0, the time after which it forgets, and the lengths of its
-- blocks, eight at most, then zeros.
-- Reply for one group: a row of eight numbers, nine if a place between others was taken or a quota was peeked, or a list
-- of rows if it has several limits. If now is outside of the windows of a quota, the reply is a list of now alone, and
-- nothing has changed. Reply for several groups: for each a list of its rows, now alone, or the text of its error.
-- In mode 'holders' KEYS are the names of one state, and the reply is id and expiry of each slot that is held.

local names = 1
if string.sub(mode, -4) == '+old' then mode, names = string.sub(mode, 1, -5), 2 end

local MAX_SPAN = 3153600000000000 -- as in limit.py
local MAX_ROUNDS = 8
local NO_STRIKE = -4 -- as in limit.py

local function maker_of(algorithm)
  if algorithm == TOKEN_BUCKET or algorithm == GCRA or algorithm == LEAKY_BUCKET then return make_gcra end
  if algorithm == FIXED_WINDOW then return make_fixed_window end
  if algorithm == SLIDING_LOG then return make_sliding_log end
  if algorithm == SLIDING_COUNTER then return make_sliding_counter end
  if algorithm == QUOTA then return make_quota end
  if algorithm == CONCURRENT then return make_concurrency end
  if algorithm == DISTINCT then return make_distinct end
  if algorithm == PENALTY then return make_penalty end
  error('unknown algorithm ' .. algorithm)
end

local made = {}
local function kernel_of(algorithm)
  local make = maker_of(algorithm)
  local kernel = made[make]
  if not kernel then
    kernel = make()
    made[make] = kernel
  end
  return kernel
end

-- Set the window of a quota at now: its ordinal, its end, and the end of the next. Return false if now is outside of all.
local function set_window(ask, text, from)
  local _, metered, is_calendar, index = unpack('<dddd', text, from)
  ask.metered = metered == 1
  if is_calendar == 0 then
    local begin = now - now % ask.period_us
    ask.index, ask.finish, ask.after = begin / ask.period_us, begin + ask.period_us, begin + 2 * ask.period_us
    return true
  end
  for at = from + 32, from + 48, 8 do
    local begin, finish, after = unpack('<ddd', text, at)
    if now >= begin and now < finish then
      ask.index, ask.finish, ask.after = index + (at - from - 32) / 8, finish, after
      return true
    end
  end
  return false
end

local function set_blocks(ask, text, from)
  ask.forget_us, ask.blocks_us = unpack('<d', text, from + 8), {}
  for at = from + 16, from + 72, 8 do
    local length = unpack('<d', text, at)
    if length == 0 then break end
    ask.blocks_us[#ask.blocks_us + 1] = length
  end
end

-- Return the asks of a group; nil if now is outside of the windows of a quota.
local function read(text)
  local asks, n = {}, 0
  for from = 1, #text, RECORD do
    local place, algorithm, count, period_us, burst, cost, patience = unpack('<ddddddd', text, from)
    if place == 0 then
      if asks[n].strikes then
        set_blocks(asks[n], text, from)
      elseif not set_window(asks[n], text, from) then
        return nil
      end
    else
      n = n + 1
      asks[n] = {
        place = place, kernel = kernel_of(algorithm), count = count, period_us = period_us, burst = burst,
        queues = algorithm == LEAKY_BUCKET, cost = cost, patience = patience,
      }
      if algorithm == CONCURRENT or algorithm == DISTINCT then
        asks[n].id, asks[n].is_slot = unpack('<d', text, from + 56), algorithm == CONCURRENT
      elseif algorithm == PENALTY then
        local extra, first_of_ask, last_of_ask = unpack('<ddd', text, from + 56)
        asks[n].strikes = {may = extra ~= NO_STRIKE and patience == NEVER, first = first_of_ask, last = last_of_ask}
        asks.penalties = asks.penalties or {}
        asks.penalties[#asks.penalties + 1] = n
      end
    end
  end
  return asks
end

local function store(ask, place, state)
  for name = 1, names do
    local key = KEYS[(place - 1) * names + name]
    if state then
      local ttl = max(ceil((state[1] + ask.kernel.expires_after - now) / 1000), 1)
      ask.kernel.save(key, state, injected and FOR_EVER or ttl)
    else
      call('DEL', key)
    end
  end
end

-- While a secret is being changed, a state is written under both names. A process that knows only one of them may have
-- spent since, so the two can differ: the one with less remaining has seen more spends. A kernel with `load_both` joins
-- them in its own way.
local function loaded(ask, place)
  if names == 2 and ask.kernel.load_both then return ask.kernel.load_both(KEYS[2 * place - 1], KEYS[2 * place]) end
  local state = ask.kernel.load(KEYS[(place - 1) * names + 1])
  if names == 1 then return state end
  local other = ask.kernel.load(KEYS[place * names])
  if state and other then
    if ask.kernel.same and ask.kernel.same(state, other) then return state end
    local left, reset_after = ask.kernel.standing(ask, state, now)
    local other_left, other_reset_after = ask.kernel.standing(ask, other, now)
    if other_left < left or other_left == left and other_reset_after > reset_after then state = other end
  end
  state = state or other
  if state and ask.kernel.whole then return ask.kernel.whole(state) end
  return state
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

-- Return the row of a slot. Slots are taken one after the other, in `taken`, which is never stored.
local function peek_slot(ask, state, taken)
  local after, row = ask.kernel.spend(ask, taken[ask.place] or state, now)
  taken[ask.place] = after
  if row[1] == 0 then return row end
  local remaining, reset_after = ask.kernel.standing(ask, state, now)
  return {1, remaining, 0, reset_after, 0, 0, 0}
end

local function peek(asks, states)
  local asked, taken, rows = {}, {}, {}
  for i, ask in ipairs(asks) do
    local place = ask.place
    if ask.id and ask.id ~= NEVER then
      rows[i] = peek_slot(ask, states[place], taken)
    else
      local front = asked[place] or 0
      asked[place] = front + ask.cost
      if states[place] then states[place] = ask.kernel.repair(ask, states[place], now) end
      local remaining, reset_after = ask.kernel.standing(ask, states[place], now)
      if ask.patience == NEVER then
        local _, row = ask.kernel.spend(ask, states[place], now, asked[place], NEVER, 0)
        rows[i] = row[1] == 1 and {1, remaining, 0, reset_after, row[5], 0, 0} or row
        if ask.kernel.peeked then rows[i] = ask.kernel.peeked(ask, states[place], now, rows[i]) end
      else
        local wait = NEVER
        if muldiv(front, ask.period_us, ask.count) <= MAX_SPAN then
          wait = ask.kernel.turn_after(ask, states[place], now, front, ask.cost)
        end
        if wait == NEVER then
          rows[i] = {0, remaining, NEVER, reset_after, 0, 0, 0}
        elseif wait <= ask.patience then
          rows[i] = {1, remaining, 0, reset_after, wait, 0, 0}
        else
          rows[i] = {0, remaining, wait - ask.patience, reset_after, 0, 0, 0}
        end
      end
    end
  end
  return rows
end

local function force(asks, states, text)
  local rows, n = {}, 0
  for from = 1, #text, RECORD do
    local place = unpack('<d', text, from)
    if place > 0 then
      n = n + 1
      local at, till, part, given = unpack('<dddd', text, from + 56)
      local spent = {at = at, till = till, part = part, given = given}
      states[place], rows[n] = asks[n].kernel.force(asks[n], states[place], now, asks[n].cost, spent)
    end
  end
  return rows
end

local function without_holes(asks, states, places)
  local ends = copied(states, places)
  for _, ask in ipairs(asks) do
    local state = ends[ask.place]
    if state and ask.kernel.without_holes then ends[ask.place] = ask.kernel.without_holes(state) end
  end
  return ends
end

-- Return true if a limit of this penalty's ask denies, and the denial counts.
local function is_guilty(asks, answers, penalty)
  for i = penalty.strikes.first, penalty.strikes.last do
    local row = answers[i]
    if not asks[i].strikes and row[1] == 0 and row[3] ~= NEVER and not asks[i].is_slot then return true end
  end
  return false
end

-- Count a strike in each penalty whose ask has a denial that counts. Return the rows after it; nil if nothing is struck.
local function strike(asks, states, answers)
  for _, i in ipairs(asks.penalties) do
    if answers[i][1] == 0 then return nil end
  end
  local given = {}
  for _, i in ipairs(asks.penalties) do
    local ask = asks[i]
    if ask.strikes.may and not given[ask.place] and is_guilty(asks, answers, ask) then
      states[ask.place], given[ask.place] = ask.kernel.strike(ask, states[ask.place], now)
    end
  end
  if not next(given) then return nil end
  local struck = copied(answers, #answers)
  for _, i in ipairs(asks.penalties) do
    local place = asks[i].place
    if given[place] then struck[i] = asks[i].kernel.answer(asks[i], states[place], now, given[place]) end
  end
  return struck
end

-- Decide the asks of a group. Changes `states` to what must be stored. If a denial is a strike, return the rows without it,
-- too: they are the answer where the strike cannot be stored.
local function evaluate(asks, states, places, text)
  if mode == 'force' then return force(asks, states, text) end
  if mode == 'peek' then return peek(asks, states) end
  local lead, rounds, searched = 0, 0, states
  local rows, allowed, after
  while true do
    after = copied(searched, places)
    rows, allowed = spend(asks, after, lead)
    if not allowed then
      local answers = peek(asks, states)
      if answers[#rows][1] == 1 then answers[#rows] = rows[#rows] end
      local struck = asks.penalties and strike(asks, states, answers)
      if struck then return struck, answers end
      return answers
    end
    local longest = 0
    for _, row in ipairs(rows) do longest = max(longest, row[5]) end
    if longest <= lead or #rows == 1 or lead > 0 and places < #asks then break end
    lead = longest
    rounds = rounds + 1
    if rounds == MAX_ROUNDS then searched = without_holes(asks, states, places) end
  end
  if searched ~= states then
    after = copied(states, places)
    rows = spend(asks, after, lead)
  end
  for place = 1, places do states[place] = after[place] end
  return rows
end

-- Load all states before any write, so that a group that cannot be read leaves nothing behind.
local function load(asks, offset)
  local before, places = {}, 0
  for _, ask in ipairs(asks) do
    if ask.place > places then
      places = ask.place
      before[places] = loaded(ask, offset + places)
    end
  end
  return before, places
end

local function store_changed(asks, before, after, offset)
  local stored = {}
  for _, ask in ipairs(asks) do
    local place = ask.place
    if after[place] ~= before[place] and not stored[place] then
      stored[place] = true
      store(ask, offset + place, after[place])
    end
  end
end

local function text_of(problem)
  return type(problem) == 'table' and (problem.err or 'unknown error') or tostring(problem)
end

-- Return true for the error of a server that refuses all writes for now: it is full, has too few replicas, or cannot save.
local function is_refusal(problem)
  local text = text_of(problem)
  for _, word in ipairs({'OOM', 'NOREPLICAS', 'MISCONF'}) do
    if string.find(text, word, 1, true) then return true end
  end
  return false
end

-- Decide a group, store the changed states and return its rows. Return nil if now is outside of the windows of a quota.
local function decide(text, offset)
  local asks = read(text)
  if not asks then return nil end
  local before, places = load(asks, offset)
  local after = copied(before, places)
  local rows, unstruck = evaluate(asks, after, places, text)
  if not unstruck then
    store_changed(asks, before, after, offset)
    return rows
  end
  local fine, problem = pcall(store_changed, asks, before, after, offset)
  if fine then return rows end
  -- A denial stays one where the strike cannot be written. Other errors are for the client to see.
  if is_refusal(problem) then return unstruck end
  error(problem, 0)
end

local function told(rows)
  if not rows then return {now} end
  for r, row in ipairs(rows) do
    rows[r] = {now, row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8]}
  end
  return rows
end

if mode == 'holders' then
  local found = {}
  for _, key in ipairs(KEYS) do
    for _, number in ipairs(kernel_of(CONCURRENT).holders(key)) do found[#found + 1] = number end
  end
  return found
end

if #ARGV == first then
  local rows = decide(ARGV[first], 0)
  local reply = told(rows)
  return rows and not rows[2] and reply[1] or reply
end

local answers, offset = {}, 0
for g = first, #ARGV do
  local fine, rows = pcall(decide, ARGV[g], offset)
  if fine then
    answers[g - first + 1] = told(rows)
  else
    local text = text_of(rows)
    -- The client must see this error itself, so that it looks for the new master.
    if string.find(text, 'READONLY', 1, true) then return {err = text} end
    answers[g - first + 1] = text
  end
  local most = 0
  for from = 1, #ARGV[g], RECORD do most = max(most, (unpack('<d', ARGV[g], from))) end
  offset = offset + most
end
return answers
