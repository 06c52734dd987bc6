// Why nobody leads a partition, and what would help: out of its view and what every instance that answers reports of it. For the
// operator's tool, and for the operator in the simulator.
#pragma once

#include <functional>
#include <span>

#include "zht/core/replication/replica.h"

namespace zht::replication {

struct Prognosis {
  enum class Outlook : std::uint8_t {
    served,   // its primary lives
    returns,  // by itself, when a majority of keepers lives: a synchronous member may lead, or they recover together
    waits,    // for one of `awaited`: synchronous members of which nothing is heard
    lost,     // every synchronous member is gone for good or has lost its log: only Change::abandon helps
  };
  Outlook outlook = Outlook::waits;
  Members awaited;   // silent, not given up
  Members back;      // restarted, with a log that may lack its end: alone they do not lead
  Members emptied;   // restarted without the log they had
  std::optional<std::size_t> best;  // of the reports: the longest whole log
  // The furthest entry of which any report knows: that it was there, that it was committed. What was acknowledged later nobody
  // knows of.
  Version known_end = 0, known_commit = 0;
};

// `reports`: one for each instance that answers. `gone`: whether a person says that this instance will never be heard again.
Prognosis prognosis(const View& view, std::span<const CopyReport> reports, const std::function<bool(InstanceId)>& gone);

}  // namespace zht::replication
