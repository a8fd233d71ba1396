-- Mirror of kernels/distinct.py. A state is that of slots: a sorted set of digests by expiry, see concurrency.lua.
local function make_distinct()

local slots = make_concurrency()
local expiry_of, with = slots.expiry_of, slots.with

-- Return the row of a call before which the value counted until `before`; false if it did not.
local function answer(limit, state, now, before)
  local row = slots.answer(limit, state, now, true)
  row[6] = before or 0
  return row
end

-- Count the value `limit.id`. Without an id, for a peek, only answer.
local function spend(limit, state, now, cost, patience, lead)
  if limit.id == NEVER then return slots.spend(limit, state, now) end
  local before = expiry_of(state, limit.id)
  if not before and state.live >= limit.count then return state, slots.answer(limit, state, now, false) end
  state = with(state, limit.id, max(before or 0, now + limit.period_us))
  return state, answer(limit, state, now, before)
end

local function force(limit, state, now, cost, spent)
  local before = false
  if spent.at >= 0 then
    before = expiry_of(state, spent.at)
    if spent.till == 0 then
      if cost > 0 then state = with(state, spent.at, max(before or 0, now + limit.period_us)) end
    elseif before == spent.till then
      state = with(state, spent.at, spent.part > now and spent.part)
    end
  end
  return state, answer(limit, state, now, before)
end

local kernel = {}
for name, part in pairs(slots) do kernel[name] = part end
kernel.spend, kernel.force = spend, force
return kernel
end
