-- Mirror of kernels/gcra.py: same names, same order of operations, hence the same numbers.
-- State is {tat, part, last, since, given}, or {…, turn, start, part, finish, part, …} if it has holes, kept as a string
-- of doubles. An instant is whole microseconds and a part in 1/count: a and a_part.
local function make_gcra()

local MAX_HOLES = 32

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value ~= 40 and (#value < 48 or #value % 32 ~= 16) then error('FOREIGN') end
  local state = {}
  for i = 1, #value / 8 do state[i] = unpack('<d', value, 8 * i - 7) end
  return state
end

local function save(key, state, ttl)
  call('SET', key, pack('<' .. string.rep('d', #state), table_unpack(state)), 'PX', ttl)
end

local function less(a, a_part, b, b_part) return a < b or a == b and a_part < b_part end

local function plus(limit, a, a_part, b, b_part)
  a, a_part = a + b, a_part + b_part
  if a_part >= limit.count then return a + 1, a_part - limit.count end
  return a, a_part
end

local function minus(limit, a, a_part, b, b_part)
  a, a_part = a - b, a_part - b_part
  if a_part < 0 then return a - 1, a_part + limit.count end
  return a, a_part
end

local function remaining(limit, ahead, part)
  local q, r = muldiv(limit.count, ahead, limit.period)
  local left = limit.burst - q - ceil((r + part - limit.count + 1) / limit.period)
  return min(max(left, 0), limit.burst)
end

local function repair(limit, state, now)
  local tat, part, last, since = state[1], state[2], state[3], state[4]
  if now >= last and part < limit.count and not state[6] then return state end
  if part >= limit.count then tat, part = tat + 1, 0 end
  local back = max(last - now, 0)
  if back > 0 then tat, last, since = tat - back, now, max(since, last + 1) end
  local mended = {tat, part, last, since, state[5]}
  if state[6] then mended[6] = state[6] - back end
  for i = 7, #state, 4 do
    local start, start_part, finish, finish_part = state[i], state[i + 1], state[i + 2], state[i + 3]
    if start_part >= limit.count then start, start_part = start + 1, 0 end
    if finish_part >= limit.count then finish_part = 0 end
    if less(start, start_part, finish, finish_part) then
      local n = #mended
      mended[n + 1], mended[n + 2], mended[n + 3], mended[n + 4] = start - back, start_part, finish - back, finish_part
    end
  end
  local same = #mended == #state
  for i = 1, #mended do same = same and mended[i] == state[i] end
  return same and state or mended
end

-- A state with its instants from now on: where the line of places ends, and the holes.
local function line_of(state, now)
  local line = {now = now, finish = 0, part = 0, since = now, given = 0, turn = 0, holes = {}}
  if not state then return line end
  line.since = state[4]
  if state[1] < now then
    line.since = max(line.since, now)
  else
    line.finish, line.part, line.given = state[1] - now, state[2], state[5]
  end
  if not state[6] then return line end
  line.turn = state[6]
  for i = 7, #state, 4 do
    local finish, finish_part = state[i + 2] - now, state[i + 3]
    if less(0, 0, finish, finish_part) then
      local start, start_part = state[i] - now, state[i + 1]
      if start < 0 then start, start_part = 0, 0 end
      line.holes[#line.holes + 1] = {start, start_part, finish, finish_part}
    end
  end
  return line
end

local function first_fit(limit, line, size, size_part, begin, front, front_part)
  for i, hole in ipairs(line.holes) do
    local start, start_part = plus(limit, hole[1], hole[2], front, front_part)
    if less(hole[3], hole[4], start, start_part) then
      front, front_part = minus(limit, start, start_part, hole[3], hole[4])
    else
      front, front_part = 0, 0
    end
    if less(start, start_part, begin, 0) then start, start_part = begin, 0 end
    local finish, finish_part = plus(limit, start, start_part, size, size_part)
    if front == 0 and front_part == 0 and not less(hole[3], hole[4], finish, finish_part) then
      return start, start_part, i
    end
  end
  local start, start_part = plus(limit, line.finish, line.part, front, front_part)
  if less(start, start_part, begin, 0) then return begin, 0, nil end
  return start, start_part, nil
end

-- How much too early a request whose place begins there would be now.
local function early_by(limit, cost, place, part)
  local room, room_part = muldiv(limit.burst - cost, limit.period, limit.count)
  return part < room_part and place - room - 1 or place - room
end

local function take(limit, line, size, size_part, place, part, i)
  local finish, finish_part = plus(limit, place, part, size, size_part)
  local hole = i and line.holes[i] or {line.finish, line.part, finish, finish_part}
  local holes = {}
  for n = 1, #line.holes + 1 do
    if n == (i or #line.holes + 1) then
      if less(hole[1], hole[2], place, part) then holes[#holes + 1] = {hole[1], hole[2], place, part} end
      if less(finish, finish_part, hole[3], hole[4]) then holes[#holes + 1] = {finish, finish_part, hole[3], hole[4]} end
    else
      holes[#holes + 1] = line.holes[n]
    end
  end
  line.holes = holes
  if not i then line.finish, line.part = finish, finish_part end
end

local function free(line, start, start_part, finish, finish_part)
  local holes, at = {}, 1
  for _, hole in ipairs(line.holes) do
    if less(hole[3], hole[4], start, start_part) then
      holes[#holes + 1] = hole
      at = #holes + 1
    elseif less(finish, finish_part, hole[1], hole[2]) then
      holes[#holes + 1] = hole
    else
      if less(hole[1], hole[2], start, start_part) then start, start_part = hole[1], hole[2] end
      if less(finish, finish_part, hole[3], hole[4]) then finish, finish_part = hole[3], hole[4] end
    end
  end
  table.insert(holes, at, {start, start_part, finish, finish_part})
  line.holes = holes
end

local function state_of(line)
  local holes, now = line.holes, line.now
  while #holes > 0 and not less(holes[#holes][3], holes[#holes][4], line.finish, line.part) do
    local hole = table.remove(holes)
    if less(hole[1], hole[2], line.finish, line.part) then line.finish, line.part = hole[1], hole[2] end
  end
  while #holes > MAX_HOLES do table.remove(holes) end
  local state = {now + line.finish, line.part, now, line.since, line.given}
  if #holes == 0 and line.turn <= now then return state end
  state[6] = line.turn
  for i, hole in ipairs(holes) do
    local n = 4 * i + 2
    state[n + 1], state[n + 2], state[n + 3], state[n + 4] = now + hole[1], hole[2], now + hole[3], hole[4]
  end
  return state
end

local function line_standing(limit, line)
  local left = remaining(limit, line.finish, line.part)
  for _, hole in ipairs(line.holes) do
    local size, part = minus(limit, hole[3], hole[4], hole[1], hole[2])
    local q, r = muldiv(limit.count, size, limit.period)
    left = left + min(remaining(limit, hole[1], hole[2]), q + floor((r + part) / limit.period))
  end
  return min(left, limit.burst), line.finish + (line.part > 0 and 1 or 0)
end

local function standing(limit, state, now)
  if not state or state[1] < now then return limit.burst, 0 end
  return line_standing(limit, line_of(state, now))
end

local function spend(limit, state, now, cost, patience, lead)
  if state then state = repair(limit, state, now) end
  local line = line_of(state, now)
  if cost > limit.burst then
    local left, reset_after = standing(limit, state, now)
    return state, {0, left, NEVER, reset_after, 0, 0, 0}
  end
  local size, size_part = muldiv(cost, limit.period, limit.count)
  local place, part, hole = first_fit(limit, line, size, size_part, lead, 0, 0)
  local early = early_by(limit, cost, place, part)
  local delay = limit.queues and place or max(early, 0)
  if patience ~= NEVER then early = delay - patience end
  if early > 0 then
    local left, reset_after = standing(limit, state, now)
    return state, {0, left, early, reset_after, 0, 0, 0}
  end
  local between = state and state[6] or lead > 0 and less(line.finish, line.part, lead, 0)
  take(limit, line, size, size_part, place, part, hole)
  if between and lead > 0 then line.turn = max(line.turn, now + lead) end
  local after = state_of(line)
  local left, reset_after = line_standing(limit, line)
  local ahead, ahead_part = plus(limit, place, part, size, size_part)
  return after, {1, left, 0, reset_after, delay, line.given, ahead_part, between and ahead or nil}
end

local function turn_after(limit, state, now, front, cost)
  if cost > limit.burst then return NEVER end
  local size, size_part = muldiv(cost, limit.period, limit.count)
  local front_size, front_part = muldiv(front, limit.period, limit.count)
  local place, part = first_fit(limit, line_of(state, now), size, size_part, 0, front_size, front_part)
  return limit.queues and place or max(early_by(limit, cost, place, part), 0)
end

local function move_back(limit, line, span, span_part)
  local before = line.finish
  line.finish, line.part = minus(limit, line.finish, line.part, span, span_part)
  if line.finish < 0 then line.finish, line.part = 0, 0 end
  line.given = line.given + before - line.finish
end

local function refund(limit, line, span, span_part, spent)
  local now = line.now
  local finish, part = spent.till - now, spent.part
  local known = spent.given == line.given
  local most = muldiv(limit.queues and 1 or limit.burst, limit.period, limit.count)
  if known and finish == line.finish and part == line.part then
    line.finish, line.part = minus(limit, finish, part, span, span_part)
    if line.finish < 0 then line.finish, line.part = 0, 0 end
  elseif #line.holes > 0 or line.turn > now or line.finish > most then
    if known and less(0, 0, finish, part) and less(finish, part, line.finish, line.part) then
      local start, start_part = minus(limit, finish, part, span, span_part)
      if start < 0 then start, start_part = 0, 0 end
      free(line, start, start_part, finish, part)
    end
  elseif now == spent.at then
    move_back(limit, line, span, span_part)
  else
    local owed = max(spent.till + (part > 0 and 1 or 0) + spent.given - line.given - 1 - now, 0)
    if owed <= span then span, span_part = owed, 0 end
    move_back(limit, line, span, span_part)
  end
end

local function force(limit, state, now, cost, spent)
  if state then state = repair(limit, state, now) end
  if cost <= 0 and (not state or state[1] < now) then return state, {1, limit.burst, 0, 0, 0, 0, 0} end
  local line = line_of(state, now)
  local span, span_part = muldiv(abs(cost), limit.period, limit.count)
  if cost > 0 then
    local most, most_part = muldiv(limit.burst, limit.period, limit.count) + limit.period, 0
    if less(most, 0, line.finish, line.part) then most, most_part = line.finish, line.part end
    line.finish, line.part = plus(limit, line.finish, line.part, span, span_part)
    if less(most, most_part, line.finish, line.part) then line.finish, line.part = most, most_part end
  elseif spent.at == NEVER then
    move_back(limit, line, span, span_part)
  elseif cost < 0 and spent.at >= line.since then
    refund(limit, line, span, span_part, spent)
  end
  local after = state_of(line)
  local left, reset_after = line_standing(limit, line)
  return after, {1, left, 0, reset_after, 0, line.given, 0}
end

return {
  load = load, save = save, expires_after = 1, repair = repair, standing = standing, spend = spend, force = force,
  turn_after = turn_after,
}
end
