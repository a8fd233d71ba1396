-- Mirror of kernels/gcra.py: same names, same order of operations, hence the same numbers.
-- State is {tat, part, last}, kept as a string of three doubles.

local gcra = {}

function gcra.load(key)
  local value = redis.call('GET', key)
  if not value then return nil end
  if #value ~= 24 then error('FOREIGN') end
  local tat, part, last = struct.unpack('<ddd', value)
  return {tat, part, last}
end

function gcra.save(key, state, ttl)
  redis.call('SET', key, struct.pack('<ddd', state[1], state[2], state[3]), 'PX', ttl)
end

function gcra.expires(state) return state[1] + 1 end

function gcra.spans(limit, cost)
  local room, room_part = muldiv(limit.burst - cost, limit.period, limit.count)
  local step, step_part = muldiv(cost, limit.period, limit.count)
  return room, room_part, step, step_part
end

local function remaining(limit, ahead, part)
  local q, r = muldiv(limit.count, ahead, limit.period)
  local left = limit.burst - q - math.ceil((r + part - limit.count + 1) / limit.period)
  return math.min(math.max(left, 0), limit.burst)
end

function gcra.repair(limit, state, now)
  if now < state[3] then return {state[1] - (state[3] - now), state[2], now} end
  return state
end

function gcra.standing(limit, state, now)
  if not state or state[1] < now then return limit.burst, 0 end
  local ahead = state[1] - now
  return remaining(limit, ahead, state[2]), ahead + (state[2] > 0 and 1 or 0)
end

function gcra.spend(limit, state, now, cost, patience, lead)
  local ahead, part = lead, 0
  if state then
    state = gcra.repair(limit, state, now)
    local gap = state[1] - now
    if gap >= lead then
      ahead, part = gap, state[2]
      if part >= limit.count then ahead, part = gap + 1, 0 end
    end
  end
  if cost > limit.burst then
    local left, reset_after = gcra.standing(limit, state, now)
    return state, {0, left, NEVER, reset_after, 0}
  end
  local room, room_part, step, step_part = gcra.spans(limit, cost)
  local early = ahead - room
  if part < room_part then early = early - 1 end
  local delay = limit.queues and ahead or math.max(early, 0)
  if patience ~= NEVER then early = delay - patience end
  if early > 0 then
    local left, reset_after = gcra.standing(limit, state, now)
    return state, {0, left, early, reset_after, 0}
  end
  ahead, part = ahead + step, part + step_part
  if part >= limit.count then ahead, part = ahead + 1, part - limit.count end
  return {now + ahead, part, now}, {1, remaining(limit, ahead, part), 0, ahead + (part > 0 and 1 or 0), delay}
end

-- How much of a spend's time is still ahead; nil if all of it is.
local function owed(limit, state, now, at, till)
  if at == NEVER then return nil end
  local tat, part, last = state[1], state[2], state[3]
  local step = muldiv(1, limit.period, limit.count)
  local depth = muldiv(limit.burst, limit.period, limit.count)
  local ahead = tat - (limit.queues and step or depth) > now
  if (last == at and tat + (part > 0 and 1 or 0) == till) or (now == at and not ahead) then return nil end
  if ahead then return 0 end
  return math.max(till - 1 - now, 0)
end

function gcra.force(limit, state, now, cost, at, till)
  if state then state = gcra.repair(limit, state, now) end
  local tat, part = now, 0
  if state and state[1] >= now then tat, part = state[1], state[2] end
  local span, span_part = muldiv(math.abs(cost), limit.period, limit.count)
  if cost > 0 then
    local depth = muldiv(limit.burst, limit.period, limit.count)
    local most = math.max(tat, now + depth + limit.period)
    part = part + span_part
    local carry = math.floor(part / limit.count)
    tat, part = tat + span + carry, part - carry * limit.count
    if tat >= most then tat, part = most, 0 end
  elseif state then
    local due = owed(limit, state, now, at, till)
    if due and due <= span then span, span_part = due, 0 end
    part = part - span_part
    local carry = math.floor(part / limit.count)
    tat, part = tat - span + carry, part - carry * limit.count
    if tat < now then tat, part = now, 0 end
  else
    return nil, {1, limit.burst, 0, 0, 0}
  end
  state = {tat, part, now}
  local left, reset_after = gcra.standing(limit, state, now)
  return state, {1, left, 0, reset_after, 0}
end
