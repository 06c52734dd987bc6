// The procedures that the store runs for Fabriq: what messages.h lists. `zht serve` registers them at start.
#pragma once

#include "zht/procedure.h"

namespace fabriq {

void add_procedures(zht::Procedures& procedures);

}  // namespace fabriq
