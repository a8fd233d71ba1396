-- Mirror of kernels/penalty.py. State is {expires, last, until, step, strike, strike, …}, stored as a string of doubles.
-- `limit` has the lengths of its blocks (blocks_us) and forget_us.
local function make_penalty()

local ONE_STRIKE, STRUCK, BLOCKED = 1000000, 1, 2 -- as in kernels/penalty.py
local STRIKE = -3 -- as in limit.py
local UNTOUCHED = -1152921504606846976 -- -2^60: the end of the last block if there was none
local HEAD = 4 -- numbers before the strikes

local function load(key)
  local value = call('GET', key)
  if not value then return nil end
  if #value < 8 * HEAD or #value % 8 > 0 then error('FOREIGN') end
  local state = {}
  for at = 1, #value, 8 do state[#state + 1] = unpack('<d', value, at) end
  return state
end

local function save(key, state, ttl)
  call('SET', key, pack('<' .. string.rep('d', #state), table_unpack(state)), 'PX', ttl)
end

-- While a secret is being changed, a process that knows only one of the names counts strikes under that name alone. The
-- state with the later strike has seen more of them. A block under either name holds.
local function load_both(key, other)
  local state, second = load(key), load(other)
  if not state or not second then return state or second end
  if second[2] > state[2] or second[2] == state[2] and #second > #state then state, second = second, state end
  if second[1] <= now then return state end
  for i = 1, HEAD do state[i] = max(state[i], second[i]) end
  return state
end

local function repair(limit, state, now)
  local back = state and state[2] - now or 0
  if back <= 0 then return state end
  local repaired = {state[1] - back, now, state[3] - back, state[4]}
  for i = HEAD + 1, #state do repaired[i] = state[i] - back end
  return repaired
end

-- Return the number of strikes that still count. The oldest is the first.
local function live(limit, state, now)
  local count = 0
  for i = HEAD + 1, #state do
    if state[i] > now - limit.period_us then count = count + 1 end
  end
  return count
end

local function standing(limit, state, now)
  if not state then return limit.count, 0 end
  if state[3] > now then return 0, state[1] - now end
  return max(limit.count - live(limit, state, now), 0), max(state[1] - now, 0)
end

local function turn_after(limit, state, now, front, cost)
  return state and max(state[3] - now, 0) or 0
end

local function answer(limit, state, now, given)
  local remaining, reset_after = standing(limit, state, now)
  local wait = turn_after(limit, state, now)
  return {wait == 0 and 1 or 0, remaining, wait, reset_after, 0, given, 0}
end

-- Allow, or deny until the end of the block. Only repairs the state.
local function spend(limit, state, now, cost, patience, lead)
  state = repair(limit, state, now)
  return state, answer(limit, state, now, 0)
end

-- Count a strike. Return the state after it, and STRUCK, BLOCKED, or 0 if it does not count. The state is repaired.
local function strike(limit, state, now)
  if state and (state[3] > now or now - state[2] < ONE_STRIKE) then return state, 0 end
  local ends, step, strikes = UNTOUCHED, 0, {}
  if state then
    ends = state[3]
    if state[1] > now then step = state[4] end
    for i = HEAD + 1, #state do
      if state[i] > now - limit.period_us then strikes[#strikes + 1] = state[i] end
    end
  end
  strikes[#strikes + 1] = now
  local found, expires = STRUCK, now + limit.period_us
  if #strikes >= limit.count then
    ends = now + limit.blocks_us[min(step, #limit.blocks_us - 1) + 1]
    step = min(step + 1, #limit.blocks_us)
    strikes, found, expires = {}, BLOCKED, ends
  end
  if step > 0 then expires = max(expires, max(ends, now) + limit.forget_us) end
  return {expires, now, ends, step, table_unpack(strikes)}, found
end

local function force(limit, state, now, cost, spent)
  state = repair(limit, state, now)
  local given = 0
  if spent.at == STRIKE then state, given = strike(limit, state, now) end
  return state, answer(limit, state, now, given)
end

return {
  load = load, load_both = load_both, save = save, expires_after = 0, repair = repair, standing = standing, spend = spend,
  force = force, turn_after = turn_after, strike = strike, answer = answer,
}
end
