// The words for operations, in messages, figures and JSON: "insert", "lookup" ... (A header of its own: few need it.)
#pragma once

#include <string_view>

#include "zht/types.h"

namespace zht {

std::string_view name_of(OpKind kind);  // "unknown" for what is none

}  // namespace zht
