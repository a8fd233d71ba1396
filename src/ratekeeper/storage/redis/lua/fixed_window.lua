-- Mirror of kernels/fixed_window.py. State is {end, used}, kept as a string of two doubles.
local function make_fixed_window()

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value ~= 16 then error('FOREIGN') end
  return {unpack('<dd', value)}
end

local function save(key, state, ttl)
  call('SET', key, pack('<dd', state[1], state[2]), 'PX', ttl)
end

local function repair(limit, state, now)
  local finish = now - now % limit.period + limit.period
  if state[1] > finish then return {finish, state[2]} end
  return state
end

local function standing(limit, state, now)
  if not state or state[1] <= now or state[2] == 0 then return limit.count, 0 end
  return max(limit.count - state[2], 0), state[1] - now
end

local function spend(limit, state, now, cost, patience, lead)
  local finish, used = now - now % limit.period + limit.period, 0
  if state and state[1] >= finish then
    state = repair(limit, state, now)
    used = state[2]
  end
  if used + cost <= limit.count then
    used = used + cost
    return {finish, used}, {1, limit.count - used, 0, finish - now, 0, 0, 0}
  end
  local retry_after = cost <= limit.count and finish - now or NEVER
  return state, {0, max(limit.count - used, 0), retry_after, used > 0 and finish - now or 0, 0, 0, 0}
end

local function force(limit, state, now, cost, spent)
  local finish = now - now % limit.period + limit.period
  if state then
    if state[1] >= finish then state = repair(limit, state, now) else state = nil end
  end
  if cost > 0 or (state and (spent.at == NEVER or (finish - limit.period <= spent.at and spent.at < finish))) then
    local used = state and state[2] or 0
    state = {finish, max(min(used + cost, max(used, 2 * limit.count)), 0)}
  end
  local left, reset_after = standing(limit, state, now)
  return state, {1, left, 0, reset_after, 0, 0, 0}
end

return {
  load = load, save = save, expires_after = 0, repair = repair, standing = standing, spend = spend, force = force,
}
end
