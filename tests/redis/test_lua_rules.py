"""The rules in Lua are those of the C functions, for every input."""

import re

from support import rules
from support.redis_server import RedisServer

LOOP = """
local events, states, masks, found = %d, %d, %d, {}
for event = 0, events - 1 do
    for state = 0, states - 1 do
        local codes = {}
        for mask = 0, masks - 1 do
            local c = {}
            for place = 0, %d do
                c[place] = bit.band(mask, bit.lshift(1, place)) ~= 0
            end
            local was = state
            if event ~= %d and (state == 4 or state == 5) and c[%d] then
                was = 0
            end
            local verdict, effect, next = rule(event, was, %s)
            codes[mask + 1] = verdict + 16 * effect + 256 * (next + 1)
        end
        found[#found + 1] = table.concat(codes, ' ')
    end
end
return table.concat(found, ' ')
"""


def test_operations_are_decided_as_in_c_for_every_input():
    """Event, state and each of twelve conditions: 368,640 inputs, in the text
    that the daemon loads. An expired operation is absent for all but the
    reaper, as take() there has it."""
    text = rules.GENERATED_LUA.read_text()
    function = re.search(r"^local function rule\((.*?)\)\n.*?^end\n", text,
                         re.M | re.S)
    parameters = re.sub(r"\s+", "", function.group(1)).split(",")[2:]
    events, states, conditions = rules.names("operation")
    assert sorted(parameters) == sorted(conditions)
    script = function.group(0) + LOOP % (
        len(events), len(states), 1 << len(conditions), len(conditions) - 1,
        events.index("reap"), conditions.index("expired"),
        ", ".join("c[%d]" % conditions.index(name) for name in parameters))
    with RedisServer() as server:
        found = server.admin.eval(script, 0)
    if isinstance(found, bytes):
        found = found.decode()
    rules.compare("operation", [int(code) for code in found.split()])
