// Where things are: the data folder of the local node and what lies in it.
//   node.lock node.sock instance-<i>.sock node.log store/<i>/ chunks/ matrix/ services/<name>.{json,lock}
#pragma once

#include <string>

#include "novoht/base/result.h"

namespace support {

// --data, else $ZHT_DATA, else $XDG_DATA_HOME/zht, else ~/.local/share/zht; absolute, without a trailing slash. Nothing is
// created. invalid: neither of them is set and there is no home.
base::Result<std::string> data_folder(const std::string& flag);

// What this user has beside the data folder, whatever that is: $XDG_DATA_HOME/`name`, else ~/.local/share/`name`; absolute. As above.
base::Result<std::string> user_folder(const std::string& name);

// Makes `path` and its parents, the last with mode 0700; fine when it is there, is a folder, belongs to this user and can
// be written. Errors name the path and what is wrong with it.
base::Result<void> make_private_folder(const std::string& path);

// The path under which to bind or connect to the unix socket `name` in `folder`. A socket's address holds at most 107
// bytes; where the plain path is longer, a symbolic link to the folder is made as /tmp/zht-<uid>/<hash of the folder> and
// the path goes through it, so that server and clients arrive at the same socket.
base::Result<std::string> socket_path(const std::string& folder, const std::string& name);

base::Result<std::string> absolute_path(const std::string& path);  // lexical; the path need not exist

// Replaces `path` with `content` in one step (temporary file beside it, fsync, rename).
base::Result<void> write_file_atomically(const std::string& path, const std::string& content, unsigned mode = 0600);
base::Result<std::string> read_file(const std::string& path, std::size_t most = std::size_t{64} << 20);

}  // namespace support
