#include "tests/sim/words.h"

#include <sstream>

namespace zht::sim {

using namespace replication;

std::vector<std::string> words_of(const PeerMessage& message) {
  std::vector<std::string> lines;
  const auto stamp = [](base::Time time) { return time.time_since_epoch().count() / 1000; };
  const auto line = [&](const auto&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    lines.push_back(std::move(out).str());
  };
  const auto n = [](PartitionId partition) { return static_cast<std::uint32_t>(partition); };
  line("beacon ", stamp(message.beacon), ", answer to ", stamp(message.answered), " with ", message.departures.size(), " departures");
  for (const Append& one : message.appends)
    line("  append to ", n(one.partition), " in ", number(one.epoch), ": after ", one.previous.sequence, ", ", one.entries.size(),
         " entries of ", one.end);
  for (const Ack& one : message.acks)
    line("  ack of ", n(one.partition), " in ", number(one.epoch), ": verdict ", static_cast<int>(one.verdict), " match ", one.match,
         " hint ", one.hint.sequence);
  for (const SnapshotPiece& one : message.pieces)
    line("  snapshot ", one.id, " piece ", one.index, one.last ? ", the last" : "");
  for (const SnapshotAck& one : message.piece_acks) line("  snapshot ", one.id, ", waits for piece ", one.next);
  return lines;
}

}  // namespace zht::sim
