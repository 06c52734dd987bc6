#include "zht/node.h"

#include "zht/server/node.h"
#include "zht/support/paths.h"

namespace zht {
namespace {

Result<server::Settings> settings_of(const NodeOptions& options) {
  server::Settings settings;
  settings.embedded = settings.mapped = true;
  settings.in_memory = options.data_folder.empty();
  settings.unix_sockets = options.local_socket;
  if (settings.in_memory && options.local_socket)
    return fail(Code::invalid, "local_socket needs a data_folder, which is where others look for it");
  if (!settings.in_memory) {
    TRY_LET(folder, support::absolute_path(options.data_folder));
    settings.data = folder;
  }
  if (options.instances > 1024) return fail(Code::invalid, "instances is ", options.instances, "; at most 1024");
  if (options.partitions > (1u << 20)) return fail(Code::invalid, "partitions is ", options.partitions, "; at most 1048576");
  if (options.sync_interval.count() <= 0)
    return fail(Code::invalid, "sync_interval is ", options.sync_interval.count(), " ms; it is at least 1");
  if (options.max_value_size == 0 || options.max_value_size > (std::size_t{32} << 20))
    return fail(Code::invalid, "max_value_size is ", options.max_value_size, " bytes; 1 to 32 MiB");
  settings.listen = options.listen;
  settings.resp = options.resp;
  settings.insecure = options.insecure;
  settings.instances = options.instances;
  settings.partitions = options.partitions;
  settings.max_value_size = options.max_value_size;
  settings.sync_interval = options.sync_interval;
  switch (options.durability) {
    case NodeOptions::Durability::none: settings.durability = "none"; break;
    case NodeOptions::Durability::interval: settings.durability = "interval"; break;
    case NodeOptions::Durability::always: settings.durability = "always"; break;
  }
  if (settings.in_memory) settings.durability = "none";
  return settings;
}

}  // namespace

Result<std::unique_ptr<Node>> Node::start(NodeOptions options) {
  TRY_LET(settings, settings_of(options));
  std::unique_ptr<Node> node(new Node);
  add_general_procedures(node->procedures_);
  if (options.add_procedures != nullptr) options.add_procedures(node->procedures_);
  TRY_LET(started, server::Node::start(settings, node->procedures_));
  node->node_ = std::move(started);
  node->node_->run_embedded();
  return node;
}

Node::~Node() = default;

std::unique_ptr<Client> Node::client() { return node_->client(); }
const std::string& Node::listen() const { return node_->tcp(); }
const std::string& Node::resp() const { return node_->resp(); }

}  // namespace zht
