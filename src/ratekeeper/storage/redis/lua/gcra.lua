-- Mirror of kernels/gcra.py: same names, same order of operations, hence the same numbers.
-- State is {tat, part, last, since, given}, kept as a string of five doubles.
local function make_gcra()

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value ~= 40 then error('FOREIGN') end
  return {unpack('<ddddd', value)} -- and what unpack adds: where it stopped
end

local function save(key, state, ttl)
  call('SET', key, pack('<ddddd', state[1], state[2], state[3], state[4], state[5]), 'PX', ttl)
end

local function remaining(limit, ahead, part)
  local q, r = muldiv(limit.count, ahead, limit.period)
  local left = limit.burst - q - ceil((r + part - limit.count + 1) / limit.period)
  return min(max(left, 0), limit.burst)
end

local function repair(limit, state, now)
  local tat, part, last, since, given = state[1], state[2], state[3], state[4], state[5]
  if part >= limit.count then tat, part = tat + 1, 0 end
  if now < last then return {tat - (last - now), part, now, max(since, last + 1), given} end
  if part ~= state[2] then return {tat, part, last, since, given} end
  return state
end

local function standing(limit, state, now)
  if not state or state[1] < now then return limit.burst, 0 end
  local ahead = state[1] - now
  return remaining(limit, ahead, state[2]), ahead + (state[2] > 0 and 1 or 0)
end

local function spend(limit, state, now, cost, patience, lead)
  local ahead, part, since, given, hole = lead, 0, now, 0, lead
  if state then
    state = repair(limit, state, now)
    ahead, part, since, given, hole = state[1] - now, state[2], state[4], state[5], 0
    if ahead < lead then
      hole = ahead >= 0 and lead - ahead - 1 or lead
      if ahead < 0 then since, given = max(since, now), 0 end
      ahead, part = lead, 0
    end
  end
  if cost > limit.burst then
    local left, reset_after = standing(limit, state, now)
    return state, {0, left, NEVER, reset_after, 0, 0, 0}
  end
  local room, room_part = muldiv(limit.burst - cost, limit.period, limit.count)
  local step, step_part = muldiv(cost, limit.period, limit.count)
  local early = ahead - room
  if part < room_part then early = early - 1 end
  local delay = limit.queues and ahead or max(early, 0)
  if patience ~= NEVER then early = delay - patience end
  if early > 0 then
    local left, reset_after = standing(limit, state, now)
    return state, {0, left, early, reset_after, 0, 0, 0}
  end
  ahead, part = ahead + step, part + step_part
  if part >= limit.count then ahead, part = ahead + 1, part - limit.count end
  local row = {1, remaining(limit, ahead, part), 0, ahead + (part > 0 and 1 or 0), delay, given, hole}
  return {now + ahead, part, now, since, given}, row
end

-- How much of a spend's time is still ahead, so that giving it back mints nothing; nil if all of it is.
local function owed(limit, state, now, spent)
  if spent.at == NEVER then return nil end
  local tat, part, last, since, given = state[1], state[2], state[3], state[4], state[5]
  local step = muldiv(1, limit.period, limit.count)
  local depth = muldiv(limit.burst, limit.period, limit.count)
  local ahead = tat - (limit.queues and step or depth) > now
  if last == spent.at and tat + given + (part > 0 and 1 or 0) == spent.till then return nil end
  if spent.at < since or ahead then return 0 end
  if now == spent.at then return nil end
  return max(spent.till - given - 1 - now, 0)
end

local function force(limit, state, now, cost, spent)
  if state then state = repair(limit, state, now) end
  if not state or state[1] < now then
    if cost <= 0 then return state, {1, limit.burst, 0, 0, 0, 0, 0} end
    state = {now, 0, now, now, 0}
  end
  local tat, part, since, given = state[1], state[2], state[4], state[5]
  local span, span_part = muldiv(abs(cost), limit.period, limit.count)
  local sign = 1
  if cost <= 0 then
    local due = owed(limit, state, now, spent)
    if not due then
      if spent.at ~= NEVER then span = span + spent.hole end
    elseif due <= span then
      span, span_part = due, 0
    end
    sign = -1
  end
  part = part + sign * span_part
  local carry = floor(part / limit.count)
  tat, part = tat + sign * span + carry, part - carry * limit.count
  if cost > 0 then
    local depth = muldiv(limit.burst, limit.period, limit.count)
    local most = max(state[1], now + depth + limit.period)
    if tat >= most then tat, part = most, 0 end
  else
    if tat < now then tat, part = now, 0 end
    given = given + state[1] - tat
  end
  state = {tat, part, now, since, given}
  local left, reset_after = standing(limit, state, now)
  return state, {1, left, 0, reset_after, 0, given, 0}
end

return {
  load = load, save = save, expires_after = 1, repair = repair, standing = standing, spend = spend, force = force,
}
end
