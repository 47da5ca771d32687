-- Sends what a plan says, and counts the answers that are not what it expects. `load.py` writes the plan.

local threads = {}

function setup(thread)
   table.insert(threads, thread)
end

function init(args)
   plan = dofile(args[1])
   number, refused, wrong, sample = 100000000, 0, 0, ""
end

-- Each request has a number of its own, of nine digits, wherever the plan leaves a place for it.
function request()
   number = number + 1
   return table.concat(plan.requests[number % #plan.requests + 1], number)
end

function response(status, headers, body)
   if status ~= 200 then
      refused = refused + 1
   elseif #body < plan.at_least or not string.find(body, plan.mark, 1, true) then
      wrong = wrong + 1
   else
      return
   end
   if sample == "" then
      sample = status .. " " .. string.sub(body, 1, 200)
   end
end

function done(summary, latency, requests)
   local refused, wrong, sample = 0, 0, ""
   for _, thread in ipairs(threads) do
      refused = refused + thread:get("refused")
      wrong = wrong + thread:get("wrong")
      sample = sample .. thread:get("sample")
   end
   local errors = summary.errors
   local lost = errors.connect + errors.read + errors.write + errors.timeout
   io.write(string.format("\n%s %d %d %d %d %d %d %d %q\n", "RESULT", summary.requests, summary.duration,
      latency:percentile(50), latency:percentile(99), refused, wrong, lost, sample))
end
