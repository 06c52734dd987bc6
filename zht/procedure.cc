#include "zht/procedure.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace zht {
namespace {

Result<std::int64_t> to_number(std::string_view what, Bytes text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(Code::invalid, what, " \"", base::escape(text, 40), "\" is not a decimal 64-bit integer");
  return number;
}

Result<std::int64_t> stored_number(Transaction& tables, Bytes key, std::int64_t when_absent) {
  const auto found = tables.lookup(key);
  if (!found) return when_absent;
  return to_number("the stored value", found->value);
}

Result<std::string> add(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(by, to_number("argument", arguments));
  TRY_LET(old, stored_number(tables, key, 0));
  std::int64_t sum = 0;
  if (__builtin_add_overflow(old, by, &sum)) return fail(Code::invalid, old, " + ", by, " does not fit in 64 bits");
  std::string text = std::to_string(sum);
  TRY(tables.insert(key, text));
  return text;
}

Result<std::string> max(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(wanted, to_number("argument", arguments));
  TRY_LET(old, stored_number(tables, key, INT64_MIN));
  const bool absent = !tables.lookup(key, Range::nothing());
  if (wanted > old || absent) TRY(tables.insert(key, std::to_string(wanted)));
  return std::to_string(absent ? wanted : std::max(old, wanted));
}

Result<std::string> set_if(Transaction& tables, Bytes key, Bytes arguments) {
  base::Reader reader(arguments);
  const Bytes expected = reader.str();
  if (!reader.ok())
    return fail(Code::invalid, "set_if: arguments of ", arguments.size(), " bytes end inside the expected value");
  const Bytes desired = reader.raw(reader.left());
  const auto found = tables.lookup(key);
  if (!found || found->value != expected) return std::string("0");
  TRY(tables.insert(key, desired));
  return std::string("1");
}

// A value's front cannot be cut off in place: what is left is written back, fragment by fragment.
Result<std::string> list_take(Transaction& tables, Bytes key, Bytes arguments) {
  TRY_LET(wanted, to_number("argument", arguments));
  if (wanted < 1) return fail(Code::invalid, "list_take: ", wanted, " fragments; at least 1");
  std::string taken;
  const auto found = tables.lookup(key);
  if (!found) return taken;
  std::vector<std::uint32_t> sizes = found->fragments;
  if (sizes.empty()) sizes.push_back(static_cast<std::uint32_t>(found->value.size()));
  TRY(tables.remove(key));
  base::Writer writer(taken);
  base::Reader reader(found->value);
  bool first_left = true;
  for (std::size_t i = 0; i < sizes.size(); i++) {
    const Bytes fragment = reader.raw(sizes[i]);
    if (i < static_cast<std::uint64_t>(wanted))
      writer.str(fragment);
    else if (std::exchange(first_left, false))
      TRY(tables.insert(key, fragment));
    else
      TRY(tables.append(key, fragment));
  }
  return taken;
}

}  // namespace

void Procedures::add(std::string name, Procedure procedure) {
  CHECK(!name.empty() && name.size() <= 255, name);
  CHECK(procedures_.emplace(std::move(name), std::move(procedure)).second, "a procedure was registered twice");
}

const Procedure* Procedures::find(std::string_view name) const {
  const auto found = procedures_.find(name);
  return found == procedures_.end() ? nullptr : &found->second;
}

void add_general_procedures(Procedures& procedures) {
  procedures.add("add", add);
  procedures.add("max", max);
  procedures.add("set_if", set_if);
  procedures.add("list_take", list_take);
}

}  // namespace zht
