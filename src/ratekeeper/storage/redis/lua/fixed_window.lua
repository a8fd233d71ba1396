-- Mirror of kernels/fixed_window.py. State is {end, used}, kept as a string of two doubles.
-- Made when it is needed: Redis runs the whole script for each call.
local function make_fixed_window()

local fixed_window = {}

function fixed_window.load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value ~= 16 then error('FOREIGN') end
  local finish, used = unpack('<dd', value)
  return {finish, used}
end

function fixed_window.save(key, state, ttl)
  call('SET', key, pack('<dd', state[1], state[2]), 'PX', ttl)
end

function fixed_window.expires(state) return state[1] end

function fixed_window.repair(limit, state, now)
  local finish = now - now % limit.period + limit.period
  if state[1] > finish then return {finish, state[2]} end
  return state
end

function fixed_window.standing(limit, state, now)
  if not state or state[1] <= now or state[2] == 0 then return limit.count, 0 end
  return max(limit.count - state[2], 0), state[1] - now
end

function fixed_window.spend(limit, state, now, cost, patience, lead)
  local finish, used = now - now % limit.period + limit.period, 0
  if state and state[1] >= finish then
    state = fixed_window.repair(limit, state, now)
    used = state[2]
  end
  if used + cost <= limit.count then
    used = used + cost
    return {finish, used}, {1, limit.count - used, 0, finish - now, 0, 0, 0}
  end
  local retry_after = cost <= limit.count and finish - now or NEVER
  return state, {0, max(limit.count - used, 0), retry_after, used > 0 and finish - now or 0, 0, 0, 0}
end

function fixed_window.force(limit, state, now, cost, spent)
  local finish = now - now % limit.period + limit.period
  if state then
    if state[1] >= finish then state = fixed_window.repair(limit, state, now) else state = nil end
  end
  if cost > 0 or (state and (spent.at == NEVER or (finish - limit.period <= spent.at and spent.at < finish))) then
    local used = state and state[2] or 0
    state = {finish, max(min(used + cost, max(used, 2 * limit.count)), 0)}
  end
  local left, reset_after = fixed_window.standing(limit, state, now)
  return state, {1, left, 0, reset_after, 0, 0, 0}
end

return fixed_window
end
