-- Mirror of kernels/concurrency.py, but the slots are not read as a whole: they are a sorted set of ids by expiry. Distinct
-- values are such a set, too: see distinct.lua.
-- State is {latest expiry or now, live = number of live slots, key = name of the set (nil if no slot of it is live), over =
-- {id = expiry, or false if released}, size = entries in over, own = {id = true}}. `over` lies on top of the set; `own` are
-- the entries that this call has changed and `save` writes. Nothing is written before the group is decided. There is a
-- state even if no slot is held: a change then removes what has expired.
local function make_concurrency()

local function digits(number) return string.format('%.0f', number) end

local LIVE = '(' .. digits(now)

-- Return id and expiry of a member of the set and its score.
local function slot_of(member, score)
  return tonumber(member) or error('FOREIGN'), tonumber(score)
end

local function load(key)
  local live = call('ZCOUNT', key, LIVE, '+inf')
  local last = live > 0 and call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or now
  return {tonumber(last), live = live, key = live > 0 and key or nil, over = {}, size = 0, own = {}}
end

-- While a secret is being changed, a process that knows one of the names holds and releases its slots under that name
-- alone. A slot is held if it is under either name, and changes are written under both; so no slot is lost, and none
-- stays after its release.
local function load_both(key, other)
  local state = {now, live = 0, over = {}, size = 0, own = {}}
  for _, name in ipairs({key, other}) do
    local found = call('ZRANGEBYSCORE', name, LIVE, '+inf', 'WITHSCORES')
    for i = 1, #found, 2 do
      local id, expiry = slot_of(found[i], found[i + 1])
      if not state.over[id] then state.live, state.size = state.live + 1, state.size + 1 end
      state.over[id] = max(state.over[id] or 0, expiry)
      state[1] = max(state[1], expiry)
    end
  end
  return state
end

local function save(key, state, ttl)
  call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
  for id in pairs(state.own) do
    if state.over[id] then
      call('ZADD', key, digits(state.over[id]), digits(id))
    else
      call('ZREM', key, digits(id))
    end
  end
  call('PEXPIRE', key, ttl)
end

-- Return the expiry of a slot that is held, else false.
local function expiry_of(state, id)
  if state.over[id] ~= nil then return state.over[id] end
  local score = state.key and call('ZSCORE', state.key, digits(id))
  local expiry = score and tonumber(score)
  return expiry and expiry > now and expiry or false
end

local function latest(state)
  local found = now
  for _, expiry in pairs(state.over) do found = max(found, expiry or now) end
  local last = state.key and call('ZREVRANGE', state.key, 0, state.size, 'WITHSCORES') or {}
  for i = 1, #last, 2 do
    local id, expiry = slot_of(last[i], last[i + 1])
    if state.over[id] == nil then return max(found, expiry) end
  end
  return found
end

-- Return the expiry of the live slot that has `place` others before it.
local function expiry_at(state, place)
  if state.size == 0 then
    return tonumber(call('ZRANGEBYSCORE', state.key, LIVE, '+inf', 'WITHSCORES', 'LIMIT', place, 1)[2])
  end
  local found = {}
  for _, expiry in pairs(state.over) do
    if expiry then found[#found + 1] = expiry end
  end
  local first = {}
  if state.key then
    first = call('ZRANGEBYSCORE', state.key, LIVE, '+inf', 'WITHSCORES', 'LIMIT', 0, place + state.size + 1)
  end
  for i = 1, #first, 2 do
    local id, expiry = slot_of(first[i], first[i + 1])
    if state.over[id] == nil then found[#found + 1] = expiry end
  end
  table.sort(found)
  return found[place + 1]
end

-- Return the state with a slot held until `expiry`, or released if that is false.
local function with(before, id, expiry)
  local after = {before[1], live = before.live, key = before.key, over = {}, size = before.size, own = {[id] = true}}
  for slot, till in pairs(before.over) do after.over[slot] = till end
  for slot in pairs(before.own) do after.own[slot] = true end
  if expiry_of(before, id) then after.live = after.live - 1 end
  if expiry then after.live = after.live + 1 end
  if after.over[id] == nil then after.size = after.size + 1 end
  after.over[id] = expiry
  after[1] = expiry and expiry >= before[1] and expiry or latest(after)
  return after
end

local function repair(limit, state, now)
  return state
end

local function standing(limit, state, now)
  return max(limit.count - state.live, 0), state[1] - now
end

local function turn_after(limit, state, now, front, cost)
  local over = state.live - limit.count
  return over < 0 and 0 or expiry_at(state, over) - now
end

local function answer(limit, state, now, allowed)
  local remaining, reset_after = standing(limit, state, now)
  if allowed then return {1, remaining, 0, reset_after, 0, 0, 0} end
  return {0, remaining, turn_after(limit, state, now), reset_after, 0, 0, 0}
end

-- Take the slot `limit.id`, or renew it. Without an id, for a peek, only answer.
local function spend(limit, state, now, cost, patience, lead)
  local is_free = state.live < limit.count
  if limit.id == NEVER then return state, answer(limit, state, now, is_free) end
  if not is_free and not expiry_of(state, limit.id) then return state, answer(limit, state, now, false) end
  state = with(state, limit.id, now + limit.period_us)
  return state, answer(limit, state, now, true)
end

-- The sixth number of the answer, `given`, is 1 if the slot was not held before.
local function force(limit, state, now, cost, spent)
  local given = 0
  if spent.at >= 0 then
    local before = expiry_of(state, spent.at)
    given = before and 0 or 1
    state = with(state, spent.at, cost > 0 and now + limit.period_us or cost == 0 and before)
  end
  local row = answer(limit, state, now, true)
  row[6] = given
  return state, row
end

-- Return id and expiry of every slot that is held, in turn.
local function holders(key)
  local found = call('ZRANGEBYSCORE', key, LIVE, '+inf', 'WITHSCORES')
  for i = 1, #found, 2 do found[i], found[i + 1] = slot_of(found[i], found[i + 1]) end
  return found
end

return {
  load = load, load_both = load_both, save = save, expires_after = 0, repair = repair, standing = standing, spend = spend,
  force = force, turn_after = turn_after, holders = holders, expiry_of = expiry_of, with = with, answer = answer,
}
end
