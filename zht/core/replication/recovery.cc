#include "zht/core/replication/recovery.h"

#include <algorithm>
#include <tuple>

namespace zht::replication {

Prognosis prognosis(const View& view, std::span<const CopyReport> reports, const std::function<bool(InstanceId)>& gone) {
  Prognosis made;
  const auto rank = [&](const CopyReport& one) {
    return std::tuple(one.end.epoch, one.end.sequence, one.follows, ~static_cast<std::uint32_t>(one.self.instance));
  };
  for (std::size_t i = 0; i < reports.size(); i++) {
    const CopyReport& one = reports[i];
    made.known_end = std::max({made.known_end, one.end.sequence, one.known_end});
    made.known_commit = std::max({made.known_commit, one.commit, one.known_commit});
    if (one.whole && (!made.best || rank(reports[*made.best]) < rank(one))) made.best = i;
  }
  // A copy that has restarted does not come back where one of the others shows that it lacks something.
  Position most;
  for (Member one : view.sync)
    for (const CopyReport& report : reports)
      if (report.self.instance == one.instance && report.self.incarnation > one.incarnation) most = std::max(most, report.end);
  bool leads = false, returns = false, longest = false;
  for (Member one : view.sync) {
    const auto found = std::find_if(reports.begin(), reports.end(), [&](const CopyReport& report) {
      return report.self.instance == one.instance && report.self.incarnation >= one.incarnation;
    });
    if (found == reports.end()) {
      if (!gone(one.instance)) made.awaited.push_back(one);
    } else if (found->self == one) {
      leads = leads || one == view.primary;
      returns = true;
    } else if (found->origin.since > one.incarnation) {
      made.emptied.push_back(one);
    } else {
      const bool lacks = found->end < most || found->end.epoch > view.epoch;
      longest = longest || !lacks;
      returns = returns || (one.incarnation >= found->origin.sure && !lacks);
      made.back.push_back(one);
    }
  }
  // All have restarted: the longest log among them leads (Change::recover).
  const bool together = longest && made.back.size() + made.emptied.size() == view.sync.size();
  if (leads) made.outlook = Prognosis::Outlook::served;
  else if (returns || together) made.outlook = Prognosis::Outlook::returns;
  else if (!made.awaited.empty()) made.outlook = Prognosis::Outlook::waits;
  else made.outlook = Prognosis::Outlook::lost;
  return made;
}

}  // namespace zht::replication
