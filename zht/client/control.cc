#include "zht/client/control.h"

#include "zht/wire/zht.pb.h"

namespace zht::client {
namespace {

Result<std::string> ask(const Address& address, wire::ControlKind kind, const std::string& body, Millis timeout) {
  const base::Time deadline = base::SystemClock().now() + timeout;
  TRY_LET(channel, Channel::open(address, deadline));
  auto answer = channel.control(kind, body, deadline);
  if (!answer) return base::add_context(address.text(), std::move(answer).error());
  return answer;
}

}  // namespace

Result<std::shared_ptr<const Table>> fetch_table(const Address& address, Millis timeout) {
  TRY_LET(answer, ask(address, wire::ControlKind::membership, wire::MembershipRequest().SerializeAsString(), timeout));
  return parse_table(answer, address.is_unix(), address.opener);
}

Result<std::shared_ptr<const Table>> fetch_table(const std::vector<Address>& addresses, Millis timeout) {
  Error all{Code::unavailable, ""};
  for (const Address& address : addresses) {
    auto table = fetch_table(address, timeout);
    if (table) return table;
    if (table.code() != Code::unavailable) return std::move(table).error();
    all.message += (all.message.empty() ? "nobody answers: " : "; ") + table.error().message;
  }
  return all;
}

Result<wire::Status> fetch_status(const Address& manager, Millis timeout) {
  TRY_LET(answer, ask(manager, wire::ControlKind::status, wire::StatusRequest().SerializeAsString(), timeout));
  wire::Status status;
  if (!status.ParseFromString(answer)) return fail(Code::corrupt, manager.text(), ": a status that cannot be read");
  return status;
}

Result<void> ask_to_stop(const Address& manager, Millis timeout) {
  TRY(ask(manager, wire::ControlKind::stop, wire::StopRequest().SerializeAsString(), timeout));
  return {};
}
Result<void> ask_to_sync(const Address& manager, Millis timeout) {
  TRY(ask(manager, wire::ControlKind::sync, {}, timeout));
  return {};
}
Result<void> ask_to_leave(const Address& manager, Millis timeout) {
  TRY(ask(manager, wire::ControlKind::leave, {}, timeout));
  return {};
}
Result<void> ask_to_migrate(const Address& manager, const std::vector<std::uint32_t>& partitions, std::uint32_t instance, Millis timeout) {
  wire::MigrateRequest request;
  request.mutable_partitions()->Add(partitions.begin(), partitions.end());
  request.set_to(instance);
  TRY(ask(manager, wire::ControlKind::migrate, request.SerializeAsString(), timeout));
  return {};
}
Result<wire::RecoverReply> ask_to_recover(const Address& manager, const wire::RecoverRequest& request, Millis timeout) {
  TRY_LET(answer, ask(manager, wire::ControlKind::recover, request.SerializeAsString(), timeout));
  wire::RecoverReply reply;
  if (!reply.ParseFromString(answer)) return fail(Code::corrupt, manager.text(), ": an answer that cannot be read");
  return reply;
}
Result<void> tell_services_changed(const Address& manager, Millis timeout) {
  TRY(ask(manager, wire::ControlKind::services_changed, {}, timeout));
  return {};
}

}  // namespace zht::client
