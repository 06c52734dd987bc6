#include "novoht/core/views.h"

#include "novoht/base/check.h"

namespace novoht {

std::uint64_t ValueView::fragment_end(std::uint32_t index) const {
  CHECK(index < fragment_count_, "fragment_end(): no such fragment");
  return static_cast<const core::Entry*>(entry_)->fragment_end(index);
}
Result<void> ValueView::read(std::uint64_t offset, std::uint64_t size, std::string& out) const {
  return static_cast<const core::Entry*>(entry_)->read(offset, size, static_cast<const core::ColdValues*>(cold_), out);
}

}  // namespace novoht
