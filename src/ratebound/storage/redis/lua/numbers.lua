-- Whole numbers in doubles: exact below 2^53, and no step here exceeds it.

local floor, ceil, max, min, abs = math.floor, math.ceil, math.max, math.min, math.abs
local call, pack, unpack, table_unpack = redis.call, struct.pack, struct.unpack, unpack

-- Return quotient and remainder of a * b / c, exact even if a * b is not.
local function muldiv(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local q = floor(product / c)
    return q, product - q * c
  end
  -- Long multiplication, digit by digit of a, with digits so small that (c - 1) * base + digit * b stays exact.
  local whole = floor(b / c)
  b = b - whole * c
  local base = 2
  while base * 2 * c <= 4503599627370496 and base < 1048576 do base = base * 2 end
  local digits, rest = {}, a
  while rest > 0 do
    digits[#digits + 1] = rest % base
    rest = floor(rest / base)
  end
  local q, r = 0, 0
  for i = #digits, 1, -1 do
    local value = r * base + digits[i] * b
    local carry = floor(value / c)
    q, r = q * base + carry, value - carry * c
  end
  return a * whole + q, r
end

-- Algorithms on the wire, as in NUMBERS of script.py.
local TOKEN_BUCKET = 0
local GCRA = 1
local LEAKY_BUCKET = 2
local FIXED_WINDOW = 3
local SLIDING_LOG = 4
local SLIDING_COUNTER = 5
local QUOTA = 6
local CONCURRENT = 7
local DISTINCT = 8
local PENALTY = 9

local NEVER = -1 -- retry_after if no wait can help, and the value of an absent field
