// A client's operations as Asio asynchronous operations: any completion token, the handler's executor and cancellation slot.
//
//   asio::awaitable<void> greet(zht::Client& client) {
//     zht::Outcome found = co_await zht::async_call(client, zht::Operation::lookup("greeting"), asio::use_awaitable);
//     if (found.ok()) std::cout << found.value << "\n";
//   }
//
// The handler runs on its associated executor, never inside async_call. Cancelling through its slot ends the operation as
// Client::cancel says. The client outlives the operation. Needs Asio (standalone) where it is included, and nowhere else.
#pragma once

#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/cancellation_type.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "zht/client.h"

namespace zht {
namespace asio_detail {

// What must stay until the handler has run: it, and its executor's being busy.
template <typename Handler>
struct Pending {
  explicit Pending(Handler h) : handler(std::move(h)), work(asio::make_work_guard(handler)), slot(asio::get_associated_cancellation_slot(handler)) {}
  Handler handler;
  asio::executor_work_guard<asio::associated_executor_t<Handler>> work;
  asio::associated_cancellation_slot_t<Handler> slot;
};

template <typename Handler, typename Answer>
void deliver(std::shared_ptr<Pending<Handler>> pending, Answer answer) {
  const auto executor = pending->work.get_executor();
  asio::post(executor, [pending = std::move(pending), answer = std::move(answer)]() mutable {
    if (pending->slot.is_connected()) pending->slot.clear();
    Handler handler = std::move(pending->handler);
    auto work = std::move(pending->work);
    pending.reset();  // its memory is free for what the handler begins
    std::move(handler)(std::move(answer));
  });
}

}  // namespace asio_detail

// One operation; the handler's signature is void(zht::Outcome). timeout 0: the client's default.
template <typename Token>
auto async_call(Client& client, Operation operation, Token&& token, Millis timeout = {}) {
  return asio::async_initiate<Token, void(Outcome)>(
      [&client, timeout](auto handler, Operation begun) {
        using Handler = decltype(handler);
        auto pending = std::make_shared<asio_detail::Pending<Handler>>(std::move(handler));
        auto slot = pending->slot;
        const RequestNumber request = client.start(
            std::move(begun),
            [pending = std::move(pending)](Outcome outcome) { asio_detail::deliver<Handler>(pending, std::move(outcome)); }, timeout);
        if (slot.is_connected())
          slot.assign([&client, request](asio::cancellation_type type) {
            if (type != asio::cancellation_type::none) client.cancel(request);
          });
      },
      token, std::move(operation));
}

// Many at once (Client::submit_all); the handler's signature is void(std::vector<zht::Outcome>).
template <typename Token>
auto async_call_all(Client& client, std::vector<Operation> operations, Token&& token, Millis timeout = {}) {
  return asio::async_initiate<Token, void(std::vector<Outcome>)>(
      [&client, timeout](auto handler, std::vector<Operation> begun) {
        using Handler = decltype(handler);
        auto pending = std::make_shared<asio_detail::Pending<Handler>>(std::move(handler));
        client.submit_all(
            std::move(begun),
            [pending = std::move(pending)](std::vector<Outcome> outcomes) { asio_detail::deliver<Handler>(pending, std::move(outcomes)); },
            timeout);
      },
      token, std::move(operations));
}

}  // namespace zht
