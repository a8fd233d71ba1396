-- Mirror of kernels/gcra.py: same names, same order of operations, hence the same numbers.
-- State is {tat, part, last, since, given}, or {…, turn, number of holes, start, part, finish, part, …} with holes and then
-- debts, kept as a string of doubles; older versions kept holes only, without their number. An instant is whole
-- microseconds and a part in 1/count: a and a_part.
local function make_gcra()

local MAX_HOLES = 32
local MAX_DEBT = 3468960000000000 -- MAX_SPAN + MAX_PERIOD of limit.py

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  local older = #value >= 48 and #value % 32 == 16
  if #value ~= 40 and not older and (#value < 56 or #value % 32 ~= 24) then error('FOREIGN') end
  local state = {}
  for i = 1, #value / 8 do state[i] = unpack('<d', value, 8 * i - 7) end
  if older then table.insert(state, 7, (#state - 6) / 4) end
  if state[7] and state[7] > (#state - 7) / 4 then error('FOREIGN') end
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
  local q, r = muldiv(limit.count, ahead, limit.period_us)
  local left = limit.burst - q - ceil((r + part - limit.count + 1) / limit.period_us)
  return min(max(left, 0), limit.burst)
end

local function repair(limit, state, now)
  local tat, part, last, since = state[1], state[2], state[3], state[4]
  if now >= last and part < limit.count and not state[6] then return state end
  if part >= limit.count then tat, part = tat + 1, 0 end
  local back = max(last - now, 0)
  if back > 0 then tat, last, since = tat - back, now, max(since, last + 1) end
  local mended = {tat, part, last, since, state[5]}
  if state[6] then mended[6], mended[7] = state[6] - back, state[7] end
  for i = 8, #state, 4 do
    local start, start_part, finish, finish_part = state[i], state[i + 1], state[i + 2], state[i + 3]
    if start_part >= limit.count then start, start_part = start + 1, 0 end
    if finish_part >= limit.count then finish_part = 0 end
    if less(start, start_part, finish, finish_part) then
      local n = #mended
      mended[n + 1], mended[n + 2], mended[n + 3], mended[n + 4] = start - back, start_part, finish - back, finish_part
    elseif i < 8 + 4 * state[7] then
      mended[7] = mended[7] - 1
    end
  end
  local same = #mended == #state
  for i = 1, #mended do same = same and mended[i] == state[i] end
  return same and state or mended
end

-- A state with its instants from now on: where the line of places ends, the holes and the debts.
local function line_of(limit, state, now)
  local line = {now = now, finish = 0, part = 0, since = now, given = 0, turn = 0, holes = {}, debts = {}}
  line.depth, line.depth_part = muldiv(limit.burst, limit.period_us, limit.count)
  if not state then return line end
  line.since = state[4]
  if state[1] < now then
    line.since = max(line.since, now)
  else
    line.finish, line.part, line.given = state[1] - now, state[2], state[5]
  end
  if not state[6] then return line end
  line.turn = state[6]
  for i = 8, #state, 4 do
    local found, begin, begin_part = line.holes, 0, 0
    if i >= 8 + 4 * state[7] then found, begin, begin_part = line.debts, line.depth, line.depth_part end
    local finish, finish_part = state[i + 2] - now, state[i + 3]
    if less(begin, begin_part, finish, finish_part) then
      local start, start_part = state[i] - now, state[i + 1]
      if less(start, start_part, begin, begin_part) then start, start_part = begin, begin_part end
      found[#found + 1] = {start, start_part, finish, finish_part}
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
  local room, room_part = muldiv(limit.burst - cost, limit.period_us, limit.count)
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

local function joined(stretches, start, start_part, finish, finish_part)
  local all, at = {}, 1
  for _, each in ipairs(stretches) do
    if less(each[3], each[4], start, start_part) then
      all[#all + 1] = each
      at = #all + 1
    elseif less(finish, finish_part, each[1], each[2]) then
      all[#all + 1] = each
    else
      if less(each[1], each[2], start, start_part) then start, start_part = each[1], each[2] end
      if less(finish, finish_part, each[3], each[4]) then finish, finish_part = each[3], each[4] end
    end
  end
  table.insert(all, at, {start, start_part, finish, finish_part})
  return all
end

local function last_turn(limit, line)
  if #line.debts > 0 then return line.turn end
  local most = muldiv(limit.queues and 1 or limit.burst, limit.period_us, limit.count)
  return max(line.turn, line.now + line.finish - most)
end

local function owe(line, start, start_part, finish, finish_part)
  if less(start, start_part, line.depth, line.depth_part) then start, start_part = line.depth, line.depth_part end
  if less(start, start_part, finish, finish_part) then
    line.debts = joined(line.debts, start, start_part, finish, finish_part)
  end
end

local function free(limit, line, start, start_part, finish, finish_part)
  while less(start, start_part, finish, finish_part) do
    local debt = line.debts[#line.debts]
    if not debt or less(debt[1], debt[2], finish, finish_part) then break end
    table.remove(line.debts)
    local size, size_part = minus(limit, finish, finish_part, start, start_part)
    local all, all_part = minus(limit, debt[3], debt[4], debt[1], debt[2])
    if less(all, all_part, size, size_part) then size, size_part = all, all_part end
    local cut, cut_part = minus(limit, debt[3], debt[4], size, size_part)
    if less(debt[1], debt[2], cut, cut_part) then line.debts[#line.debts + 1] = {debt[1], debt[2], cut, cut_part} end
    line.holes = joined(line.holes, cut, cut_part, debt[3], debt[4])
    local middle, middle_part = plus(limit, start, start_part, size, size_part)
    owe(line, start, start_part, middle, middle_part)
    start, start_part = middle, middle_part
  end
  if less(start, start_part, finish, finish_part) then
    line.holes = joined(line.holes, start, start_part, finish, finish_part)
  end
end

local function state_of(line)
  local holes, debts, now = line.holes, line.debts, line.now
  while #holes > 0 and not less(holes[#holes][3], holes[#holes][4], line.finish, line.part) do
    local hole = table.remove(holes)
    if less(hole[1], hole[2], line.finish, line.part) then line.finish, line.part = hole[1], hole[2] end
  end
  while #holes > MAX_HOLES do table.remove(holes) end
  while #debts > 0 and less(line.finish, line.part, debts[#debts][3], debts[#debts][4]) do
    local debt = table.remove(debts)
    if less(debt[1], debt[2], line.finish, line.part) then
      debts[#debts + 1] = {debt[1], debt[2], line.finish, line.part}
    end
  end
  if #debts > MAX_HOLES then
    while #debts > MAX_HOLES do table.remove(debts) end
    line.since = now + 1
  end
  line.turn = min(line.turn, now + line.finish)
  local state = {now + line.finish, line.part, now, line.since, line.given}
  if #holes == 0 and #debts == 0 and line.turn <= now then return state end
  state[6], state[7] = line.turn, #holes
  for _, stretches in ipairs({holes, debts}) do
    for _, each in ipairs(stretches) do
      local n = #state
      state[n + 1], state[n + 2], state[n + 3], state[n + 4] = now + each[1], each[2], now + each[3], each[4]
    end
  end
  return state
end

local function line_standing(limit, line)
  local left = remaining(limit, line.finish, line.part)
  for _, hole in ipairs(line.holes) do
    local size, part = minus(limit, hole[3], hole[4], hole[1], hole[2])
    local q, r = muldiv(limit.count, size, limit.period_us)
    left = left + min(remaining(limit, hole[1], hole[2]), q + floor((r + part) / limit.period_us))
  end
  return min(left, limit.burst), line.finish + (line.part > 0 and 1 or 0)
end

local function standing(limit, state, now)
  if not state or state[1] < now then return limit.burst, 0 end
  return line_standing(limit, line_of(limit, state, now))
end

local function spend(limit, state, now, cost, patience, lead)
  if state then state = repair(limit, state, now) end
  local line = line_of(limit, state, now)
  if cost > limit.burst then
    local left, reset_after = standing(limit, state, now)
    return state, {0, left, NEVER, reset_after, 0, 0, 0}
  end
  local size, size_part = muldiv(cost, limit.period_us, limit.count)
  local place, part, hole = first_fit(limit, line, size, size_part, lead, 0, 0)
  local early = early_by(limit, cost, place, part)
  local delay = limit.queues and place or max(early, 0)
  if patience ~= NEVER then early = delay - patience end
  if early > 0 then
    local left, reset_after = standing(limit, state, now)
    return state, {0, left, early, reset_after, 0, 0, 0}
  end
  local between = state and state[6] or lead > 0
  take(limit, line, size, size_part, place, part, hole)
  if lead > delay or #line.debts > 0 then line.turn = max(line.turn, now + lead, now + delay) end
  local after = state_of(line)
  local left, reset_after = line_standing(limit, line)
  local ahead, ahead_part = plus(limit, place, part, size, size_part)
  return after, {1, left, 0, reset_after, delay, line.given, ahead_part, between and ahead or nil}
end

local function turn_after(limit, state, now, front, cost)
  if cost > limit.burst then return NEVER end
  local size, size_part = muldiv(cost, limit.period_us, limit.count)
  local front_size, front_part = muldiv(front, limit.period_us, limit.count)
  local place, part = first_fit(limit, line_of(limit, state, now), size, size_part, 0, front_size, front_part)
  return limit.queues and place or max(early_by(limit, cost, place, part), 0)
end

local function move_back(limit, line, span, span_part)
  local before = line.finish
  line.finish, line.part = minus(limit, line.finish, line.part, span, span_part)
  if line.finish < 0 then line.finish, line.part = 0, 0 end
  line.given = line.given + before - line.finish
end

local function overdraw(limit, line, span, span_part)
  local most, most_part = limit.period_us, 0
  if less(line.finish, line.part, line.depth, line.depth_part) then
    most, most_part = minus(limit, line.depth, line.depth_part, line.finish, line.part)
    most = most + limit.period_us
  end
  if less(most, most_part, span, span_part) then span, span_part = most, most_part end
  line.turn = last_turn(limit, line)
  local holes = {}
  for _, hole in ipairs(line.holes) do
    local size, size_part = minus(limit, hole[3], hole[4], hole[1], hole[2])
    if less(span, span_part, size, size_part) then size, size_part = span, span_part end
    span, span_part = minus(limit, span, span_part, size, size_part)
    local cut, cut_part = plus(limit, hole[1], hole[2], size, size_part)
    owe(line, hole[1], hole[2], cut, cut_part)
    if less(cut, cut_part, hole[3], hole[4]) then holes[#holes + 1] = {cut, cut_part, hole[3], hole[4]} end
  end
  line.holes = holes
  local before, before_part = line.finish, line.part
  local finish, part = plus(limit, before, before_part, span, span_part)
  if finish >= MAX_DEBT then finish, part = MAX_DEBT, 0 end
  if less(before, before_part, finish, part) then line.finish, line.part = finish, part end
  owe(line, before, before_part, line.finish, line.part)
end

local function refund(limit, line, span, span_part, spent)
  local now = line.now
  local finish, part = spent.till - now, spent.part
  local known = spent.given == line.given
  line.turn = last_turn(limit, line)
  if known and finish == line.finish and part == line.part then
    line.finish, line.part = minus(limit, finish, part, span, span_part)
    if line.finish < 0 then line.finish, line.part = 0, 0 end
  elseif #line.holes > 0 or line.turn > now then
    if known and less(0, 0, finish, part) and less(finish, part, line.finish, line.part) then
      local start, start_part = minus(limit, finish, part, span, span_part)
      if start < 0 then start, start_part = 0, 0 end
      free(limit, line, start, start_part, finish, part)
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
  local line = line_of(limit, state, now)
  local span, span_part = muldiv(abs(cost), limit.period_us, limit.count)
  if cost > 0 then
    overdraw(limit, line, span, span_part)
  elseif spent.at == NEVER then
    move_back(limit, line, span, span_part)
  elseif cost < 0 and line.since <= spent.at and spent.at <= now then
    refund(limit, line, span, span_part, spent)
  end
  local after = state_of(line)
  local left, reset_after = line_standing(limit, line)
  return after, {1, left, 0, reset_after, 0, line.given, 0}
end

local function without_holes(state)
  if not state[6] then return state end
  local rest = {}
  for i = 1, 6 do rest[i] = state[i] end
  rest[7] = 0
  for i = 8 + 4 * state[7], #state do rest[#rest + 1] = state[i] end
  return rest
end

return {
  load = load, save = save, expires_after = 1, repair = repair, standing = standing, spend = spend, force = force,
  turn_after = turn_after, without_holes = without_holes,
}
end
