-- Mirror of kernels/sliding_counter.py. State is {expires, current, previous}, stored as a string of three doubles.
local function make_sliding_counter()

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value ~= 24 then error('FOREIGN') end
  return {unpack('<ddd', value)}
end

local function save(key, state, ttl)
  call('SET', key, pack('<ddd', state[1], state[2], state[3]), 'PX', ttl)
end

local function repair(limit, state, now)
  if state[1] > now + 2 * limit.period_us then return {now + 2 * limit.period_us, state[2], state[3]} end
  return state
end

-- Return the repaired state, the rest of the current window, current and previous, as of now.
local function moved(limit, state, now)
  state = repair(limit, state, now)
  local left = state[1] - limit.period_us - now
  if left > 0 then return state, left, state[2], state[3] end
  if left > -limit.period_us then return state, left + limit.period_us, 0, state[2] end
  return state, limit.period_us, 0, 0
end

-- Return the share of the older window, rounded up.
local function share(limit, previous, left)
  local q, r = muldiv(previous, left, limit.period_us)
  return r > 0 and q + 1 or q
end

local function wait_for(limit, left, current, previous, cost)
  if cost > limit.count then return NEVER end
  if current + cost <= limit.count then
    local q = muldiv(limit.count - current - cost, limit.period_us, previous)
    return left - q
  end
  local q = muldiv(limit.count - cost, limit.period_us, current)
  return left + limit.period_us - q
end

local function standing(limit, state, now)
  if not state then return limit.count, 0 end
  local _, left, current, previous = moved(limit, state, now)
  local remaining = limit.count - current - share(limit, previous, left)
  return max(remaining, 0), current > 0 and left + limit.period_us or previous > 0 and left or 0
end

local function spend(limit, state, now, cost, patience, lead)
  local left, current, previous = limit.period_us, 0, 0
  if state then state, left, current, previous = moved(limit, state, now) end
  local free = limit.count - current - cost - share(limit, previous, left)
  if free >= 0 then
    return {now + left + limit.period_us, current + cost, previous}, {1, free, 0, left + limit.period_us, 0, 0, 0}
  end
  local reset_after = current > 0 and left + limit.period_us or previous > 0 and left or 0
  local retry_after = wait_for(limit, left, current, previous, cost)
  return state, {0, max(free + cost, 0), retry_after, reset_after, 0, 0, 0}
end

local EXACT_WINDOWS = 16

local function turn_after(limit, state, now, front, cost)
  local count, period = limit.count, limit.period_us
  if cost > count then return NEVER end
  local wait, left, current, previous, windows = 0, period, 0, 0, 0
  if state then
    local _
    _, left, current, previous = moved(limit, state, now)
  end
  while true do
    local gives = max(count - current - ceil(previous / period), 0)
    if front <= gives then break end
    if windows == EXACT_WINDOWS then
      wait, front = wait + floor(front / count) * period, front % count
      break
    end
    windows = windows + 1
    front = front - gives
    wait, left, current, previous = wait + left, period, 0, current + gives
  end
  current = current + front
  if current + cost + share(limit, previous, left) > count then
    wait = wait + wait_for(limit, left, current, previous, cost)
  end
  return wait
end

local function force(limit, state, now, cost, spent)
  local left, current, previous = limit.period_us, 0, 0
  if state then
    local _
    _, left, current, previous = moved(limit, state, now)
  end
  local finish = now + left
  local expires = spent.till
  if cost > 0 or spent.at == NEVER then expires = finish + limit.period_us end
  if expires == finish + limit.period_us then
    current = max(min(current + cost, max(current, 2 * limit.count)), 0)
  elseif expires == finish then
    previous = max(previous + cost, 0)
  end
  if current > 0 then
    state = {finish + limit.period_us, current, previous}
  elseif previous > 0 then
    state = {finish, previous, 0}
  else
    state = nil
  end
  local remaining, reset_after = standing(limit, state, now)
  return state, {1, remaining, 0, reset_after, 0, 0, 0}
end

return {
  load = load, save = save, expires_after = 0, repair = repair, standing = standing, spend = spend, force = force,
  turn_after = turn_after,
}
end
