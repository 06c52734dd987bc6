// Redis commands: reading them whatever way they arrive, and answering them as Redis does.
#include <gtest/gtest.h>

#include "novoht/base/random.h"
#include "tests/support/local_client.h"
#include "zht/resp/commands.h"
#include "zht/resp/parser.h"

namespace zht::resp {
namespace {

using Command = std::vector<std::string>;

TEST(RespParserTest, ACommandMayArriveInAnyPieces) {
  const std::string bytes = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\nPING\r\n*0\r\n*1\r\n$4\r\nQUIT\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); piece++) {
    Parser parser(100);
    std::vector<Command> seen;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      parser.feed(std::string_view(bytes).substr(at, piece));
      Command command;
      while (parser.next(command) == Parser::Step::command) seen.push_back(command);
    }
    EXPECT_EQ(seen, (std::vector<Command>{{"SET", "k", "a\r\nb"}, {"PING"}, {"QUIT"}})) << "in pieces of " << piece;
    EXPECT_EQ(parser.buffered(), 0u);
  }
}

TEST(RespParserTest, InlineWordsMayBeQuoted) {
  Parser parser(100);
  parser.feed("set  k \"two words\\n\" 'x'\r\n");
  Command command;
  ASSERT_EQ(parser.next(command), Parser::Step::command);
  EXPECT_EQ(command, (Command{"set", "k", "two words\n", "x"}));
}

TEST(RespParserTest, WhatIsNoCommandBreaksTheConnection) {
  for (const char* bytes : {"*x\r\n", "*1\r\nGET\r\n", "*1\r\n$-1\r\n", "*1\r\n$101\r\n", "*1\r\n$1\r\nabc", "*999999999\r\n", "get \"k\r\n"}) {
    Parser parser(100);
    parser.feed(bytes);
    Command command;
    EXPECT_EQ(parser.next(command), Parser::Step::broken) << bytes;
    EXPECT_FALSE(parser.error().empty());
    parser.feed("PING\r\n");
    EXPECT_EQ(parser.next(command), Parser::Step::broken) << "broken for good";
  }
  Parser endless(100);
  endless.feed(std::string(100'000, 'x'));
  Command command;
  EXPECT_EQ(endless.next(command), Parser::Step::broken) << "a line without an end";
}

TEST(RespParserTest, RandomBytesHarmNothing) {
  base::Random random(3);
  for (int round = 0; round < 2000; round++) {
    Parser parser(1000);
    std::string bytes;
    for (std::uint64_t n = random.below(200); n > 0; n--) bytes += "*$0123456789\r\nab\"' "[random.below(19)];
    parser.feed(bytes);
    Command command;
    while (parser.next(command) == Parser::Step::command) EXPECT_LE(command.size(), bytes.size());
  }
}

struct RespCommandTest : testing::Test {
  Procedures procedures = [] {
    Procedures made;
    add_general_procedures(made);
    return made;
  }();
  testing_support::LocalStore store{procedures};
  std::unique_ptr<Client> client = store.client();

  std::string run(const Command& command) {
    Plan made = plan(command, client->partition_count(), [] { return std::string("info"); });
    if (!made.render) return made.reply;
    std::vector<Outcome> outcomes;
    for (Operation& operation : made.operations)
      client->submit(std::move(operation), [&](Outcome outcome) { outcomes.push_back(std::move(outcome)); }, made.timeout);
    std::string out;
    made.render(outcomes, out);
    return out;
  }
};

TEST_F(RespCommandTest, StringsAsRedisHasThem) {
  EXPECT_EQ(run({"get", "k"}), "$-1\r\n");
  EXPECT_EQ(run({"SET", "k", "v"}), "+OK\r\n");
  EXPECT_EQ(run({"GET", "k"}), "$1\r\nv\r\n");
  EXPECT_EQ(run({"SET", "k", "w", "NX"}), "$-1\r\n");
  EXPECT_EQ(run({"SET", "k", "w", "xx"}), "+OK\r\n");
  EXPECT_EQ(run({"SET", "none", "w", "XX"}), "$-1\r\n");
  EXPECT_EQ(run({"SETNX", "k", "x"}), ":0\r\n");
  EXPECT_EQ(run({"APPEND", "k", "abc"}), ":4\r\n");
  EXPECT_EQ(run({"STRLEN", "k"}), ":4\r\n");
  EXPECT_EQ(run({"STRLEN", "none"}), ":0\r\n");
  EXPECT_EQ(run({"GETRANGE", "k", "1", "2"}), "$2\r\nab\r\n");
  EXPECT_EQ(run({"GETRANGE", "k", "-2", "-1"}), "$2\r\nbc\r\n");
  EXPECT_EQ(run({"GETRANGE", "k", "3", "1"}), "$0\r\n\r\n");
  EXPECT_EQ(run({"EXISTS", "k", "none", "k"}), ":2\r\n");
  EXPECT_EQ(run({"TYPE", "k"}), "+string\r\n");
  EXPECT_EQ(run({"DEL", "k", "none"}), ":1\r\n");
  EXPECT_EQ(run({"INCR", "n"}), ":1\r\n");
  EXPECT_EQ(run({"DECRBY", "n", "5"}), ":-4\r\n");
  EXPECT_EQ(client->lookup("n")->value, "-4") << "the keys every client sees";
}

TEST_F(RespCommandTest, SeveralKeys) {
  EXPECT_EQ(run({"MSET", "{t}a", "1", "{t}b", "2"}), "+OK\r\n");
  EXPECT_EQ(run({"MGET", "{t}a", "{t}x", "{t}b"}), "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n");
  EXPECT_EQ(run({"MSET", "a", "1", "b", "2", "c", "3", "d", "4"}).substr(0, 10), "-CROSSSLOT");
}

TEST_F(RespCommandTest, KeysExpire) {
  EXPECT_EQ(run({"SET", "k", "v", "PX", "100"}), "+OK\r\n");
  store.advance(std::chrono::milliseconds(150));
  EXPECT_EQ(run({"GET", "k"}), "$-1\r\n");
}

TEST_F(RespCommandTest, TheStoresOwn) {
  ASSERT_TRUE(client->insert("k", "old"));
  EXPECT_EQ(run({"ZHT.CSWAP", "k", "other", "new"}), "$-1\r\n");
  EXPECT_EQ(run({"ZHT.CSWAP", "k", "old", "new"}), ":2\r\n");
  EXPECT_EQ(run({"ZHT.VERSION", "k"}), ":2\r\n");
  EXPECT_EQ(run({"ZHT.CALLBACK", "k", "10", "AFTER", "1"}), "*2\r\n:2\r\n$3\r\nnew\r\n");
}

TEST_F(RespCommandTest, MistakesAreNamed) {
  EXPECT_EQ(run({"NOSUCH"}), "-ERR unknown command 'NOSUCH'\r\n");
  EXPECT_EQ(run({"GET"}), "-ERR wrong number of arguments for 'GET' command\r\n");
  EXPECT_EQ(run({"SET", "k", "v", "EX", "soon"}), "-ERR value is not an integer or out of range\r\n");
  EXPECT_EQ(run({"GET", ""}).substr(0, 4), "-ERR");
  EXPECT_EQ(run({"SELECT", "3"}), "-ERR DB index is out of range\r\n");
  ASSERT_TRUE(client->insert("word", "w"));
  EXPECT_EQ(run({"INCR", "word"}).substr(0, 4), "-ERR");
}

}  // namespace
}  // namespace zht::resp
