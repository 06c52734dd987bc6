// A graph of tasks, written as TOML or JSON:
//
//   name = "build"                       # optional: the job's name
//   [tasks.fetch]
//   command = ["git", "clone", "..."]    # a list is a command and its arguments
//   [tasks.compile]
//   command = "cd src && make"           # a string is a line for /bin/sh
//   after = ["fetch"]                    # starts when these have succeeded; if one fails, it is skipped
//
// JSON has the same shape: {"name": ..., "tasks": {"fetch": {"command": [...], "after": [...]}}}.
#pragma once

#include <string>
#include <vector>

#include "matrix/core/records.h"
#include "novoht/base/result.h"

namespace matrix {

struct Graph {
  std::string name;
  std::vector<Item> items;  // parents before their children
};

// `path` is for messages; a name that ends in .json is read as JSON, any other as TOML. invalid names the place: the
// line of a syntax error, else the task and the key; an unknown parent; the tasks of a cycle.
base::Result<Graph> parse_graph(const std::string& path, const std::string& text);

}  // namespace matrix
