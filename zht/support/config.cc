#include "zht/support/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>

#include "zht/support/output.h"

namespace support {
namespace {

using base::Code;
using base::fail;
using base::Result;

// Edits (one character inserted, removed, changed, or two neighbours swapped) that turn `a` into `b`.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); i++)
    for (std::size_t j = 0; j <= b.size(); j++) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

// The text of a TOML scalar, or of an array of scalars with commas between.
Result<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* flag = node.as_boolean()) return std::string(flag->get() ? "true" : "false");
  if (const auto* list = node.as_array()) {
    std::string all;
    for (const toml::node& item : *list) {
      TRY_LET(text, text_of(item));
      all += (all.empty() ? "" : ",") + text;
    }
    return all;
  }
  return fail(Code::invalid, "a value of a kind no setting takes; write a string, a whole number or true/false");
}

std::string quote(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string nearest_of(const std::string& typed, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, typed.size() / 3) + 1;
  for (const std::string& candidate : candidates)
    if (const std::size_t d = distance(typed, candidate); d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  return best;
}

void Config::add_item(Item item) {
  CHECK(find(item.key) == nullptr, "a setting was added twice");
  item.origin = "default";
  items_.push_back(std::move(item));
}

void Config::add(std::string key, std::string& to, std::string help, std::string environment) {
  add_item({std::move(key),
            std::move(help),
            std::move(environment),
            {},
            true,
            [&to](const std::string& text) -> Result<void> {
              to = text;
              return {};
            },
            [&to] { return to; }});
}

void Config::add(std::string key, bool& to, std::string help, std::string environment) {
  add_item({std::move(key),
            std::move(help),
            std::move(environment),
            {},
            false,
            [&to](const std::string& text) -> Result<void> {
              if (text != "true" && text != "false")
                return fail(Code::invalid, "'", text, "' is neither true nor false");
              to = text == "true";
              return {};
            },
            [&to] { return std::string(to ? "true" : "false"); }});
}

void Config::add(std::string key, std::uint64_t& to, std::uint64_t least, std::uint64_t most, std::string help,
                 std::string environment) {
  add_item({std::move(key),
            std::move(help),
            std::move(environment),
            {},
            false,
            [&to, least, most](const std::string& text) -> Result<void> {
              TRY_LET(number, parse_number(text, least, most));
              to = number;
              return {};
            },
            [&to] { return std::to_string(to); }});
}

void Config::add_size(std::string key, std::uint64_t& to, std::string help, std::string environment) {
  add_item({std::move(key),
            std::move(help),
            std::move(environment),
            {},
            true,
            [&to](const std::string& text) -> Result<void> {
              TRY_LET(size, parse_size(text));
              to = size;
              return {};
            },
            [&to] {
              for (const auto& [shift, unit] : {std::pair{30, "GiB"}, {20, "MiB"}, {10, "KiB"}})
                if (to > 0 && to % (std::uint64_t{1} << shift) == 0) return std::to_string(to >> shift) + unit;
              return std::to_string(to) + "B";
            }});
}

void Config::add_duration(std::string key, base::Duration& to, std::string help, std::string environment) {
  add_item({std::move(key),
            std::move(help),
            std::move(environment),
            {},
            true,
            [&to](const std::string& text) -> Result<void> {
              TRY_LET(duration, parse_duration(text));
              to = duration;
              return {};
            },
            [&to] {
              for (const auto& [nanos, unit] :
                   {std::pair{std::int64_t{1'000'000'000}, "s"}, {1'000'000, "ms"}, {1000, "us"}})
                if (to.count() % nanos == 0) return std::to_string(to.count() / nanos) + unit;
              return std::to_string(to.count()) + "ns";
            }});
}

void Config::add_choice(std::string key, std::string& to, std::vector<std::string> choices, std::string help,
                        std::string environment) {
  add_item({std::move(key),
            std::move(help),
            std::move(environment),
            {},
            true,
            [&to, choices = std::move(choices)](const std::string& text) -> Result<void> {
              if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
                std::string all;
                for (const std::string& choice : choices) all += (all.empty() ? "" : ", ") + choice;
                return fail(Code::invalid, "'", text, "' is not one of: ", all);
              }
              to = text;
              return {};
            },
            [&to] { return to; }});
}

Config::Item* Config::find(const std::string& key) {
  for (Item& item : items_)
    if (item.key == key) return &item;
  return nullptr;
}

Result<void> Config::load_table(const void* opaque, const std::string& prefix, const std::string& path) {
  const toml::table& table = *static_cast<const toml::table*>(opaque);
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    const std::string place = path + ":" + std::to_string(node.source().begin.line);
    Item* item = find(key);
    if (item == nullptr && node.is_table()) {
      TRY(load_table(node.as_table(), key + ".", path));
      continue;
    }
    if (item == nullptr) {
      std::vector<std::string> keys;
      for (const Item& known : items_) keys.push_back(known.key);
      const std::string near = nearest_of(key, keys);
      return fail(Code::invalid, place, ": no setting '", key, "'",
                  near.empty() ? "" : "; did you mean '" + near + "'?");
    }
    auto text = text_of(node);
    if (!text) return base::add_context(place + ": " + key, std::move(text).error());
    if (auto parsed = item->parse(*text); !parsed)
      return base::add_context(place + ": " + key, std::move(parsed).error());
    item->origin = place;
  }
  return {};
}

Result<void> Config::load_file(const std::string& path) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    if (line == 0) return fail(Code::invalid, path, ": ", error.description(), "; is it there and readable?");
    return fail(Code::invalid, path, ":", line, ": ", error.description());
  }
  return load_table(&table, "", path);
}

Result<void> Config::load_environment() {
  for (Item& item : items_) {
    const char* value = item.environment.empty() ? nullptr : std::getenv(item.environment.c_str());
    if (value == nullptr || *value == '\0') continue;
    if (auto parsed = item.parse(value); !parsed)
      return base::add_context("$" + item.environment, std::move(parsed).error());
    item.origin = "$" + item.environment;
  }
  return {};
}

Result<void> Config::set(const std::string& key, const std::string& value, const std::string& origin) {
  Item* item = find(key);
  if (item == nullptr) return fail(Code::invalid, origin, ": no setting '", key, "'");
  if (auto parsed = item->parse(value); !parsed) return base::add_context(origin, std::move(parsed).error());
  item->origin = origin;
  return {};
}

std::string Config::origin_of(const std::string& key) const {
  for (const Item& item : items_)
    if (item.key == key) return item.origin;
  return {};
}

std::string Config::text() const {
  std::string out;
  for (const Item& item : items_) {
    const std::string value = item.print();
    out += "# " + item.help + (item.environment.empty() ? "" : " ($" + item.environment + ")") + "\n";
    out += item.key + " = " + (item.quoted ? quote(value) : value) + "  # from " + item.origin + "\n";
  }
  return out;
}

std::string Config::set_text(const std::vector<std::string>& without) const {
  std::string out;
  for (const Item& item : items_) {
    if (item.origin == "default" || std::find(without.begin(), without.end(), item.key) != without.end()) continue;
    const std::string value = item.print();
    out += item.key + " = " + (item.quoted ? quote(value) : value) + "\n";
  }
  return out;
}

}  // namespace support
