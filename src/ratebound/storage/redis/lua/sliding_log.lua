-- Mirror of kernels/sliding_log.py, but the log is not read as a whole: it is a list of (instant, cost, sum of the costs
-- up to this one), three doubles each, after a head of (expires, used, total, uneven). The sums start at any value; their
-- differences show by bisection which entry must leave before a denied call passes. A refund far back would change all
-- sums after it. Instead `uneven` is then the instant of the newest entry, up to which sums are not valid.
-- A decision reads the expired entries; a spend pops them and pushes one entry; a refund finds its entry by bisection.
-- State is {expires, used, total = …, uneven = …, key = …, first = number of expired entries, added = cost that this call
-- spends at now, changed = index of an entry whose cost force has changed}; a state that was changed in another way, or
-- twice in a call, holds all its entries.
local function make_sliding_log()

local NEAR = 128 -- entries after a refunded one whose sums are changed with it
local CHUNK = 256 -- entries to read at a time, after the first few were not enough

-- Iterate over instant and cost of the entries from index `first` (0 is the oldest) on.
local function entries(state, first)
  if state.entries then
    local i = first
    return function()
      i = i + 1
      local entry = state.entries[i]
      if entry then return entry[1], entry[2] end
    end
  end
  if not state.key then return function() end end -- a new log of this call: nothing is stored yet
  local chunk, i, from, size = {}, 0, first + 1, 2
  return function()
    i = i + 1
    if i > #chunk then
      chunk, i = call('LRANGE', state.key, from, from + size - 1), 1
      from, size = from + size, min(4 * size, CHUNK)
    end
    if chunk[i] then
      local instant, cost = unpack('<dd', chunk[i])
      return instant, cost
    end
  end
end

-- Load a log of the older format, without sums. They are added when it is written.
local function without_sums(key, head)
  local expires, used = unpack('<dd', head)
  local state = {expires, used, entries = {}, first = 0, added = 0}
  for i, entry in ipairs(call('LRANGE', key, 1, -1)) do state.entries[i] = {unpack('<dd', entry)} end
  return state
end

local function load(key)
  local head = call('LINDEX', key, 0)
  if not head then return nil end
  if #head == 16 then return without_sums(key, head) end
  if #head ~= 32 then error('FOREIGN') end
  local expires, used, total, uneven = unpack('<dddd', head)
  return {expires, used, total = total, uneven = uneven, key = key, first = 0, added = 0}
end

local function packed_head(state)
  return pack('<dddd', state[1], state[2], state.total, state.uneven)
end

-- Set the new cost of the entry that force has changed, or remove the entry. Indexes are those before anything is popped.
local function change(key, state)
  local place = state.changed + 1
  local _, _, sum = unpack('<ddd', call('LINDEX', key, place))
  local changed = state.cost > 0 and pack('<ddd', state.at, state.cost, sum - state.less)
  if state.near then -- change the sums of the entries after it as well
    local behind = call('LRANGE', key, place + 1, -1)
    for i, entry in ipairs(behind) do
      local instant, cost, up_to = unpack('<ddd', entry)
      behind[i] = pack('<ddd', instant, cost, up_to - state.less)
    end
    if changed then table.insert(behind, 1, changed) end
    call('LTRIM', key, 0, place - 1)
    if #behind > 0 then call('RPUSH', key, _G.unpack(behind)) end
  elseif changed then
    call('LSET', key, place, changed)
  else
    call('LSET', key, place, '')
    call('LREM', key, state.late and -1 or 1, '') -- search from the nearer end
  end
end

local function save(key, state, ttl)
  if state.entries then
    local total = 0
    for _, entry in ipairs(state.entries) do total = total + entry[2] end
    call('DEL', key)
    call('RPUSH', key, pack('<dddd', state[1], state[2], total, 0))
    total = 0
    for _, entry in ipairs(state.entries) do
      total = total + entry[2]
      call('RPUSH', key, pack('<ddd', entry[1], entry[2], total))
    end
  elseif not state.key then
    call('RPUSH', key, pack('<dddd', state[1], state[2], state.added, 0), pack('<ddd', state.now, state.added, state.added))
  else
    if state.changed then change(key, state) end
    if state.first > 0 then
      call('LTRIM', key, state.first + 1, -1) -- the head and the expired entries
      call('LPUSH', key, packed_head(state))
    else
      call('LSET', key, 0, packed_head(state))
    end
    if state.merge then
      local instant, cost, sum = unpack('<ddd', call('LINDEX', key, -1))
      call('LSET', key, -1, pack('<ddd', instant, cost + state.added, sum + state.added))
    elseif state.added > 0 then
      call('RPUSH', key, pack('<ddd', state.now, state.added, state.total))
    end
  end
  call('PEXPIRE', key, ttl)
end

-- Return the units used after `oldest`, and the number of entries up to it.
local function live(state, oldest)
  local used, first = state[2], state.first
  if state.added > 0 or state.changed then return used, first end
  for instant, cost in entries(state, first) do
    if instant > oldest then break end
    used, first = used - cost, first + 1
  end
  return used, first
end

local function all_entries(state, first)
  local found = {}
  for instant, cost in entries(state, first) do found[#found + 1] = {instant, cost} end
  if state.changed then
    local place = state.changed - first + 1
    if state.cost > 0 then found[place][2] = state.cost else table.remove(found, place) end
  end
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
  return {found[#found][1] + limit.period_us, used, entries = found, first = 0, added = 0}
end

local function repair(limit, state, now)
  if state[1] <= now + limit.period_us then return state end
  local early, late = {}, 0
  for _, entry in ipairs(all_entries(state, state.first)) do
    if entry[1] < now then early[#early + 1] = entry else late = late + entry[2] end
  end
  early[#early + 1] = {now, late}
  return made(limit, early)
end

local function standing(limit, state, now)
  if not state then return limit.count, 0 end
  local used = live(state, now - limit.period_us)
  return max(limit.count - used, 0), used > 0 and state[1] - now or 0
end

-- Return the state with all its entries, which can be written under any name.
local function whole(state, first)
  return {state[1], state[2], entries = all_entries(state, first or 0), first = 0, added = 0}
end

-- Return the instant of the entry with which enough of the oldest have left. Spends of this call leave last.
local function leaves(state, first, used, excess, now)
  if state.key and state.added == 0 and excess > NEAR then
    local oldest, cost, sum = unpack('<ddd', call('LINDEX', state.key, first + 1))
    if oldest > state.uneven then
      local wanted, low, high = sum - cost + excess, first, call('LLEN', state.key) - 2
      while low < high do
        local middle = floor((low + high) / 2)
        local _, _, up_to = unpack('<ddd', call('LINDEX', state.key, middle + 1))
        if up_to < wanted then low = middle + 1 else high = middle end
      end
      return (unpack('<ddd', call('LINDEX', state.key, low + 1)))
    end
    local rest, to = used - excess, -1 -- the units that may stay
    while rest < excess do -- one by one, from the end where fewer entries have to be read
      local chunk = call('LRANGE', state.key, to - CHUNK + 1, to)
      for i = #chunk, 1, -1 do
        local instant, cost = unpack('<dd', chunk[i])
        if cost > rest then return instant end
        rest = rest - cost
      end
      to = to - CHUNK
    end
  end
  for instant, cost in entries(state, first) do
    excess = excess - cost
    if excess <= 0 then return instant end
  end
  return now
end

local function spend(limit, state, now, cost, patience, lead)
  local count, period = limit.count, limit.period_us
  if not state then
    if cost <= count then
      return {now + period, cost, now = now, first = 0, added = cost}, {1, count - cost, 0, period, 0, 0, 0}
    end
    return nil, {0, count, NEVER, 0, 0, 0, 0}
  end
  state = repair(limit, state, now)
  local used, first = live(state, now - period)
  if used + cost <= count then
    if state.key and state.total + cost > MOST_TOTAL then
      state = whole(state, first)
      first = 0
    end
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
    return {
      now + period, used, total = (state.total or 0) + cost, uneven = state.uneven or 0, key = state.key, now = now,
      first = first, merge = merge, added = state.added + cost,
    }, row
  end
  local retry_after = NEVER
  if cost <= count then retry_after = leaves(state, first, used, used + cost - count, now) + period - now end
  return state, {0, max(count - used, 0), retry_after, used > 0 and state[1] - now or 0, 0, 0, 0}
end

local function turn_after(limit, state, now, front, cost)
  if cost > limit.count then return NEVER end
  local periods = floor((front + cost - 1) / limit.count)
  local units, wait = front + cost - periods * limit.count, periods * limit.period_us
  if state then
    local used, first = live(state, now - limit.period_us)
    local excess = used + units - limit.count
    if excess > 0 then wait = wait + leaves(state, first, used, excess, now) + limit.period_us - now end
  end
  return wait
end

-- Return index (0 is the oldest) and cost of the entry of the instant `at`, and the number of entries; nil if it is gone.
-- The search looks at the newest first, then twice as far back each time: most settled spends are recent.
local function find(key, first, at)
  local size = call('LLEN', key) - 1
  local low, high, step = first, size - 1, 1 -- the entry is between low and high
  local place = high
  while low <= high do
    local instant, cost = unpack('<dd', call('LINDEX', key, place + 1))
    if instant == at then return place, cost, size end
    if instant < at then low = place + 1 else high = place - 1 end
    if step and instant > at then
      place, step = max(high - step, low), step * 2
    else
      place, step = floor((low + high) / 2), nil
    end
  end
end

local function with(state, total, uneven)
  state.total, state.uneven = total, uneven
  return state
end

-- Force without reading the whole log, on a state as it is stored. Return nil if that is not possible.
local function force_in_place(limit, state, now, cost, at)
  if state.entries or state.added > 0 or state.changed or state[1] > now + limit.period_us then return nil end
  local used, first = live(state, now - limit.period_us)
  if used == 0 then return nil end
  local key, newest, total, uneven = state.key, state[1] - limit.period_us, state.total, state.uneven
  if total + max(cost, 0) > MOST_TOTAL then return nil end
  if cost > 0 then
    cost = max(min(cost, 2 * limit.count - used), 0)
    if cost == 0 then return with({state[1], used, key = key, first = first, added = 0}, total, uneven) end
    local merge = newest == now
    local changed = {now + limit.period_us, used + cost, key = key, now = now, first = first, merge = merge, added = cost}
    return with(changed, total + cost, uneven)
  end
  local place, before, size = find(key, first, at)
  if not place then return with({state[1], used, key = key, first = first, added = 0}, total, uneven) end
  local left = max(before + cost, 0)
  used = used - before + left
  if used == 0 then return nil end
  local expires = state[1]
  if left == 0 and place == size - 1 then
    expires = unpack('<dd', call('LINDEX', key, -2)) + limit.period_us
  end
  local near, less = size - 1 - place <= NEAR, before - left
  if near then total = total - less elseif less > 0 then uneven = newest end
  return with({
    expires, used, key = key, first = first, added = 0, changed = place, at = at, cost = left, late = 2 * place > size,
    near = near, less = near and less or 0,
  }, total, uneven)
end

local function force(limit, state, now, cost, spent)
  local at = spent.at
  if at == NEVER then at = now end
  local found, changed = {}, state and force_in_place(limit, state, now, cost, at)
  if changed then
    return changed, {1, max(limit.count - changed[2], 0), 0, changed[1] - now, 0, 0, 0}
  end
  if state then
    state = repair(limit, state, now)
    local _, first = live(state, now - limit.period_us)
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

-- Return true if two states, under two names, are the same log: then a change is made in both instead of a rewrite.
local function same(state, other)
  return state.key and other.key and state[1] == other[1] and state[2] == other[2] and call('LLEN', state.key) == call('LLEN', other.key)
    and call('LINDEX', state.key, 1) == call('LINDEX', other.key, 1)
end

return {
  load = load, save = save, same = same, whole = whole, expires_after = 0, repair = repair, standing = standing, spend = spend,
  force = force, turn_after = turn_after,
}
end
