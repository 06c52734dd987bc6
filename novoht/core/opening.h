// Opening reads a store's folder into its tables: first their checkpoints, then the log.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "novoht/core/checkpointing.h"
#include "novoht/core/memory_limit.h"
#include "novoht/core/recovery.h"

namespace novoht::core {

class Opening final : private RecordSink {
 public:
  // What they refer to outlives this. `cold`: or null.
  Opening(base::FileSystem& files, const std::string& folder, const Options& options, std::uint64_t store, Tables& tables, Arena& arena,
          ColdValues* cold, MemoryLimit& memory, Checkpointing& checkpointing)
      : files_(files), folder_(folder), options_(options), store_(store), tables_(tables), arena_(arena), cold_(cold), memory_(memory),
        checkpointing_(checkpointing) {}

  // `names` are the folder's. Changes nothing on disk, but sends values there that the limit of memory does not allow. Errors: corrupt
  // (file and offset), unsupported, io, and the companion's.
  Result<LogScan> run(const std::vector<std::string>& names);
  std::uint64_t checkpoint_bytes() const { return checkpoint_bytes_; }  // that were read

 private:
  struct Loaded {
    Position position = 0;
    Version end = 0;  // records up to here may be in the checkpoint's entries
    Version reached = 0;  // the latest version that the log had
  };

  void prepare(const Record& record, std::uint64_t hash) override;
  void approach(const Record& record, std::uint64_t hash) override;
  Result<void> take(const Record& record, const Change* change, std::uint64_t hash, const RecordPlace& place) override;
  Result<void> load_checkpoint(const std::string& name, TableId table);
  Result<void> replay_changes(TableState& state, const Record& record, const Change* change, std::uint64_t hash, const RecordPlace& place);
  Result<void> replay_rewind(TableState& state, const Record& record, const RecordPlace& place);
  void keep_limit() {
    replayed_since_ = 0;
    memory_.keep_while_opening();
  }
  std::string path_of(std::string_view name) const { return folder_ + "/" + std::string(name); }

  base::FileSystem& files_;
  const std::string& folder_;
  const Options& options_;
  const std::uint64_t store_;
  Tables& tables_;
  Arena& arena_;
  ColdValues* const cold_;
  MemoryLimit& memory_;
  Checkpointing& checkpointing_;
  Position durable_ = 0;              // how far the checkpoints say the log was synced
  std::uint64_t replayed_since_ = 0;  // the limit was last looked after
  std::uint64_t checkpoint_bytes_ = 0;
  std::unordered_map<std::uint32_t, Loaded> loaded_;
  std::unordered_map<std::uint32_t, base::Error> gaps_;  // tables of which records are missing
};

}  // namespace novoht::core
