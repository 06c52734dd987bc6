// Redis commands: reading them whatever way they arrive, and answering them as Redis does.
#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <sstream>

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
    Parser parser(100, 1000);
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
  Parser parser(100, 1000);
  parser.feed("set  k \"two words\\n\" 'x'\r\n");
  Command command;
  ASSERT_EQ(parser.next(command), Parser::Step::command);
  EXPECT_EQ(command, (Command{"set", "k", "two words\n", "x"}));
}

TEST(RespParserTest, WhatIsNoCommandBreaksTheConnection) {
  for (const char* bytes : {"*x\r\n", "*1\r\nGET\r\n", "*1\r\n$-1\r\n", "*1\r\n$101\r\n", "*1\r\n$1\r\nabc",
                            "*999999999\r\n", "get \"k\r\n"}) {
    Parser parser(100, 1000);
    parser.feed(bytes);
    Command command;
    EXPECT_EQ(parser.next(command), Parser::Step::broken) << bytes;
    EXPECT_FALSE(parser.error().empty());
    parser.feed("PING\r\n");
    EXPECT_EQ(parser.next(command), Parser::Step::broken) << "broken for good";
  }
  Parser endless(100, 1000);
  endless.feed(std::string(100'000, 'x'));
  Command command;
  EXPECT_EQ(endless.next(command), Parser::Step::broken) << "a line without an end";
}

TEST(RespParserTest, RandomBytesHarmNothing) {
  base::Random random(3);
  for (int round = 0; round < 2000; round++) {
    Parser parser(1000, 10'000);
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
    resp::add_procedures(made);
    return made;
  }();
  testing_support::LocalStore store{procedures};
  std::unique_ptr<Client> client = store.client();

  Session session;

  // As the gateway does it, one command after the other.
  std::string run(const Command& command) {
    std::string out;
    std::deque<Command> todo = {command};
    while (!todo.empty()) {
      Plan made = plan(session, todo.front(), client->partition_count());
      todo.pop_front();
      while (made.next) {
        auto outcomes = call(made);
        made = made.next(outcomes);
      }
      Reply reply(out, session.protocol);
      if (made.render) {
        auto outcomes = call(made);
        made.render(outcomes, facts, reply);
      } else {
        reply.raw(made.reply);
      }
      todo.insert(todo.begin(), made.follow.begin(), made.follow.end());
    }
    return out;
  }
  std::vector<Outcome> call(Plan& made) {
    std::vector<Outcome> outcomes(made.operations.size());
    for (std::size_t i = 0; i < outcomes.size(); i++)
      client->submit(
          std::move(made.operations[i]), [&outcomes, i](Outcome outcome) { outcomes[i] = std::move(outcome); },
          made.timeout);
    return outcomes;
  }
  Facts facts;
  void advance(int milliseconds) { store.advance(std::chrono::milliseconds(milliseconds)); }
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
  EXPECT_EQ(run({"MSET", "a", "1", "b", "2", "c", "3", "d", "4"}), "+OK\r\n")
      << "in several partitions: each by itself";
  EXPECT_EQ(run({"MGET", "a", "d"}), "*2\r\n$1\r\n1\r\n$1\r\n4\r\n");
  EXPECT_EQ(run({"MSETNX", "{t}c", "1", "{t}a", "2"}), ":0\r\n");
  EXPECT_EQ(run({"GET", "{t}c"}), "$-1\r\n") << "all or nothing";
  EXPECT_EQ(run({"MSETNX", "{t}c", "1", "{t}d", "2"}), ":1\r\n");
  EXPECT_EQ(run({"MSETNX", "x", "1", "y", "2", "z", "3", "w", "4"}).substr(0, 10), "-CROSSSLOT");
  EXPECT_EQ(run({"MSET", "a", "1", "b"}), "-ERR wrong number of arguments for 'mset' command\r\n");
  EXPECT_EQ(run({"RENAME", "{t}a", "{t}z"}), "+OK\r\n");
  EXPECT_EQ(run({"RENAME", "{t}a", "{t}z"}), "-ERR no such key\r\n");
  EXPECT_EQ(run({"COPY", "{t}z", "{t}b"}), ":0\r\n");
  EXPECT_EQ(run({"COPY", "{t}z", "{t}b", "REPLACE"}), ":1\r\n");
  EXPECT_EQ(run({"GET", "{t}b"}), "$1\r\n1\r\n");
}

TEST_F(RespCommandTest, SetHasAllItsOptions) {
  EXPECT_EQ(run({"SET", "k", "1", "GET"}), "$-1\r\n");
  EXPECT_EQ(run({"SET", "k", "2", "XX", "GET", "EX", "10"}), "$1\r\n1\r\n");
  EXPECT_EQ(run({"TTL", "k"}), ":10\r\n");
  EXPECT_EQ(run({"SET", "k", "3", "KEEPTTL"}), "+OK\r\n");
  EXPECT_EQ(run({"PTTL", "k"}), ":10000\r\n");
  EXPECT_EQ(run({"SET", "k", "4", "NX", "GET"}), "$1\r\n3\r\n");
  EXPECT_EQ(run({"GET", "k"}), "$1\r\n3\r\n") << "NX: it was there";
  EXPECT_EQ(run({"SET", "k", "5"}), "+OK\r\n");
  EXPECT_EQ(run({"TTL", "k"}), ":-1\r\n");
  for (const Command& wrong : {Command{"SET", "k", "v", "EX"},
                               {"SET", "k", "v", "EX", "1", "PX", "1"},
                               {"SET", "k", "v", "NX", "XX"},
                               {"SET", "k", "v", "KEEPTTL", "EX", "1"},
                               {"SET", "k", "v", "WHAT"}})
    EXPECT_EQ(run(wrong), "-ERR syntax error\r\n");
  EXPECT_EQ(run({"SET", "k", "v", "PX", "0"}), "-ERR invalid expire time in 'set' command\r\n");
  EXPECT_EQ(run({"SETEX", "k", "-1", "v"}), "-ERR invalid expire time in 'setex' command\r\n");
  EXPECT_EQ(run({"GETSET", "k", "6"}), "$1\r\n5\r\n");
  EXPECT_EQ(run({"GETDEL", "k"}), "$1\r\n6\r\n");
  EXPECT_EQ(run({"GETDEL", "k"}), "$-1\r\n");
}

TEST_F(RespCommandTest, TimesToLiveAreReadAndChanged) {
  EXPECT_EQ(run({"TTL", "k"}), ":-2\r\n");
  EXPECT_EQ(run({"EXPIRE", "k", "5"}), ":0\r\n");
  run({"SET", "k", "first"});
  run({"APPEND", "k", "second"});
  EXPECT_EQ(run({"EXPIRE", "k", "100", "XX"}), ":0\r\n");
  EXPECT_EQ(run({"EXPIRE", "k", "100", "NX"}), ":1\r\n");
  EXPECT_EQ(run({"EXPIRE", "k", "50", "GT"}), ":0\r\n");
  EXPECT_EQ(run({"EXPIRE", "k", "50", "LT"}), ":1\r\n");
  EXPECT_EQ(run({"PTTL", "k"}), ":50000\r\n");
  EXPECT_EQ(client->lookup("k")->fragments, (std::vector<std::uint32_t>{5, 6})) << "the fragments stay";
  EXPECT_EQ(run({"APPEND", "k", "!"}), ":12\r\n");
  EXPECT_EQ(run({"PTTL", "k"}), ":50000\r\n");
  EXPECT_EQ(run({"PERSIST", "k"}), ":1\r\n");
  EXPECT_EQ(run({"PERSIST", "k"}), ":0\r\n");
  EXPECT_EQ(run({"GETEX", "k", "PX", "500"}), "$12\r\nfirstsecond!\r\n");
  EXPECT_EQ(run({"PTTL", "k"}), ":500\r\n");
  EXPECT_EQ(run({"EXPIRE", "k", "1", "NX", "GT"}),
            "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n");
  advance(600);
  EXPECT_EQ(run({"EXISTS", "k"}), ":0\r\n");
  run({"SET", "gone", "v"});
  EXPECT_EQ(run({"EXPIRE", "gone", "-1"}), ":1\r\n");
  EXPECT_EQ(run({"GET", "gone"}), "$-1\r\n");
}

TEST_F(RespCommandTest, NumbersCountAsInRedis) {
  run({"SET", "n", "9223372036854775806", "EX", "10"});
  EXPECT_EQ(run({"INCR", "n"}), ":9223372036854775807\r\n");
  EXPECT_EQ(run({"TTL", "n"}), ":10\r\n") << "counting keeps the time to live";
  EXPECT_EQ(run({"INCR", "n"}), "-ERR increment or decrement would overflow\r\n");
  EXPECT_EQ(run({"DECRBY", "n", "-9223372036854775808"}), "-ERR decrement would overflow\r\n");
  for (const char* word : {"", "+1", "01", " 1", "1 ", "1.0", "0x1", "-0", "99999999999999999999"}) {
    run({"SET", "w", word});
    EXPECT_EQ(run({"INCR", "w"}), "-ERR value is not an integer or out of range\r\n") << word;
  }
  EXPECT_EQ(run({"INCRBYFLOAT", "f", "10.50"}), "$4\r\n10.5\r\n");
  EXPECT_EQ(run({"INCRBYFLOAT", "f", "-5.0e2"}), "$6\r\n-489.5\r\n");
  EXPECT_EQ(run({"INCRBYFLOAT", "f", "abc"}), "-ERR value is not a valid float\r\n");
  EXPECT_EQ(run({"INCRBYFLOAT", "f", "inf"}), "-ERR increment would produce NaN or Infinity\r\n");
  EXPECT_EQ(run({"SETRANGE", "s", "3", "x"}), ":4\r\n");
  EXPECT_EQ(run({"GET", "s"}), std::string("$4\r\n\0\0\0x\r\n", 10));
  EXPECT_EQ(run({"SETRANGE", "s", "-1", "x"}), "-ERR offset is out of range\r\n");
  EXPECT_EQ(run({"SETRANGE", "s", "999999999999", "x"}).substr(0, 29), "-ERR string exceeds maximum a");
}

TEST_F(RespCommandTest, ATransactionOnOneTagHappensAtOnceOrNotAtAll) {
  EXPECT_EQ(run({"EXEC"}), "-ERR EXEC without MULTI\r\n");
  EXPECT_EQ(run({"MULTI"}), "+OK\r\n");
  EXPECT_EQ(run({"MULTI"}), "-ERR MULTI calls can not be nested\r\n");
  EXPECT_EQ(run({"SET", "{t}a", "1"}), "+QUEUED\r\n");
  EXPECT_EQ(run({"INCR", "{t}a"}), "+QUEUED\r\n");
  EXPECT_EQ(run({"GET", "{t}none"}), "+QUEUED\r\n");
  EXPECT_EQ(run({"SET", "{t}a", "x", "BAD"}), "+QUEUED\r\n");
  EXPECT_FALSE(client->lookup("{t}a")) << "nothing before EXEC";
  const auto before = client->insert("{t}other", "v");
  EXPECT_EQ(run({"EXEC"}), "*4\r\n+OK\r\n:2\r\n$-1\r\n-ERR syntax error\r\n");
  EXPECT_EQ(client->lookup("{t}a")->version, *before + 1) << "one record";
  run({"MULTI"});
  EXPECT_EQ(run({"NOSUCH"}).substr(0, 12), "-ERR unknown");
  EXPECT_EQ(run({"SET", "{t}a", "9"}), "+QUEUED\r\n");
  EXPECT_EQ(run({"EXEC"}), "-EXECABORT Transaction discarded because of previous errors.\r\n");
  run({"MULTI"});
  run({"SET", "{t}a", "9"});
  EXPECT_EQ(run({"DISCARD"}), "+OK\r\n");
  EXPECT_EQ(run({"GET", "{t}a"}), "$1\r\n2\r\n");
}

TEST_F(RespCommandTest, AWatchedKeyThatChangedEndsTheTransaction) {
  for (const bool changes : {false, true}) {
    run({"SET", "k", "1"});
    EXPECT_EQ(run({"WATCH", "k"}), "+OK\r\n");
    if (changes) run({"SET", "k", "1"});  // to the same value: a change all the same
    run({"MULTI"});
    EXPECT_EQ(run({"WATCH", "k"}), "-ERR WATCH inside MULTI is not allowed\r\n");
    run({"INCR", "k"});
    EXPECT_EQ(run({"EXEC"}), changes ? "*-1\r\n" : "*1\r\n:2\r\n");
  }
  run({"WATCH", "absent"});
  run({"MULTI"});
  run({"SET", "absent", "1"});
  EXPECT_EQ(run({"EXEC"}), "*1\r\n+OK\r\n");
  run({"WATCH", "absent"});
  run({"MULTI"});
  run({"SET", "elsewhere", "1"});
  EXPECT_EQ(run({"EXEC"}).substr(0, 10), "-CROSSSLOT") << "it could not be kept";
  EXPECT_EQ(run({"GET", "elsewhere"}), "$-1\r\n");
}

TEST_F(RespCommandTest, ATransactionOnSeveralTagsRunsInOrder) {
  run({"MULTI"});
  for (const char* key : {"a", "b", "c"}) run({"SET", key, key});
  run({"MGET", "a", "b"});
  run({"PING"});
  EXPECT_EQ(run({"EXEC"}), "*5\r\n+OK\r\n+OK\r\n+OK\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n+PONG\r\n");
}

TEST_F(RespCommandTest, ScanAndKeysFindEveryKey) {
  std::set<std::string> all;
  for (int i = 0; i < 3000; i++) {
    const std::string key = (i % 3 == 0 ? "a:" : i % 3 == 1 ? "b:" : "{one}") + std::to_string(i);
    all.insert(key);
    ASSERT_TRUE(client->insert(key, "v"));
  }
  for (const auto& [pattern, count] :
       std::vector<std::pair<std::string, std::string>>{{"*", "1"}, {"a:*", "10"}, {"{one}*", "100"}, {"*9", "5000"}}) {
    std::set<std::string> found;
    std::string cursor = "0";
    int calls = 0;
    do {
      Parser replies(1 << 20, 1 << 20);
      const std::string reply = run({"SCAN", cursor, "MATCH", pattern, "COUNT", count});
      std::istringstream lines(reply);
      std::string line;
      std::getline(lines, line);
      ASSERT_EQ(line, "*2\r") << reply;
      std::getline(lines, line);
      std::getline(lines, cursor);
      cursor.pop_back();
      std::getline(lines, line);
      while (std::getline(lines, line)) {
        ASSERT_EQ(line[0], '$');
        std::getline(lines, line);
        line.pop_back();
        found.insert(line);
      }
      ASSERT_LT(std::stoull(cursor), 1ull << 53) << "some clients read it into a double";
      ASSERT_LT(++calls, 10'000);
    } while (cursor != "0");
    std::set<std::string> expected;
    for (const std::string& key : all)
      if (glob_matches(pattern, key)) expected.insert(key);
    EXPECT_EQ(found, expected) << pattern << " " << count;
    EXPECT_EQ(run({"KEYS", pattern}).substr(0, 6), ("*" + std::to_string(expected.size()) + "\r\n      ").substr(0, 6));
  }
  EXPECT_EQ(run({"SCAN", "x"}), "-ERR invalid cursor\r\n");
  EXPECT_EQ(run({"SCAN", "9007199254740992"}), "-ERR invalid cursor\r\n");
  EXPECT_EQ(run({"SCAN", "0", "TYPE", "hash"}), "*2\r\n$1\r\n0\r\n*0\r\n");
}

TEST(RespGlobTest, PatternsAreRediss) {
  for (const auto& [pattern, text, matches] :
       std::vector<std::tuple<std::string, std::string, bool>>{{"*", "", true},
                                                               {"a*c", "abbc", true},
                                                               {"a*c", "abbd", false},
                                                               {"h?llo", "hello", true},
                                                               {"h[ae]llo", "hallo", true},
                                                               {"h[^e]llo", "hello", false},
                                                               {"h[a-c]llo", "hbllo", true},
                                                               {"a\\*", "a*", true},
                                                               {"a\\*", "ab", false},
                                                               {"[", "a", false},
                                                               {"**a**", "bab", true},
                                                               {"", "a", false},
                                                               {"a", "", false}})
    EXPECT_EQ(glob_matches(pattern, text), matches) << pattern << " " << text;
  EXPECT_FALSE(glob_matches("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a'))) << "and not after the end of time";
  EXPECT_EQ(glob_prefix("a\\*b*c"), "a*b");
}

TEST_F(RespCommandTest, Resp3SaysItsOwnNothing) {
  EXPECT_EQ(run({"HELLO", "4"}), "-NOPROTO unsupported protocol version\r\n");
  EXPECT_EQ(run({"HELLO", "3", "SETNAME", "me"}).substr(0, 4), "%7\r\n");
  EXPECT_EQ(run({"GET", "none"}), "_\r\n");
  EXPECT_EQ(run({"GETDEL", "none"}), "_\r\n");
  EXPECT_EQ(run({"CONFIG", "GET", "save"}), "%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
  EXPECT_EQ(run({"CLIENT", "GETNAME"}), "$2\r\nme\r\n");
  EXPECT_EQ(run({"RESET"}), "+RESET\r\n");
  EXPECT_EQ(run({"GET", "none"}), "$-1\r\n");
}

TEST_F(RespCommandTest, ABatchIsAllOrNothing) {
  EXPECT_EQ(run({"ZHT.BATCH", "INSERT", "{b}1", "x", "APPEND", "{b}1", "y", "LOOKUP", "{b}1"}),
            "*3\r\n:1\r\n:2\r\n$2\r\nxy\r\n");
  EXPECT_EQ(run({"ZHT.BATCH", "INSERT", "{b}2", "x", "CSWAP", "{b}1", "other", "z"}).substr(0, 9), "-CONFLICT");
  EXPECT_EQ(run({"GET", "{b}2"}), "$-1\r\n");
  EXPECT_EQ(run({"ZHT.BATCH", "INSERT", "{b}2"}), "-ERR ZHT.BATCH: INSERT lacks arguments\r\n");
  EXPECT_EQ(run({"ZHT.BATCH", "EAT", "{b}2", "x"}), "-ERR ZHT.BATCH: unknown operation 'EAT'\r\n");
}

TEST_F(RespCommandTest, AScriptThatIsNoneIsRefused) {
  const std::string good = encode({2, false, {}, {{"SET", "k", "v"}}});
  EXPECT_EQ(*client->update("k", kProcedure, good), "+OK\r\n");
  for (std::size_t size = 0; size < good.size(); size++)
    EXPECT_FALSE(client->update("k", kProcedure, good.substr(0, size))) << size;
  EXPECT_FALSE(client->update("k", kProcedure, good + "x"));
  EXPECT_FALSE(client->update("k", kProcedure, encode({2, false, {}, {{"EXEC"}}})));
  EXPECT_FALSE(client->update("k", kProcedure, encode({2, false, {}, {{"SET", "k"}}})));
  EXPECT_FALSE(client->update("k", kProcedure, encode({2, false, {}, {{"SET", "other", "v"}}}))) << "another tag";
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
  EXPECT_EQ(run({"NOSUCH", "x"}), "-ERR unknown command 'NOSUCH', with args beginning with: 'x' \r\n");
  EXPECT_EQ(run({"GET"}), "-ERR wrong number of arguments for 'get' command\r\n");
  EXPECT_EQ(run({"SET", "k", "v", "EX", "soon"}), "-ERR value is not an integer or out of range\r\n");
  EXPECT_EQ(run({"GET", ""}).substr(0, 4), "-ERR");
  EXPECT_EQ(run({"SELECT", "3"}), "-ERR DB index is out of range\r\n");
  ASSERT_TRUE(client->insert("word", "w"));
  EXPECT_EQ(run({"INCR", "word"}).substr(0, 4), "-ERR");
}

}  // namespace
}  // namespace zht::resp
