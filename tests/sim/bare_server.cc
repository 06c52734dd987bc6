#include "tests/sim/bare_server.h"

#include <array>

namespace zht::sim {
namespace {

std::uint64_t hash_of(const std::string& key) { return std::hash<std::string>()(key); }

}  // namespace

void BareServer::on_request(int from, const Request& request) {
  Replica* const replica = replicator_.find(PartitionId{request.partition});
  if (replica == nullptr || !replica->serves(request.epoch) || replicator_.failed()) return turn_away_(from, request);
  Serving& mine = serving(request.partition, *replica);
  PartitionTable& table = store_.table(PartitionId{request.partition});
  const auto found = table.cells.find(request.key);
  const Cell cell = found == table.cells.end() ? Cell{} : found->second;
  const Version need = replica->need_of(hash_of(request.key));
  Reply reply{request.client, request.sequence, request.epoch, Status::ok, cell.value, cell.version};

  if (!request.changes()) {
    reply.status = cell.value ? Status::ok : Status::not_found;
    if (request.verb == Verb::lookup || cell.version > request.after) return hold(*replica, from, reply, need, true);
    mine.watches.push_back({from, request});
    return;
  }
  // What was refused leaves no trace in the log: it is remembered for this epoch, and requests of an older one are turned
  // away above; so no late copy of a refused request can succeed.
  std::uint64_t& floor = mine.floors[request.client];
  floor = std::max(floor, request.floor);
  if (!defects_.has(Defect::no_retry_table)) {
    if (!defects_.has(Defect::forget_refusals)) {
      if (request.sequence <= floor) {
        reply.status = Status::expired;
        return hold(*replica, from, reply, 0, false);
      }
      if (const auto refused = mine.refused.find({request.client, request.sequence}); refused != mine.refused.end()) {
        Reply again = refused->second.first;
        again.epoch = request.epoch;
        return hold(*replica, from, again, refused->second.second, true);
      }
    }
    const auto session = table.sessions.find(request.client);
    if (session != table.sessions.end()) {
      if (request.sequence <= session->second.floor) {
        reply.status = Status::expired;
        return hold(*replica, from, reply, 0, false);
      }
      if (const auto result = session->second.results.find(request.sequence); result != session->second.results.end()) {
        reply.version = result->second;
        reply.value.reset();
        return hold(*replica, from, reply, reply.version, false);
      }
    }
  }
  if (request.verb == Verb::remove && !cell.value) reply.status = Status::not_found;
  if (request.verb == Verb::cswap && cell.value != request.expected) reply.status = Status::mismatch;
  if (reply.status != Status::ok) {
    mine.refused[{request.client, request.sequence}] = {reply, need};
    return hold(*replica, from, reply, need, true);
  }
  Resolved change{Resolved::Kind::insert, request.key, request.value, request.client, request.sequence, request.floor};
  if (request.verb == Verb::append) change.kind = Resolved::Kind::append;
  if (request.verb == Verb::remove) change.kind = Resolved::Kind::remove;
  const auto version = replica->append(encode(change), std::array{hash_of(request.key)});
  reply.value.reset();
  if (!version) {
    reply.status = Status::full;
    return hold(*replica, from, reply, 0, false);
  }
  reply.version = *version;
  hold(*replica, from, reply, *version, false);
  wake(request.partition, *replica, request.key, *version);
}

void BareServer::release(const replication::Released& one) {
  const auto found = waiting_.find(one.token);
  Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  if (!one.shown) waiting.reply.status = Status::retry;
  send_(waiting.client, waiting.reply);
}

void BareServer::drop_watches() {
  for (auto& [partition, serving] : serving_) {
    Replica* const replica = replicator_.find(PartitionId{partition});
    if (replica != nullptr && replica->role() == Replica::Role::primary && replica->view().epoch == serving.epoch) continue;
    for (const Serving::Watch& watch : std::exchange(serving.watches, {})) turn_away_(watch.client, watch.request);
  }
}

BareServer::Serving& BareServer::serving(std::uint32_t partition, Replica& replica) {
  Serving& mine = serving_[partition];
  if (mine.epoch != replica.view().epoch) {
    for (const Serving::Watch& watch : mine.watches) turn_away_(watch.client, watch.request);
    mine = {};
    mine.epoch = replica.view().epoch;
  }
  return mine;
}

void BareServer::hold(Replica& replica, int client, const Reply& reply, Version need, bool reads) {
  const std::uint64_t token = next_token_++;
  waiting_[token] = {client, reply};
  replica.hold({token, need, reads, {}});
}

void BareServer::wake(std::uint32_t partition, Replica& replica, const std::string& key, Version version) {
  Serving& mine = serving(partition, replica);
  const Cell& cell = store_.table(PartitionId{partition}).cells.at(key);
  std::vector<Serving::Watch> others;
  for (Serving::Watch& watch : mine.watches) {
    if (watch.request.key != key || version <= watch.request.after) {
      others.push_back(std::move(watch));
      continue;
    }
    Reply reply{watch.request.client, watch.request.sequence, watch.request.epoch, cell.value ? Status::ok : Status::not_found, cell.value, version};
    if (defects_.has(Defect::wake_uncommitted)) send_(watch.client, reply);
    else hold(replica, watch.client, reply, version, false);
  }
  mine.watches = std::move(others);
}

}  // namespace zht::sim
