#include "matrix/tool/graph_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "zht/support/config.h"

namespace matrix {
namespace {

using base::Code;
using base::fail;
using base::Result;
using nlohmann::json;

json json_of(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    json object = json::object();
    for (const auto& [key, value] : *table) object[std::string(key.str())] = json_of(value);
    return object;
  }
  if (const auto* array = node.as_array()) {
    json list = json::array();
    for (const auto& value : *array) list.push_back(json_of(value));
    return list;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* truth = node.as_boolean()) return truth->get();
  return "a date or time";
}

Result<json> tree_of(const std::string& path, const std::string& text) {
  if (path.ends_with(".json")) {
    try {
      return json::parse(text);
    } catch (const json::parse_error& error) {
      const auto line =
          1 +
          std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size())), '\n');
      return fail(Code::invalid, path, ":", line, ": not JSON");
    }
  }
  try {
    return json_of(toml::parse(text));
  } catch (const toml::parse_error& error) {
    return fail(Code::invalid, path, ":", error.source().begin.line, ": not TOML: ", error.description());
  }
}

Result<void> known_keys(const std::string& where, const json& object, const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = support::nearest_of(key, known);
    return fail(Code::invalid, where, ": no key '", key, "'", near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  return {};
}

Result<std::vector<std::string>> words_of(const std::string& where, const json& list) {
  std::vector<std::string> words;
  for (const auto& word : list) {
    if (!word.is_string()) return fail(Code::invalid, where, " holds something that is not a string");
    words.push_back(word.get<std::string>());
  }
  return words;
}

}  // namespace

Result<Graph> parse_graph(const std::string& path, const std::string& text) {
  TRY_LET(tree, tree_of(path, text));
  if (!tree.is_object() || !tree.contains("tasks") || !tree["tasks"].is_object() || tree["tasks"].empty())
    return fail(Code::invalid, path, ": no tasks; write [tasks.NAME] with a command");
  TRY(known_keys(path, tree, {"name", "tasks"}));
  Graph graph;
  if (tree.contains("name")) {
    if (!tree["name"].is_string()) return fail(Code::invalid, path, ": name is not a string");
    graph.name = tree["name"].get<std::string>();
  }
  std::map<std::string, Item> tasks;
  std::map<std::string, std::vector<std::string>> parents;
  for (const auto& [name, task] : tree["tasks"].items()) {
    const std::string where = path + ": task " + base::escape(name);
    if (!task.is_object() || !task.contains("command")) return fail(Code::invalid, where, ": no command");
    TRY(known_keys(where, task, {"command", "after"}));
    Item item;
    item.name = name;
    if (task["command"].is_string()) {
      item.argv = {"/bin/sh", "-c", task["command"].get<std::string>()};
    } else {
      if (!task["command"].is_array() || task["command"].empty())
        return fail(Code::invalid, where, ": command is neither a string nor a list of strings");
      TRY_LET(words, words_of(where + ": command", task["command"]));
      item.argv = std::move(words);
    }
    if (task.contains("after")) {
      const json after = task["after"].is_string() ? json::array({task["after"]}) : task["after"];
      if (!after.is_array()) return fail(Code::invalid, where, ": after is not a list of task names");
      TRY_LET(names, words_of(where + ": after", after));
      parents[name] = std::move(names);
    }
    tasks[name] = std::move(item);
  }
  for (const auto& [name, names] : parents)
    for (const auto& parent : names) {
      if (tasks.count(parent)) continue;
      std::vector<std::string> all;
      for (const auto& [other, item] : tasks) all.push_back(other);
      const std::string near = support::nearest_of(parent, all);
      return fail(Code::invalid, path, ": task ", base::escape(name), " waits for '", base::escape(parent),
                  "', which is not there", near.empty() ? "" : "; did you mean '" + near + "'?");
    }
  // Numbers in an order in which every parent comes first.
  std::map<std::string, std::uint32_t> number;
  std::map<std::string, std::size_t> open;
  std::map<std::string, std::vector<std::string>> children;
  std::set<std::string> ready;
  for (const auto& [name, item] : tasks) {
    const std::set<std::string> distinct(parents[name].begin(), parents[name].end());
    open[name] = distinct.size();
    for (const auto& parent : distinct) children[parent].push_back(name);
    if (distinct.empty()) ready.insert(name);
  }
  while (!ready.empty()) {
    const std::string name = *ready.begin();
    ready.erase(ready.begin());
    number[name] = static_cast<std::uint32_t>(graph.items.size());
    Item item = std::move(tasks[name]);
    for (const auto& parent : std::set<std::string>(parents[name].begin(), parents[name].end()))
      item.parents.push_back(number[parent]);
    graph.items.push_back(std::move(item));
    for (const auto& child : children[name])
      if (--open[child] == 0) ready.insert(child);
  }
  if (graph.items.size() == tasks.size()) return graph;
  // What is left waits for itself, or for such: walking from parent to parent must come back.
  std::string at;
  for (const auto& [name, count] : open)
    if (count > 0) at = name;
  std::vector<std::string> walk;
  while (std::find(walk.begin(), walk.end(), at) == walk.end()) {
    walk.push_back(at);
    at = *std::find_if(parents[at].begin(), parents[at].end(), [&](const auto& parent) { return open[parent] > 0; });
  }
  std::string cycle = at;
  for (auto step = std::find(walk.begin(), walk.end(), at) + 1; step < walk.end(); step++) cycle += " after " + *step;
  return fail(Code::invalid, path, ": tasks wait for each other: ", cycle == at ? at : cycle, " after ", at);
}

}  // namespace matrix
