#include "zht/server/node_parts.h"

#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <future>
#include <limits>

#include "zht/server/memory.h"
#include "zht/support/paths.h"

// The instances of a node: made, told the timing, recovered side by side.
namespace zht::server {

using base::Result;

replication::Timing Node::Parts::timing() const {
  replication::Timing timing;
  const auto part = [&](int percent) { return settings.failover * percent / 100; };
  timing.grace = settings.failover;
  timing.lease = part(87);
  timing.beacon = part(17);
  timing.drop = part(65);
  timing.retry = part(26);
  timing.copies = settings.replicas;
  timing.sync_copies = settings.sync_replicas;
  return timing;
}

// A store that cannot be read: what its owner can do about it depends on whether others have what is in it.
Error Node::Parts::with_advice(Error error) const {
  if (error.code != base::Code::corrupt && error.code != base::Code::invalid) return error;
  if (identity.founding.nodes.size() > 1 || !managers.empty())
    error.message += "; the other nodes of the cluster have copies of what this one held: move " + settings.data + " away, start it with --join "
                     "ANOTHER:PORT and an empty data folder, and remove the old one when `zht status` says that data is safe";
  else
    error.message += "; nothing was changed. `novoht verify " + settings.data + "/store/...` shows what is damaged, `novoht dump` what can be "
                     "read; keep a copy of the folder before you repair or restore anything";
  return error;
}

Result<void> Node::Parts::open_instances(const Procedures& procedures) {
  TRY_LET(durability, core::parse_durability(settings.durability));
  const std::uint32_t first = first_instance(identity.number);
  // A node inside another program takes what that gives it.
  if (!settings.embedded || settings.memory_limit != 0) memory_limit = memory_share(settings.memory_limit, available_memory());
  own.resize(identity.instance_count);
  std::string boot;
  if (const auto text = support::read_file("/proc/sys/kernel/random/boot_id")) boot = text->substr(0, text->find('\n'));
  for (std::uint32_t i = 0; i < identity.instance_count; i++) {
    own[i].set_id(first + i);
    own[i].mutable_member()->set_node(identity.member.node);
    own[i].mutable_member()->set_incarnation(identity.member.incarnation);
    InstanceThread::Options options;
    options.core.id = InstanceId{first + i};
    options.core.durability = durability;
    options.core.max_value_size = settings.max_value_size;
    options.core.segment_size = settings.segment_size;
    options.core.clustered = !settings.in_memory;
    options.core.incarnation = identity.member.incarnation;
    options.core.outdated = cluster->outdated();
    options.core.boot = boot;
    options.core.timing = timing();
    options.core.home = node_of;
    if (memory_limit != 0) share_out(memory_limit, identity.instance_count, options.core);
    if (settings.in_memory) options.core.limits.memory = 0;  // there is no disk for values to go to
    options.views = cluster->views();
    options.cluster = identity.cluster;
    options.tell_manager = [this](InstanceNews news) {
      loop.post([this, news = std::move(news)] {
        cluster->tick(clock.now());
        for (const replication::Wish& one : news.wishes) cluster->wish(one);
        for (const replication::ViewNews& one : news.views) cluster->adopt(one);
        pump_soon();
      });
    };
    // A log that is not there need not be compacted either.
    if (settings.in_memory) options.core.log_floor = std::numeric_limits<std::uint64_t>::max();
    options.folder = (settings.in_memory ? "memory" : settings.data) + "/store/" + std::to_string(i);
    options.sync_interval = settings.sync_interval;
    options.max_connections = settings.max_connections;
    options.busy_poll = settings.busy_poll;
    options.opener = opener;
    instances.push_back(std::make_unique<InstanceThread>(std::move(options), *files, clock, procedures, table, pool));
  }
  if (!settings.in_memory) TRY(support::make_private_folder(settings.data + "/store"));
  // Recovery reads whole logs; the instances do it side by side.
  std::vector<std::future<Result<void>>> opening;
  for (auto& instance : instances)
    opening.push_back(std::async(std::launch::async, [&instance] { return instance->open(); }));
  std::optional<Error> failed;
  for (auto& one : opening)
    if (auto opened = one.get(); !opened && !failed) failed = opened.error();
  if (failed) return with_advice(*std::move(failed));
  tell_verdict();
  return {};
}

// Whether the folder is known to be no older copy of itself, or to be one.
void Node::Parts::tell_verdict() {
  for (auto& instance : instances)
    instance->with_instance([&](core::Instance& core) {
      core.replicated_store().set_outdated(cluster->outdated());
      if (cluster->outdated() == identity.member.incarnation) core.replicator().distrust();
      core.replicator().set_may_vouch(cluster->may_vouch());
    });
  if (cluster->outdated() != identity.member.incarnation) return;
  logger().error("this data folder is an older copy of itself, put back: it is used no more than an empty one where others have what it held",
                 {{"data", settings.data}, {"because", cluster->older_copy()}});
  introduce();
}

// How far this folder is, and how far others' were; on another thread, for the disk may be slow.
void Node::Parts::remember(std::string text) {
  asio::post(pool, [this, text = std::move(text)] {
    const auto saved = support::write_file_atomically(settings.data + "/sightings", text);
    loop.post([this, durably = saved.has_value()] {
      cluster->remembered(durably);
      pump_soon();
    });
  });
}

}  // namespace zht::server
