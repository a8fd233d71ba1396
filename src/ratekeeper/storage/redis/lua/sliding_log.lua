-- Mirror of kernels/sliding_log.py, but the log stays where it is: a list of (instant, cost), each two doubles, behind a
-- head of (expires, used). A decision reads what has expired and, when it denies, what has to expire before it passes;
-- a spend pops the one and pushes one entry. State is {expires, used, key = …, first = how many entries are over,
-- added = what this call spends at now}; a state that force or repair made anew has all its entries with it.
local function make_sliding_log()

local CHUNK = 64

-- Instant and cost of the entries from `first` (0 is the oldest) on, one after the other.
local function entries(state, first)
  if state.entries then
    local i = first
    return function()
      i = i + 1
      local entry = state.entries[i]
      if entry then return entry[1], entry[2] end
    end
  end
  if not state.key then return function() end end -- made in this very call: there is nothing behind it yet
  local chunk, i, from = {}, 0, first + 1
  return function()
    i = i + 1
    if i > #chunk then
      chunk, i = call('LRANGE', state.key, from, from + CHUNK - 1), 1
      from = from + CHUNK
    end
    if chunk[i] then
      local instant, cost = unpack('<dd', chunk[i])
      return instant, cost
    end
  end
end

local function load(key)
  local head = call('LINDEX', key, 0)
  if not head then return nil end
  if #head ~= 16 then error('FOREIGN') end
  local expires, used = unpack('<dd', head)
  return {expires, used, key = key, first = 0, added = 0}
end

local function save(key, state, ttl)
  if state.entries then
    call('DEL', key)
    call('RPUSH', key, pack('<dd', state[1], state[2]))
    for _, entry in ipairs(state.entries) do call('RPUSH', key, pack('<dd', entry[1], entry[2])) end
  elseif not state.key then
    call('RPUSH', key, pack('<dd', state[1], state[2]), pack('<dd', state.now, state.added))
  else
    if state.first > 0 then
      call('LTRIM', key, state.first + 1, -1) -- the head and what is over
      call('LPUSH', key, pack('<dd', state[1], state[2]))
    else
      call('LSET', key, 0, pack('<dd', state[1], state[2]))
    end
    if state.merge then
      local instant, cost = unpack('<dd', call('LINDEX', key, -1))
      call('LSET', key, -1, pack('<dd', instant, cost + state.added))
    else
      call('RPUSH', key, pack('<dd', state.now, state.added))
    end
  end
  call('PEXPIRE', key, ttl)
end

-- What is used after `oldest`, and how many entries are not.
local function live(state, oldest)
  local used, first = state[2], state.first
  if state.added > 0 then return used, first end
  for instant, cost in entries(state, first) do
    if instant > oldest then break end
    used, first = used - cost, first + 1
  end
  return used, first
end

local function all_entries(state, first)
  local found = {}
  for instant, cost in entries(state, first) do found[#found + 1] = {instant, cost} end
  if state.added > 0 then
    if state.merge then
      found[#found][2] = found[#found][2] + state.added
    else
      found[#found + 1] = {state.now, state.added}
    end
  end
  return found
end

local function made(limit, found)
  if #found == 0 then return nil end
  local used = 0
  for _, entry in ipairs(found) do used = used + entry[2] end
  return {found[#found][1] + limit.period, used, entries = found, first = 0, added = 0}
end

local function repair(limit, state, now)
  if state[1] <= now + limit.period then return state end
  local early, late = {}, 0
  for _, entry in ipairs(all_entries(state, state.first)) do
    if entry[1] < now then early[#early + 1] = entry else late = late + entry[2] end
  end
  early[#early + 1] = {now, late}
  return made(limit, early)
end

local function standing(limit, state, now)
  if not state then return limit.count, 0 end
  local used = live(state, now - limit.period)
  return max(limit.count - used, 0), used > 0 and state[1] - now or 0
end

-- Until enough of the oldest entries have left.
local function leaves_after(limit, state, now, first, excess)
  for instant, spent in entries(state, first) do
    excess = excess - spent
    if excess <= 0 then return instant + limit.period - now end
  end
  return limit.period -- what this very call has spent has to leave, too
end

local function spend(limit, state, now, cost, patience, lead)
  local count, period = limit.count, limit.period
  if not state then
    if cost <= count then
      return {now + period, cost, now = now, first = 0, added = cost}, {1, count - cost, 0, period, 0, 0, 0}
    end
    return nil, {0, count, NEVER, 0, 0, 0, 0}
  end
  state = repair(limit, state, now)
  local used, first = live(state, now - period)
  if used + cost <= count then
    used = used + cost
    local row = {1, count - used, 0, period, 0, 0, 0}
    if state.entries then
      local found = all_entries(state, first)
      if #found > 0 and found[#found][1] == now then
        found[#found] = {now, found[#found][2] + cost}
      else
        found[#found + 1] = {now, cost}
      end
      return made(limit, found), row
    end
    local merge = state.merge or (state.added == 0 and used > cost and state[1] == now + period)
    local key = state.key
    return {now + period, used, key = key, now = now, first = first, merge = merge, added = state.added + cost}, row
  end
  local retry_after = NEVER
  if cost <= count then retry_after = leaves_after(limit, state, now, first, used + cost - count) end
  return state, {0, max(count - used, 0), retry_after, used > 0 and state[1] - now or 0, 0, 0, 0}
end

local function turn_after(limit, state, now, front, cost)
  if cost > limit.count then return NEVER end
  local periods = floor((front + cost - 1) / limit.count)
  local units, wait = front + cost - periods * limit.count, periods * limit.period
  if state then
    local used, first = live(state, now - limit.period)
    local excess = used + units - limit.count
    if excess > 0 then wait = wait + leaves_after(limit, state, now, first, excess) end
  end
  return wait
end

local function force(limit, state, now, cost, spent)
  local found = {}
  if state then
    state = repair(limit, state, now)
    local _, first = live(state, now - limit.period)
    found = all_entries(state, first)
  end
  if cost > 0 then
    local used = 0
    for _, entry in ipairs(found) do used = used + entry[2] end
    cost = max(min(cost, 2 * limit.count - used), 0)
    if #found > 0 and found[#found][1] == now then
      found[#found] = {now, found[#found][2] + cost}
    elseif cost > 0 then
      found[#found + 1] = {now, cost}
    end
  else
    local at = spent.at
    if at == NEVER then at = now end
    for i, entry in ipairs(found) do
      if entry[1] == at then
        local left = max(entry[2] + cost, 0)
        if left > 0 then found[i] = {at, left} else table.remove(found, i) end
        break
      end
    end
  end
  state = made(limit, found)
  local remaining, reset_after = standing(limit, state, now)
  return state, {1, remaining, 0, reset_after, 0, 0, 0}
end

-- With all its entries, to be written under any name.
local function whole(state)
  return {state[1], state[2], entries = all_entries(state, 0), first = 0, added = 0}
end

return {
  load = load, save = save, whole = whole, expires_after = 0, repair = repair, standing = standing, spend = spend,
  force = force, turn_after = turn_after,
}
end
