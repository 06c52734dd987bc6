// A small real implementation of zht::Transaction over maps in memory: fragments, versions, ttl, and all-or-nothing. A
// test owns its clock. It also counts what a request reads and writes, so that a test can say what an operation costs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "novoht/base/clock.h"
#include "zht/procedure.h"

namespace fabriq_test {

class MemoryTables {
 public:
  explicit MemoryTables(base::FakeClock& clock) : clock_(clock) {}

  // Runs a procedure as the store does: an error changes nothing.
  zht::Result<std::string> run(const zht::Procedures& procedures, std::string_view name, zht::Bytes key,
                               zht::Bytes arguments) {
    const zht::Procedure* procedure = procedures.find(name);
    CHECK(procedure != nullptr, name);
    View view(*this, key);
    auto result = (*procedure)(view, key, arguments);
    if (!result)
      view.undo();
    else if (view.changed())
      version_++;
    cost = view.cost();
    return result;
  }

  std::size_t count(zht::Bytes prefix) {
    std::size_t n = 0;
    for (const auto& [key, value] : values_)
      if (zht::Bytes(key).starts_with(prefix) && !gone(value)) n++;
    return n;
  }
  std::vector<std::string> keys(zht::Bytes prefix) {
    std::vector<std::string> found;
    for (const auto& [key, value] : values_)
      if (zht::Bytes(key).starts_with(prefix) && !gone(value)) found.push_back(key);
    return found;
  }
  zht::Version version_of(const std::string& key) { return values_.count(key) != 0 ? values_[key].version : 0; }
  std::string& bytes_of(const std::string& key) { return values_[key].bytes; }  // to damage them
  std::string value_of(const std::string& key) { return values_.count(key) != 0 ? values_[key].bytes : std::string(); }

  struct Cost {
    std::uint64_t steps = 0, read = 0, written = 0;
  };
  Cost cost;  // of the last run

 private:
  struct Value {
    std::string bytes;
    std::vector<std::uint32_t> fragments;
    zht::Version version = 0;
    base::WallTime expires = base::kNever;
  };
  bool gone(const Value& value) const { return value.expires != base::kNever && value.expires <= clock_.wall(); }

  class View final : public zht::Transaction {
   public:
    View(MemoryTables& tables, zht::Bytes key) : tables_(tables), tag_(zht::hash_tag(key)) {}
    base::WallTime now() const override { return tables_.clock_.wall(); }

    std::optional<Found> lookup(zht::Bytes key, zht::Range range) override {
      step(key);
      const auto at = tables_.values_.find(std::string(key));
      if (at == tables_.values_.end() || tables_.gone(at->second)) return std::nullopt;
      const Value& value = at->second;
      Found found;
      found.version = undo_.count(at->first) + grown_.count(at->first) != 0 ? 0 : value.version;
      found.size = value.bytes.size();
      found.fragment_count = static_cast<std::uint32_t>(value.fragments.size());
      found.expires = value.expires;
      std::uint64_t from = 0, to = value.bytes.size();
      if (range.kind == zht::Range::Kind::bytes) {
        from = std::min<std::uint64_t>(range.offset, to);
        to = from + std::min(range.size, to - from);
      } else if (range.kind == zht::Range::Kind::tail) {
        from = to;
        for (std::uint64_t i = 0; i < range.size && i < value.fragments.size(); i++)
          from -= value.fragments[value.fragments.size() - 1 - i];
      } else if (range.kind == zht::Range::Kind::nothing) {
        to = 0;
      }
      found.value = value.bytes.substr(from, to - from);
      cost_.read += found.value.size();
      return found;
    }
    zht::Result<void> insert(zht::Bytes key, zht::Bytes bytes, std::chrono::milliseconds ttl) override {
      Value& value = change(key);
      value.bytes = std::string(bytes);
      value.fragments = {static_cast<std::uint32_t>(bytes.size())};
      value.expires = ttl.count() == 0 ? base::kNever : now() + ttl;
      cost_.written += bytes.size();
      return limits();
    }
    zht::Result<void> append(zht::Bytes key, zht::Bytes bytes) override {
      step(key);
      const std::string name(key);
      const auto at = tables_.values_.find(name);
      const bool grows = at != tables_.values_.end() && !tables_.gone(at->second);
      // A long value is not copied for the sake of undoing: its length is enough.
      if (grows && undo_.count(name) == 0 && grown_.count(name) == 0)
        grown_[name] = {at->second.bytes.size(), at->second.fragments.size(), at->second.version};
      Value& value = grows ? at->second : change(key);
      if (!grows) value = {};
      value.version = tables_.version_ + 1;
      value.bytes += bytes;
      value.fragments.push_back(static_cast<std::uint32_t>(bytes.size()));
      cost_.written += bytes.size();
      return limits();
    }
    zht::Result<void> remove(zht::Bytes key) override {
      change(key);
      tables_.values_.erase(std::string(key));
      return limits();
    }
    void undo() {
      for (const auto& [key, before] : grown_) restore(tables_.values_[key], before);
      for (auto& [key, before] : undo_) {
        if (before)
          tables_.values_[key] = std::move(*before);
        else
          tables_.values_.erase(key);
      }
    }
    bool changed() const { return !undo_.empty() || !grown_.empty(); }
    Cost cost() const { return cost_; }

   private:
    struct Length {
      std::size_t size = 0, fragments = 0;
      zht::Version version = 0;
    };
    static void restore(Value& value, const Length& before) {
      value.bytes.resize(before.size);
      value.fragments.resize(before.fragments);
      value.version = before.version;
    }
    void step(zht::Bytes key) {
      CHECK(zht::hash_tag(key) == tag_, key);
      cost_.steps++;
    }
    Value& change(zht::Bytes key) {
      step(key);
      const std::string name(key);
      const auto at = tables_.values_.find(name);
      if (undo_.count(name) == 0) {
        undo_[name] = at == tables_.values_.end() ? std::optional<Value>() : std::optional<Value>(at->second);
        if (const auto grown = grown_.find(name); grown != grown_.end()) {
          restore(*undo_[name], grown->second);
          grown_.erase(grown);
        }
      }
      Value& value = tables_.values_[name];
      value.version = tables_.version_ + 1;
      return value;
    }
    zht::Result<void> limits() const {
      if (cost_.steps > 10'000 || cost_.written > std::uint64_t{64} << 20)
        return base::fail(base::Code::no_space, cost_.steps, " steps, ", cost_.written, " bytes in one request");
      return {};
    }
    MemoryTables& tables_;
    std::string tag_;
    std::map<std::string, std::optional<Value>> undo_;
    std::map<std::string, Length> grown_;  // values that were only appended to
    Cost cost_;
  };

  base::FakeClock& clock_;
  std::map<std::string, Value> values_;
  zht::Version version_ = 0;
};

}  // namespace fabriq_test
