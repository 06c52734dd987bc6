// What a record does to a table when it is read back: from the log, or from a snapshot.
#pragma once

#include "novoht/core/table.h"

namespace novoht::core {

// Plays one change; `hash` is the key's.
void replay_change(Table& table, const Change& change, std::uint64_t hash, Version version);

// Plays a record's encoded changes. guarded: the table may already have what this or later records made (a fuzzy
// checkpoint, a snapshot); keys that have it keep it. False: the changes are malformed, and perhaps the first ones were
// played.
bool replay_changes(Table& table, Bytes changes, std::size_t change_count, Version version, bool guarded);

// Plays a rewind record's: each key is as it says, whatever it is now. False: the bytes make no sense.
bool replay_rewind(Table& table, Bytes changes, std::size_t change_count, Version to);

}  // namespace novoht::core
