-- Mirror of kernels/quota.py. State is {expires, used, index, since, granted, previous}, stored as a string of six doubles.
-- `limit` has the ordinal of the present window (index), its end (finish) and the end of the window after it (after).
local function make_quota()

local MOST = 4503599627370496 -- 2^52 units, as in kernels/quota.py
local GRANT = -2 -- as in limit.py

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value ~= 48 then error('FOREIGN') end
  return {unpack('<dddddd', value)}
end

local function save(key, state, ttl)
  call('SET', key, pack('<dddddd', table_unpack(state)), 'PX', ttl)
end

-- While a secret is being changed, a process that knows one of the names counts under that name alone. Of two states of
-- one window, the one that has counted more has seen more spends, and all of the grants if it is the one with more.
local function load_both(key, other)
  local state, second = load(key), load(other)
  if not state or not second or state[3] ~= second[3] then
    return (not second or state and state[3] > second[3]) and state or second
  end
  if second[2] > state[2] then state, second = second, state end
  return {
    max(state[1], second[1]), state[2], state[3], state[4], max(state[5], second[5]), max(state[6], second[6]),
  }
end

-- Return by how many windows the state is ahead of the present one. It is over if that is below zero.
local function ahead_of(limit, state)
  return state and state[3] - limit.index or -1
end

-- Return a copy of the state as it stands at `now`.
local function present_of(limit, state, now)
  local ahead = state and state[3] - limit.index or -2
  if ahead < -1 then return {limit.after, 0, limit.index, now, 0, 0} end
  if ahead == -1 then return {limit.after, 0, limit.index, now, 0, state[2]} end
  if ahead == 1 then return {table_unpack(state)} end
  return {limit.after, state[2], limit.index, state[4], state[5], state[6]}
end

-- Return microseconds until the window with this ordinal ends: the present one or the next.
local function left_of(limit, index, now)
  return (index <= limit.index and limit.finish or limit.after) - now
end

local function repair(limit, state, now)
  if ahead_of(limit, state) > 1 then return present_of(limit, state, now) end
  return state
end

local function standing(limit, state, now)
  if ahead_of(limit, state) < 0 then return limit.count, 0 end
  local left = (state[2] > 0 or state[5] > 0) and left_of(limit, state[3], now) or 0
  return max(limit.count + state[5] - state[2], 0), left
end

-- Return a row that charges nothing, with the state itself.
local function peeked(limit, state, now, row)
  local present = present_of(limit, state, now)
  return {row[1], row[2], row[3], row[4], 0, present[5], present[2], present[6]}
end

local function spend(limit, state, now, cost, patience, lead)
  local present = present_of(limit, state, now)
  local total, used, left = limit.count + present[5], present[2] + cost, left_of(limit, present[3], now)
  if limit.metered or used <= total then
    used = min(used, MOST)
    present[2] = used
    return present, {1, max(total - used, 0), 0, left, 0, present[4], min(max(used - total, 0), cost)}
  end
  state = repair(limit, state, now)
  local remaining, reset_after = standing(limit, state, now)
  local retry_after = cost <= limit.count and left or NEVER
  return state, peeked(limit, state, now, {0, remaining, retry_after, reset_after})
end

local function force(limit, state, now, cost, spent)
  state = repair(limit, state, now)
  local present = present_of(limit, state, now)
  local total, change = limit.count + present[5], 0
  local before = max(present[2] - total, 0)
  if spent.at == GRANT then
    present[5] = min(present[5] + cost, MOST)
    state = present
  elseif cost > 0 or ahead_of(limit, state) >= 0 and (spent.at == NEVER or spent.given == present[4]) then
    local most = limit.metered and MOST or min(max(present[2], total + total), MOST)
    present[2] = max(min(present[2] + cost, most), 0)
    change = max(present[2] - total, 0) - before
    state = present
  end
  local remaining, reset_after = standing(limit, state, now)
  return state, {1, remaining, 0, reset_after, 0, 0, change}
end

local function turn_after(limit, state, now, front, cost)
  local late = front + cost - (standing(limit, state, now))
  if limit.metered or late <= 0 then return 0 end
  if cost > limit.count then return NEVER end
  local is_ahead = state and state[3] > limit.index
  return ((late <= limit.count and not is_ahead) and limit.finish or limit.after) - now
end

return {
  load = load, load_both = load_both, save = save, expires_after = 0, repair = repair, standing = standing, spend = spend,
  force = force, turn_after = turn_after, peeked = peeked,
}
end
