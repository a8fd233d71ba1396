-- Mirror of kernels/fixed_window.py. State is {end, used, since}, stored as a string of three doubles; older versions
-- stored two, without since.
local function make_fixed_window()

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value == 16 then
    local finish, used = unpack('<dd', value)
    return {finish, used, 0}
  end
  if #value ~= 24 then error('FOREIGN') end
  return {unpack('<ddd', value)}
end

local function save(key, state, ttl)
  call('SET', key, pack('<ddd', state[1], state[2], state[3]), 'PX', ttl)
end

local function repair(limit, state, now)
  local finish = now - now % limit.period_us + limit.period_us
  if state[1] > finish then return {finish, state[2], state[3]} end
  return state
end

local function standing(limit, state, now)
  if not state or state[1] <= now or state[2] == 0 then return limit.count, 0 end
  return max(limit.count - state[2], 0), state[1] - now
end

local function spend(limit, state, now, cost, patience, lead)
  local finish, used, since = now - now % limit.period_us + limit.period_us, 0, now
  if state and state[1] >= finish then
    state = repair(limit, state, now)
    used, since = state[2], state[3]
  end
  if used + cost <= limit.count then
    used = used + cost
    return {finish, used, since}, {1, limit.count - used, 0, finish - now, 0, since, 0}
  end
  local retry_after = cost <= limit.count and finish - now or NEVER
  return state, {0, max(limit.count - used, 0), retry_after, used > 0 and finish - now or 0, 0, 0, 0}
end

local function turn_after(limit, state, now, front, cost)
  if cost > limit.count then return NEVER end
  local late = front + cost - (standing(limit, state, now))
  if late <= 0 then return 0 end
  return limit.period_us - now % limit.period_us + floor((late - 1) / limit.count) * limit.period_us
end

local function force(limit, state, now, cost, spent)
  local finish = now - now % limit.period_us + limit.period_us
  if state then
    if state[1] >= finish then state = repair(limit, state, now) else state = nil end
  end
  if cost > 0 or (state and (spent.at == NEVER or spent.given == state[3])) then
    local used, since = state and state[2] or 0, state and state[3] or now
    state = {finish, max(min(used + cost, max(used, 2 * limit.count)), 0), since}
  end
  local left, reset_after = standing(limit, state, now)
  return state, {1, left, 0, reset_after, 0, 0, 0}
end

return {
  load = load, save = save, expires_after = 0, repair = repair, standing = standing, spend = spend, force = force,
  turn_after = turn_after,
}
end
