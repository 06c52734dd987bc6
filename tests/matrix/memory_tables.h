// A small real zht::Transaction over a map, and one call that runs a procedure as the store does: all or nothing.
#pragma once

#include <map>
#include <string>

#include "novoht/base/clock.h"
#include "zht/procedure.h"

namespace matrix_test {

class MemoryTables {
 public:
  std::map<std::string, std::string> values;
  base::FakeClock clock;

  zht::Result<std::string> run(const zht::Procedures& procedures, std::string_view name, const std::string& key,
                               const std::string& arguments) {
    const zht::Procedure* procedure = procedures.find(name);
    CHECK(procedure != nullptr, name);
    const auto before = values;
    View view(*this, key);
    auto result = (*procedure)(view, key, arguments);
    if (!result) values = before;
    return result;
  }

 private:
  class View final : public zht::Transaction {
   public:
    View(MemoryTables& tables, zht::Bytes key) : tables_(tables), tag_(zht::hash_tag(key)) {}
    base::WallTime now() const override { return tables_.clock.wall(); }
    std::optional<Found> lookup(zht::Bytes key, zht::Range) override {
      const auto at = tables_.values.find(own(key));
      if (at == tables_.values.end()) return std::nullopt;
      Found found;
      found.value = at->second;
      found.version = 1;
      found.size = at->second.size();
      return found;
    }
    zht::Result<void> insert(zht::Bytes key, zht::Bytes value, std::chrono::milliseconds) override {
      tables_.values[own(key)] = std::string(value);
      return {};
    }
    zht::Result<void> append(zht::Bytes key, zht::Bytes value) override {
      tables_.values[own(key)] += value;
      return {};
    }
    zht::Result<void> remove(zht::Bytes key) override {
      tables_.values.erase(own(key));
      return {};
    }

   private:
    std::string own(zht::Bytes key) const {
      CHECK(zht::hash_tag(key) == tag_, key);
      return std::string(key);
    }
    MemoryTables& tables_;
    std::string tag_;
  };
};

}  // namespace matrix_test
