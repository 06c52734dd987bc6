#include "zht/types.h"

#include <gtest/gtest.h>

#include <set>

#include "zht/client.h"
#include "zht/procedure.h"

namespace zht {
namespace {

TEST(Routing, TheTagOfAKeyDecides) {
  EXPECT_EQ(hash_tag("plain"), "plain");
  EXPECT_EQ(hash_tag("{tag}rest"), "tag");
  EXPECT_EQ(hash_tag("{}rest"), "{}rest");
  EXPECT_EQ(hash_tag("{open"), "{open");
  EXPECT_EQ(hash_tag("x{tag}"), "x{tag}");
  EXPECT_EQ(hash_tag(""), "");
  EXPECT_EQ(partition_of("{t}a", 1024), partition_of("{t}b", 1024));
  EXPECT_EQ(ring_position("{t}a"), ring_position("t"));
}

TEST(Routing, PartitionsAreEqualSlicesOfTheRing) {
  std::vector<int> counts(16);
  for (int i = 0; i < 16'000; i++) {
    const auto partition = static_cast<std::uint32_t>(partition_of("key" + std::to_string(i), 16));
    ASSERT_LT(partition, 16u);
    EXPECT_EQ(partition, ring_position("key" + std::to_string(i)) >> 60);
    counts[partition]++;
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 200);
}

Code code_of(const Operation& operation) { return validate(operation, 1024).code(); }

TEST(Validate, TakesWhatIsAllowed) {
  EXPECT_EQ(code_of(Operation::insert("k", "")), Code::ok);
  EXPECT_EQ(code_of(Operation::insert(std::string(kMaxKeySize, 'k'), std::string(kMaxValueSize, 'v'))), Code::ok);
  EXPECT_EQ(code_of(Operation::cswap("k", Condition::absent(), "v")), Code::ok);
  EXPECT_EQ(code_of(Operation::check("k", Condition::at_version(3))), Code::ok);
  EXPECT_EQ(code_of(Operation::callback("k", Condition::after_version(3))), Code::ok);
  EXPECT_EQ(code_of(Operation::lookup_eventual("k")), Code::ok);
  EXPECT_EQ(code_of(Operation::lookup_eventual("k", 3)), Code::ok);
  EXPECT_EQ(code_of(Operation::update("{t}", "add", "1")), Code::ok);
  EXPECT_EQ(code_of(Operation::scan(PartitionId{1023})), Code::ok);
  EXPECT_EQ(code_of(Operation::batch({Operation::insert("{t}a", "1"), Operation::remove("{t}b", true)})), Code::ok);
}

TEST(Validate, NamesWhatCanNeverWork) {
  EXPECT_EQ(validate(Operation::lookup(""), 1024).error().message, "lookup: empty key; a key has 1 to 65535 bytes");
  EXPECT_EQ(code_of(Operation::lookup(std::string(kMaxKeySize + 1, 'k'))), Code::invalid);
  EXPECT_EQ(validate(Operation::append("k", std::string(11, 'v')), 1024, 10).error().message,
            "value of 11 bytes; at most 10 fit in one request");
  EXPECT_EQ(code_of(Operation::cswap("k", Condition{}, "v")), Code::invalid);
  EXPECT_EQ(code_of(Operation::callback("k", Condition{})), Code::invalid);
  EXPECT_EQ(code_of(Operation::update("k", "", "")), Code::invalid);
  EXPECT_EQ(code_of(Operation::scan(PartitionId{1024})), Code::invalid);
  EXPECT_EQ(code_of(Operation::insert("k", "v", Millis(-1))), Code::invalid);
  EXPECT_EQ(code_of(Operation::batch({})), Code::invalid);
  EXPECT_EQ(code_of(Operation::batch({Operation::lookup("a"), Operation::lookup("b")})), Code::invalid);
  EXPECT_EQ(code_of(Operation::batch({Operation::callback("{t}a", Condition::present())})), Code::invalid);
  EXPECT_EQ(code_of(Operation::batch({Operation::batch({Operation::lookup("{t}a")})})), Code::invalid);
  EXPECT_EQ(code_of(Operation::batch(std::vector<Operation>(kMaxBatchSize + 1, Operation::lookup("{t}a")))),
            Code::invalid);
  Operation odd = Operation::insert("k", "v");
  odd.condition = Condition::present();
  EXPECT_EQ(code_of(odd), Code::invalid);
  odd.condition = {};
  odd.eventual = true;
  EXPECT_EQ(validate(odd, 1024).error().message, "insert: only a lookup can be eventual");
  odd = Operation::lookup_eventual("k", 3);
  odd.eventual = false;
  EXPECT_EQ(code_of(odd), Code::invalid);
  EXPECT_EQ(code_of(Operation::batch({Operation::lookup_eventual("{t}a")})), Code::invalid);
  odd = Operation::lookup("k");
  odd.kind = static_cast<OpKind>(77);
  EXPECT_EQ(code_of(odd), Code::invalid);
}

// One partition as a map, enough to run procedures on.
class MapTables final : public Transaction {
 public:
  base::WallTime now() const override { return {}; }
  std::optional<Found> lookup(Bytes key, Range range) override {
    const auto at = data.find(std::string(key));
    if (at == data.end()) return std::nullopt;
    Found found;
    for (const std::string& fragment : at->second) {
      found.size += fragment.size();
      if (range.kind != Range::Kind::whole) continue;
      found.value += fragment;
      if (at->second.size() > 1) found.fragments.push_back(static_cast<std::uint32_t>(fragment.size()));
    }
    found.fragment_count = static_cast<std::uint32_t>(at->second.size());
    return found;
  }
  Result<void> insert(Bytes key, Bytes value, Millis) override {
    data[std::string(key)] = {std::string(value)};
    return {};
  }
  Result<void> append(Bytes key, Bytes value) override {
    data[std::string(key)].emplace_back(value);
    return {};
  }
  Result<void> remove(Bytes key) override {
    data.erase(std::string(key));
    return {};
  }
  std::map<std::string, std::vector<std::string>> data;
};

class GeneralProcedures : public testing::Test {
 protected:
  GeneralProcedures() { add_general_procedures(procedures_); }
  std::string run(std::string_view name, Bytes arguments) {
    auto result = (*procedures_.find(name))(tables_, "k", arguments);
    return result ? *result : std::string(base::name_of(result.error().code));
  }
  Procedures procedures_;
  MapTables tables_;
};

TEST_F(GeneralProcedures, AddCountsAndRefusesWhatIsNoNumber) {
  EXPECT_EQ(run("add", "5"), "5");
  EXPECT_EQ(run("add", "-7"), "-2");
  EXPECT_EQ(run("add", "x"), "invalid");
  EXPECT_EQ(run("add", "-9223372036854775807"), "invalid");
  EXPECT_EQ(tables_.data["k"][0], "-2");
}

TEST_F(GeneralProcedures, MaxKeepsTheGreater) {
  EXPECT_EQ(run("max", "5"), "5");
  EXPECT_EQ(run("max", "3"), "5");
  EXPECT_EQ(run("max", "9"), "9");
}

TEST_F(GeneralProcedures, SetIfComparesFirst) {
  tables_.data["k"] = {"old"};
  const auto arguments = [](Bytes expected, Bytes desired) {
    std::string all;
    base::Writer(all).str(expected);
    return all + std::string(desired);
  };
  EXPECT_EQ(run("set_if", arguments("other", "new")), "0");
  EXPECT_EQ(run("set_if", arguments("old", "new")), "1");
  EXPECT_EQ(run("set_if", "\xff\xff\xff\xff"), "invalid");
  EXPECT_EQ(tables_.data["k"][0], "new");
}

TEST_F(GeneralProcedures, ListTakeRemovesFromTheFront) {
  tables_.data["k"] = {"a", "bb", "ccc"};
  std::string expected;
  base::Writer(expected).str("a");
  base::Writer(expected).str("bb");
  EXPECT_EQ(run("list_take", "2"), expected);
  EXPECT_EQ(tables_.data["k"], std::vector<std::string>{"ccc"});
  expected.clear();
  base::Writer(expected).str("ccc");
  EXPECT_EQ(run("list_take", "9"), expected);
  EXPECT_FALSE(tables_.data.contains("k"));
  EXPECT_EQ(run("list_take", "1"), "");
  EXPECT_EQ(run("list_take", "0"), "invalid");
}

}  // namespace
}  // namespace zht
