#include "zht/tool/pipe_line.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "zht/support/output.h"

namespace zht::tool {
namespace {

using nlohmann::json;

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// A string field, or its base64 twin; nothing when neither is there. `null_ok`: null reads as absent, told by
// `is_null`.
Result<std::optional<std::string>> bytes_field(const json& line, const std::string& name, bool* is_null = nullptr) {
  const auto plain = line.find(name);
  auto coded = line.find(name + "_b64");
  if (coded != line.end() && coded->is_null()) coded = line.end();  // as good as not given
  if (plain != line.end() && !plain->is_null() && coded != line.end())
    return fail(Code::invalid, "\"", name, "\" and \"", name, "_b64\" are both given");
  if (coded != line.end()) {
    if (!coded->is_string()) return fail(Code::invalid, "\"", name, "_b64\" is not a string");
    auto bytes = support::from_base64(coded->get_ref<const std::string&>());
    if (!bytes) return base::add_context("\"" + name + "_b64\"", std::move(bytes).error());
    return std::optional<std::string>(*std::move(bytes));
  }
  if (plain == line.end()) return std::optional<std::string>();
  if (plain->is_null() && is_null != nullptr) {
    *is_null = true;
    return std::optional<std::string>();
  }
  if (!plain->is_string()) return fail(Code::invalid, "\"", name, "\" is not a string");
  return std::optional<std::string>(plain->get<std::string>());
}

Result<std::uint64_t> number_field(const json& line, const std::string& name, std::uint64_t otherwise,
                                   std::uint64_t most) {
  const auto at = line.find(name);
  if (at == line.end() || at->is_null()) return otherwise;
  // 500.0: what a program that counts in floating point writes.
  if (at->is_number_float() && at->get<double>() >= 0 && at->get<double>() <= 1e15 &&
      std::floor(at->get<double>()) == at->get<double>() && static_cast<std::uint64_t>(at->get<double>()) <= most)
    return static_cast<std::uint64_t>(at->get<double>());
  if (!at->is_number_unsigned() || at->get<std::uint64_t>() > most)
    return fail(Code::invalid, "\"", name, "\" is not a whole number from 0 to ", most);
  return at->get<std::uint64_t>();
}

constexpr std::uint64_t kMostMillis = std::uint64_t{1000} * 60 * 60 * 24 * 365;

}  // namespace

Result<Line> parse_line(const std::string& text) {
  const json line = json::parse(text, nullptr, false);
  if (line.is_discarded()) return fail(Code::invalid, "not JSON: ", base::escape(text, 60));
  if (!line.is_object()) return fail(Code::invalid, "not a JSON object: ", base::escape(text, 60));
  static const std::vector<std::string> known{"op",     "key",        "key_b64",    "value",   "value_b64",
                                              "expect", "expect_b64", "timeout_ms", "version", "expect_version",
                                              "ttl_ms", "limit",      "new",        "eventual"};
  for (const auto& [name, value] : line.items())
    if (std::find(known.begin(), known.end(), name) == known.end())
      return fail(Code::invalid, "unknown field \"", base::escape(name, 40), "\"");
  const auto op = line.find("op");
  if (op == line.end() || !op->is_string()) return fail(Code::invalid, "\"op\" is missing or not a string");
  const std::string name = op->get<std::string>();
  TRY_LET(key, bytes_field(line, "key"));
  if (!key) return fail(Code::invalid, "\"key\" is missing");
  bool value_null = false, expect_null = false;
  TRY_LET(value, bytes_field(line, "value", &value_null));
  TRY_LET(expect, bytes_field(line, "expect", &expect_null));
  TRY_LET(timeout, number_field(line, "timeout_ms", 0, kMostMillis));
  TRY_LET(ttl, number_field(line, "ttl_ms", 0, kMostMillis));
  TRY_LET(limit, number_field(line, "limit", 0, UINT64_MAX));
  TRY_LET(version, number_field(line, "version", 0, UINT64_MAX));
  TRY_LET(expect_version, number_field(line, "expect_version", 0, UINT64_MAX));
  const auto is_new = line.find("new");
  if (is_new != line.end() && !is_new->is_boolean()) return fail(Code::invalid, "\"new\" is not true or false");

  const auto eventual = line.find("eventual");
  if (eventual != line.end() && !eventual->is_boolean()) return fail(Code::invalid, "\"eventual\" is not true or false");
  const bool is_eventual = eventual != line.end() && eventual->get<bool>();
  if (is_eventual && name != "lookup") return fail(Code::invalid, base::escape(name, 40), ": only a lookup can be eventual");

  Line parsed;
  parsed.timeout = Millis(timeout);
  // Asked for explicitly: do not wait.
  if (const auto at = line.find("timeout_ms"); timeout == 0 && at != line.end() && !at->is_null())
    parsed.timeout = Millis(1);
  const auto needs_value = [&]() -> Result<void> {
    if (!value) return fail(Code::invalid, name, ": \"value\" is missing");
    return {};
  };
  if (name == "insert") {
    TRY(needs_value());
    parsed.operation = is_new != line.end() && is_new->get<bool>() ? Operation::insert_new(*key, *value, Millis(ttl))
                                                                   : Operation::insert(*key, *value, Millis(ttl));
  } else if (name == "lookup") {
    parsed.operation = is_eventual ? Operation::lookup_eventual(*key, version) : Operation::lookup(*key);
  } else if (name == "remove") {
    parsed.operation = Operation::remove(*key);
    if (expect_version != 0) parsed.operation.condition = Condition::at_version(expect_version);
  } else if (name == "append") {
    TRY(needs_value());
    parsed.operation = Operation::append(*key, *value, limit);
  } else if (name == "cswap") {
    if (!value && !value_null) return fail(Code::invalid, "cswap: \"value\" is missing");
    Condition condition;
    if (expect)
      condition = Condition::equals(*expect);
    else if (expect_version != 0)
      condition = Condition::at_version(expect_version);
    else if (expect_null)
      condition = Condition::absent();
    else
      return fail(Code::invalid, "cswap: \"expect\" is missing; null expects that the key is absent");
    parsed.operation =
        value ? Operation::cswap(*key, condition, *value, Millis(ttl)) : Operation::cswap_remove(*key, condition);
  } else if (name == "callback") {
    Condition condition = Condition::present();
    if (expect)
      condition = Condition::equals(*expect);
    else if (expect_null)
      condition = Condition::absent();
    else if (line.contains("version"))
      condition = Condition::after_version(version);
    else if (value)
      condition = Condition::equals(*value);
    parsed.operation = Operation::callback(*key, condition);
  } else {
    return fail(Code::invalid, "unknown op \"", base::escape(name, 40),
                "\"; it is one of: insert, lookup, remove, append, cswap, callback");
  }
  return parsed;
}

std::string answer_of(const Operation& operation, const Outcome& outcome) {
  const bool waiting = operation.kind == OpKind::callback;
  json answer;
  switch (outcome.code) {
    case Code::ok:
      answer["status"] = "ok";
      break;
    case Code::not_found:
      answer["status"] = "notfound";
      break;
    case Code::conflict:
      answer["status"] = "mismatch";
      break;
    case Code::timeout:
      answer["status"] = waiting ? "fail" : "unknown";
      break;  // a callback changes nothing
    default:
      answer["status"] = "fail";
  }
  if (outcome.code == Code::ok || outcome.code == Code::conflict) {
    const bool shows = operation.kind == OpKind::lookup || waiting || outcome.code == Code::conflict;
    if (shows && outcome.present) {
      if (support::is_utf8(outcome.value))
        answer["value"] = outcome.value;
      else
        answer["value_b64"] = support::to_base64(outcome.value);
    } else if (shows) {
      answer["value"] = nullptr;
    }
  }
  if (outcome.version != 0) answer["version"] = outcome.version;
  if (outcome.ok() && operation.kind == OpKind::append) answer["size"] = outcome.size;
  if (!outcome.ok() && outcome.code != Code::not_found && outcome.code != Code::conflict)
    answer["error"] = std::string(base::name_of(outcome.code)) + ": " + outcome.message;
  return dump(answer);
}

std::string refusal(const Error& error) { return dump(json{{"status", "fail"}, {"error", error.message}}); }

}  // namespace zht::tool
