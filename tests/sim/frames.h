// The simulation's requests and replies as the frames that instances take and give.
#pragma once

#include <string>

#include "tests/sim/history.h"
#include "zht/procedure.h"
#include "zht/wire/frame.h"

namespace zht::sim {

inline constexpr std::uint64_t kWallMillis = 1'800'000'000'000;  // when a simulation begins, by the wall

// The key as it is stored: with a tag that puts it into `partition` of `count`.
std::string stored_key(const std::string& key, std::uint32_t partition, std::uint32_t count);
// `request`: the frame's number.
std::string encode(const Request& asked, std::uint64_t request, std::uint32_t partition_count);
// Nothing: a status that no instance may answer; `what` says which.
std::optional<Reply> decode(const Request& asked, const wire::Frame& frame, std::string& what);
// The client of an entry's note.
inline std::uint64_t client_of(std::uint64_t session) { return session & 0xffff; }
// "push": puts its argument behind the value; the whole of it is the result.
const Procedures& procedures();

}  // namespace zht::sim
