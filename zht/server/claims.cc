#include "zht/server/claims.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "zht/support/paths.h"

namespace zht::server {

using base::Code;
using base::fail;
using base::Result;

Result<Claims> Claims::open(const std::string& folder, std::uint64_t cluster) {
  Claims claims;
  claims.cluster_ = cluster;
  if (folder.empty()) return claims;
  claims.path_ = folder + "/uids.json";
  struct stat there {};
  if (::stat(claims.path_.c_str(), &there) != 0) return claims;
  TRY_LET(text, support::read_file(claims.path_));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const bool whole = json.is_object() && json.contains("cluster") && json["cluster"].is_number_unsigned() && json.contains("nodes") &&
                     json["nodes"].is_object();
  if (!whole)
    return fail(Code::corrupt, claims.path_, " does not say who the cluster's nodes are; remove it, and the others will tell");
  if (json["cluster"].get<std::uint64_t>() != cluster) return claims;
  for (const auto& [number, uid] : json["nodes"].items())
    if (uid.is_number_unsigned()) claims.uids_[std::strtoull(number.c_str(), nullptr, 10)] = uid.get<std::uint64_t>();
  return claims;
}

Result<std::uint64_t> Claims::claim(std::uint64_t number, std::uint64_t uid) {
  const auto [known, fresh] = uids_.try_emplace(number, uid);
  if (!fresh || path_.empty()) return known->second;
  nlohmann::json nodes = nlohmann::json::object();
  for (const auto& [one, its] : uids_) nodes[std::to_string(one)] = its;
  const nlohmann::json json = {{"cluster", cluster_}, {"nodes", std::move(nodes)}};
  if (auto saved = support::write_file_atomically(path_, json.dump(2) + "\n"); !saved) {
    uids_.erase(number);
    return std::move(saved).error();
  }
  return uid;
}

std::uint64_t Claims::of(std::uint64_t number) const {
  const auto known = uids_.find(number);
  return known == uids_.end() ? 0 : known->second;
}

FirstStart::FirstStart(std::size_t nodes, std::uint64_t self, std::uint64_t uid) : witnesses_(std::min(nodes, kWitnesses)), uid_(uid) {
  if (self <= witnesses_) agreed_.insert(self);
}

void FirstStart::answered(std::uint64_t node, std::uint64_t uid, base::Time now) {
  if (uid != uid_) lost_ = true;
  if (lost_ || node < 1 || node > witnesses_) return;
  const bool before = is_majority();
  agreed_.insert(node);
  if (!before && is_majority()) agreed_at_ = now;
}

FirstStart::Verdict FirstStart::verdict(base::Time now) const {
  if (lost_) return Verdict::lost;
  if (agreed_.size() == witnesses_) return Verdict::begins;
  return is_majority() && now - agreed_at_ >= kPatience ? Verdict::begins : Verdict::waits;
}

std::vector<std::uint64_t> FirstStart::awaited() const {
  std::vector<std::uint64_t> nodes;
  for (std::uint64_t node = 1; node <= witnesses_; node++)
    if (!agreed_.contains(node)) nodes.push_back(node);
  return nodes;
}

}  // namespace zht::server
