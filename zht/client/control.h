// Control requests, one connection each: for tools, and for finding the membership table.
#pragma once

#include <memory>
#include <vector>

#include "zht/client.h"
#include "zht/client/channel.h"
#include "zht/client/table.h"

namespace zht::wire {
class RecoverReply;
class RecoverRequest;
class Status;
}

namespace zht::client {

// From the first of `addresses` that answers. unavailable names all that did not.
Result<std::shared_ptr<const Table>> fetch_table(const std::vector<Address>& addresses, Millis timeout);
Result<std::shared_ptr<const Table>> fetch_table(const Address& address, Millis timeout);
Result<wire::Status> fetch_status(const Address& manager, Millis timeout);
// Asks the node to end; returns when it has agreed to.
Result<void> ask_to_stop(const Address& manager, Millis timeout);
// Everything acknowledged before survives a loss of power when this returns.
Result<void> ask_to_sync(const Address& manager, Millis timeout);
// The node is emptied onto the others and then ends. invalid, conflict: it cannot leave.
Result<void> ask_to_leave(const Address& manager, Millis timeout);
// Wishes that `instance` leads these partitions; it takes its time, and is forgotten where another change comes in between.
Result<void> ask_to_migrate(const Address& manager, const std::vector<std::uint32_t>& partitions, std::uint32_t instance, Millis timeout);
// What the node has of partitions that nobody serves, and what of `request` it refused to do.
Result<wire::RecoverReply> ask_to_recover(const Address& manager, const wire::RecoverRequest& request, Millis timeout);
// Tells the manager that the services folder has changed, so that it need not find out by itself.
Result<void> tell_services_changed(const Address& manager, Millis timeout);

}  // namespace zht::client
