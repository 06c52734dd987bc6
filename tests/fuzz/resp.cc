// What comes over a Redis connection: the parser in pieces of every size gives what it gives at once; each command is
// planned and its operations executed on a store in memory. Input: a byte for the size of the pieces, then the stream.
#include "tests/fuzz/fuzz.h"
#include "tests/support/local_client.h"
#include "zht/resp/commands.h"
#include "zht/resp/parser.h"

namespace {

using namespace zht;
using resp::Command;

constexpr std::size_t kMaxBulk = 4096, kMaxCommand = 16384;

std::vector<Command> commands_of(base::Bytes stream, std::size_t piece, bool& broken) {
  resp::Parser parser(kMaxBulk, kMaxCommand);
  std::vector<Command> commands;
  Command command;
  broken = false;
  while (!broken) {
    switch (parser.next(command)) {
      case resp::Parser::Step::command:
        CHECK(!command.empty(), "a command without a name");
        commands.push_back(command);
        break;
      case resp::Parser::Step::broken:
        broken = true;
        break;
      case resp::Parser::Step::more:
        if (stream.empty()) return commands;
        parser.feed(stream.substr(0, piece));
        stream.remove_prefix(std::min(piece, stream.size()));
    }
  }
  CHECK(!parser.error().empty(), "broken without a reason");
  return commands;
}

struct Store {
  Store() {
    add_general_procedures(procedures);
    resp::add_procedures(procedures);
    store = std::make_unique<testing_support::LocalStore>(procedures, 4);
    client = store->client();
  }
  Procedures procedures;
  std::unique_ptr<testing_support::LocalStore> store;
  std::unique_ptr<Client> client;
};

std::vector<Outcome> call(Client& client, resp::Plan& plan) {
  std::vector<Outcome> outcomes(plan.operations.size());
  for (std::size_t i = 0; i < outcomes.size(); i++) {
    if (plan.operations[i].kind == OpKind::callback) {
      outcomes[i].code = Code::timeout;
      continue;
    }
    client.submit(std::move(plan.operations[i]), [&outcomes, i](Outcome outcome) { outcomes[i] = std::move(outcome); });
  }
  return outcomes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const base::Bytes stream = fuzz::bytes_of(data + 1, size - 1);
  bool broken = false, broken_in_pieces = false;
  const auto whole = commands_of(stream, std::max<std::size_t>(1, stream.size()), broken);
  const auto in_pieces = commands_of(stream, 1 + data[0] % 32, broken_in_pieces);
  CHECK(broken == broken_in_pieces && whole == in_pieces, "pieces make a difference");
  static Store* store = nullptr;
  static int uses = 0;
  if (store == nullptr || ++uses == 5000) {
    delete store;
    store = new Store;
    uses = 0;
  }
  resp::Session session;
  std::vector<Command> todo(whole.rbegin(), whole.rend());
  for (int steps = 0; !todo.empty() && steps < 200; steps++) {
    Command command = std::move(todo.back());
    todo.pop_back();
    resp::Plan plan = resp::plan(session, std::move(command), store->client->partition_count());
    while (plan.next) {
      auto outcomes = call(*store->client, plan);
      plan = plan.next(outcomes);
    }
    std::string reply;
    resp::Reply out(reply, session.protocol);
    if (plan.render) {
      auto outcomes = call(*store->client, plan);
      plan.render(outcomes, {}, out);
    } else {
      out.raw(plan.reply);
    }
    CHECK(reply.ends_with("\r\n") && std::string_view("+-:$*_%").find(reply[0]) != std::string_view::npos,
          "no reply: " + reply);
    todo.insert(todo.end(), std::make_move_iterator(plan.follow.rbegin()), std::make_move_iterator(plan.follow.rend()));
  }
  return 0;
}
