// Reading the log back: scan_log() hands every record to the caller and decides how the log ends; mend_log() then makes
// the files fit to be written on. Records are read and checked some way ahead, on a thread of its own where the files
// allow threads.
//
// The end of a log is where no good record follows. Records that were cut off there by a crash (a torn tail) were never
// synced, so no record anywhere says that the log was durable beyond that place; then, and only then, what lies after is
// dropped. Otherwise bytes that were once good have changed, and the store is refused as `corrupt`, with file and offset.
#pragma once

#include <string>
#include <vector>

#include "novoht/core/log.h"

namespace novoht::core {

struct LogScan {
  LogState state;
  std::vector<std::string> drop;     // files that hold nothing but records beyond the end
  bool torn = false;                 // something beyond the end is to be cut
  std::uint64_t torn_bytes = 0;      // of what was cut, as far as it is not zero
  std::uint64_t records = 0, bytes = 0;
};

// Where a record lies, for messages.
struct RecordPlace {
  const std::string& path;
  std::uint64_t offset;
  Position position;
};
class RecordSink {
 public:
  virtual ~RecordSink() = default;
  // A record of one change, whose key has this hash, will be taken soon: first, and then sooner.
  virtual void prepare(const Record& record, std::uint64_t hash) = 0;
  virtual void approach(const Record& record, std::uint64_t hash) = 0;
  // `change`: the record's only one, and `hash` that of its key; null where there are more, or none.
  virtual Result<void> take(const Record& record, const Change* change, std::uint64_t hash, const RecordPlace& place) = 0;
};

// `names` are the folder's; `durable` is how far the checkpoints say the log was synced. Changes nothing on disk.
// Errors: corrupt, unsupported, io, and the sink's.
Result<LogScan> scan_log(base::FileSystem& files, const std::string& folder, const std::vector<std::string>& names,
                         std::uint64_t store, Position durable, bool read_only, RecordSink& sink);

// Removes scan.drop, zeroes what was torn, and syncs what was read.
Result<void> mend_log(base::FileSystem& files, const std::string& folder, LogScan& scan);

// A whole file.
Result<std::string> read_file(base::FileSystem& files, const std::string& path);

}  // namespace novoht::core
