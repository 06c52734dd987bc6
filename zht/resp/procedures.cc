#include "zht/resp/procedures.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "novoht/base/bytes.h"
#include "zht/resp/reply.h"

namespace zht::resp {
namespace {

using Words = std::vector<std::string_view>;
using Found = Transaction::Found;

constexpr std::string_view kNoInteger = "ERR value is not an integer or out of range";
constexpr std::string_view kSyntax = "ERR syntax error";
constexpr std::int64_t kMostMillis = 1'000'000'000'000'000;  // 30,000 years; sums of two stay far from overflow
constexpr std::size_t kMostString = std::size_t{512} << 20;  // as in Redis

std::string_view strip_zeros(std::string_view text) {
  if (text.find('.') == std::string_view::npos) return text;
  text = text.substr(0, text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.remove_suffix(1);
  return text;
}

// One command at a time against the tables; what is wrong with a command is its reply, and then it has changed nothing.
class Run {
 public:
  Run(Transaction& tables, Reply& reply) : tables_(tables), reply_(reply) {}

  // Errors are the store's own (no_space): they end the whole script, and nothing of it happens.
  Result<void> command(const Words& words);

 private:
  std::int64_t now_ms() const { return static_cast<std::int64_t>(base::to_millis(tables_.now())); }
  static std::int64_t end_of(const Found& found) {
    return found.expires == base::kNever ? 0 : static_cast<std::int64_t>(base::to_millis(found.expires));
  }
  // at_ms 0: lives for ever; a time that has passed removes the key.
  Result<void> put(std::string_view key, std::string_view value, std::int64_t at_ms) {
    if (at_ms == 0) return tables_.insert(key, value);
    if (at_ms <= now_ms()) return tables_.remove(key);
    return tables_.insert(key, value, std::chrono::milliseconds(at_ms - now_ms()));
  }
  // The same value with another end, its fragments as they were.
  Result<void> put_again(std::string_view key, const Found& found, std::int64_t at_ms) {
    if (found.fragments.size() < 2 || (at_ms != 0 && at_ms <= now_ms())) return put(key, found.value, at_ms);
    base::Reader reader(found.value);
    TRY(put(key, reader.raw(found.fragments[0]), at_ms));
    for (std::size_t i = 1; i < found.fragments.size(); i++) TRY(tables_.append(key, reader.raw(found.fragments[i])));
    return {};
  }
  void value_or_nil(const std::optional<Found>& found) { found ? reply_.bulk(found->value) : reply_.nil(); }
  bool there(std::string_view key) { return tables_.lookup(key, Range::nothing()).has_value(); }
  Result<void> refuse(std::string_view text) {
    reply_.error(text);
    return {};
  }
  Result<void> answer(std::int64_t number) {
    reply_.integer(number);
    return {};
  }

  Result<void> set(const Words& words);
  Result<void> set_until(const Words& words, std::string_view unit);
  Result<void> getex(const Words& words);
  Result<void> increment(std::string_view key, std::int64_t by);
  Result<void> increment_by(const Words& words, bool negative);
  Result<void> increment_float(const Words& words);
  Result<void> append(const Words& words);
  Result<void> getrange(const Words& words);
  Result<void> setrange(const Words& words);
  Result<void> expire(const Words& words, std::string_view unit);
  Result<void> time_left(std::string_view key, bool absolute, std::int64_t unit);
  Result<void> mset(const Words& words, bool only_new);
  Result<void> rename(const Words& words, bool only_new);
  Result<void> copy(const Words& words);
  Result<void> count_present(const Words& words);
  Result<void> remove_all(const Words& words);
  Result<void> get_and(const Words& words, bool remove);
  Result<void> persist(const Words& words);
  Result<void> mget(const Words& words) {
    reply_.array(words.size() - 1);
    for (std::size_t i = 1; i < words.size(); i++) value_or_nil(tables_.lookup(words[i]));
    return {};
  }
  Result<void> set_new(const Words& words) {
    if (there(words[1])) return answer(0);
    TRY(tables_.insert(words[1], words[2]));
    return answer(1);
  }
  Result<void> length(const Words& words) {
    const auto found = tables_.lookup(words[1], Range::nothing());
    return answer(found ? static_cast<std::int64_t>(found->size) : 0);
  }
  Result<void> ping(const Words& words) {
    words.size() > 1 ? reply_.bulk(words[1]) : reply_.simple("PONG");
    return {};
  }

  Transaction& tables_;
  Reply& reply_;
};

Result<void> Run::set(const Words& words) {
  bool nx = false, xx = false, get = false, keep = false, timed = false;
  std::int64_t at = 0;
  for (std::size_t i = 3; i < words.size(); i++) {
    const std::string option = upper(words[i]);
    if (set_flag(option, {{"NX", &nx}, {"XX", &xx}, {"GET", &get}})) continue;
    if (option == "KEEPTTL" && !timed)
      keep = true;
    else if ((option == "EX" || option == "PX" || option == "EXAT" || option == "PXAT") && i + 1 < words.size() &&
             !timed && !keep) {
      std::int64_t number = 0;
      if (!read_integer(words[++i], number)) return refuse(kNoInteger);
      if (!read_expiry(option, number, now_ms(), at)) return refuse("ERR invalid expire time in 'set' command");
      timed = true;
    } else
      return refuse(kSyntax);
  }
  if (nx && xx) return refuse(kSyntax);
  const auto old = tables_.lookup(words[1], get ? Range::whole() : Range::nothing());
  const bool writes = !(nx && old) && !(xx && !old);
  if (writes) TRY(put(words[1], words[2], keep && old ? end_of(*old) : at));
  if (get)
    value_or_nil(old);
  else if (writes)
    reply_.simple("OK");
  else
    reply_.nil();
  return {};
}

Result<void> Run::set_until(const Words& words, std::string_view unit) {
  std::int64_t number = 0, at = 0;
  if (!read_integer(words[2], number)) return refuse(kNoInteger);
  if (!read_expiry(unit, number, now_ms(), at))
    return refuse("ERR invalid expire time in '" + lower(words[0]) + "' command");
  TRY(put(words[1], words[3], at));
  reply_.simple("OK");
  return {};
}

Result<void> Run::getex(const Words& words) {
  std::int64_t at = -1;  // leave it
  if (words.size() == 3 && upper(words[2]) == "PERSIST")
    at = 0;
  else if (words.size() == 4) {
    const std::string option = upper(words[2]);
    std::int64_t number = 0;
    if (option != "EX" && option != "PX" && option != "EXAT" && option != "PXAT") return refuse(kSyntax);
    if (!read_integer(words[3], number)) return refuse(kNoInteger);
    if (!read_expiry(option, number, now_ms(), at)) return refuse("ERR invalid expire time in 'getex' command");
  } else if (words.size() != 2)
    return refuse(kSyntax);
  const auto found = tables_.lookup(words[1]);
  value_or_nil(found);
  if (found && at >= 0 && at != end_of(*found)) TRY(put_again(words[1], *found, at));
  return {};
}

Result<void> Run::increment(std::string_view key, std::int64_t by) {
  const auto found = tables_.lookup(key);
  std::int64_t old = 0, sum = 0;
  if (found && !read_integer(found->value, old)) return refuse(kNoInteger);
  if (__builtin_add_overflow(old, by, &sum)) return refuse("ERR increment or decrement would overflow");
  TRY(put(key, std::to_string(sum), found ? end_of(*found) : 0));
  return answer(sum);
}

Result<void> Run::increment_by(const Words& words, bool negative) {
  std::int64_t by = 0;
  if (!read_integer(words[2], by)) return refuse(kNoInteger);
  if (negative && by == INT64_MIN) return refuse("ERR decrement would overflow");
  return increment(words[1], negative ? -by : by);
}

Result<void> Run::increment_float(const Words& words) {
  const auto read = [](std::string_view text, long double& out) {
    const std::string copy(text);
    char* end = nullptr;
    if (copy.empty() || copy.size() > 200 || std::isspace(static_cast<unsigned char>(copy[0]))) return false;
    out = std::strtold(copy.c_str(), &end);
    return end == copy.c_str() + copy.size() && !std::isnan(out);
  };
  const auto found = tables_.lookup(words[1]);
  long double old = 0, by = 0;
  if (found && !read(found->value, old)) return refuse("ERR value is not a valid float");
  if (!read(words[2], by)) return refuse("ERR value is not a valid float");
  if (!std::isfinite(old + by)) return refuse("ERR increment would produce NaN or Infinity");
  std::string text(6000, '\0');  // the largest has 4,933 digits before its point
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.17Lf", old + by)));
  std::string_view shown = strip_zeros(text);
  if (shown == "-0") shown = "0";
  TRY(put(words[1], shown, found ? end_of(*found) : 0));
  reply_.bulk(shown);
  return {};
}

Result<void> Run::append(const Words& words) {
  const auto found = tables_.lookup(words[1], Range::nothing());
  const std::uint64_t size = (found ? found->size : 0) + words[2].size();
  if (size > kMostString) return refuse("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
  if (!found)
    TRY(tables_.insert(words[1], words[2]));
  else if (!words[2].empty())
    TRY(tables_.append(words[1], words[2]));
  return answer(static_cast<std::int64_t>(size));
}

Result<void> Run::getrange(const Words& words) {
  std::int64_t first = 0, last = 0;
  if (!read_integer(words[2], first) || !read_integer(words[3], last)) return refuse(kNoInteger);
  const auto there = tables_.lookup(words[1], Range::nothing());
  const std::int64_t size = there ? static_cast<std::int64_t>(there->size) : 0;
  if (first < 0) first = std::max<std::int64_t>(0, first + size);
  if (last < 0) last += size;
  last = std::min(last, size - 1);
  if (first > last) {
    reply_.bulk({});
    return {};
  }
  const auto range = Range::bytes(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(last - first) + 1);
  reply_.bulk(tables_.lookup(words[1], range)->value);
  return {};
}

Result<void> Run::setrange(const Words& words) {
  std::int64_t offset = 0;
  if (!read_integer(words[2], offset)) return refuse(kNoInteger);
  if (offset < 0) return refuse("ERR offset is out of range");
  const auto found = tables_.lookup(words[1]);
  if (words[3].empty()) return answer(found ? static_cast<std::int64_t>(found->size) : 0);
  if (static_cast<std::uint64_t>(offset) > kMaxValueSize - std::min(kMaxValueSize, words[3].size()))
    return refuse("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
  std::string value = found ? found->value : std::string();
  const std::size_t end = static_cast<std::size_t>(offset) + words[3].size();
  if (value.size() < end) value.resize(end, '\0');
  value.replace(static_cast<std::size_t>(offset), words[3].size(), words[3]);
  TRY(put(words[1], value, found ? end_of(*found) : 0));
  return answer(static_cast<std::int64_t>(value.size()));
}

Result<void> Run::expire(const Words& words, std::string_view unit) {
  std::int64_t number = 0;
  if (!read_integer(words[2], number)) return refuse(kNoInteger);
  bool nx = false, xx = false, gt = false, lt = false;
  for (std::size_t i = 3; i < words.size(); i++) {
    const std::string option = upper(words[i]);
    if (!set_flag(option, {{"NX", &nx}, {"XX", &xx}, {"GT", &gt}, {"LT", &lt}}))
      return refuse("ERR Unsupported option " + std::string(words[i]));
  }
  if (nx && (xx || gt || lt)) return refuse("ERR NX and XX, GT or LT options at the same time are not compatible");
  if (gt && lt) return refuse("ERR GT and LT options at the same time are not compatible");
  std::int64_t at = 1;  // a time that has passed
  if (number > 0 && !read_expiry(unit, number, now_ms(), at))
    return refuse("ERR invalid expire time in '" + lower(words[0]) + "' command");
  const auto found = tables_.lookup(words[1]);
  if (!found) return answer(0);
  const std::int64_t old = end_of(*found);
  if ((nx && old != 0) || (xx && old == 0) || (gt && (old == 0 || at <= old)) || (lt && old != 0 && at >= old))
    return answer(0);
  TRY(put_again(words[1], *found, at));
  return answer(1);
}

Result<void> Run::time_left(std::string_view key, bool absolute, std::int64_t unit) {
  const auto found = tables_.lookup(key, Range::nothing());
  if (!found)
    reply_.integer(-2);
  else if (end_of(*found) == 0)
    reply_.integer(-1);
  else if (absolute)
    reply_.integer(end_of(*found) / unit);
  else
    reply_.integer((std::max<std::int64_t>(0, end_of(*found) - now_ms()) + unit / 2) / unit);
  return {};
}

Result<void> Run::mset(const Words& words, bool only_new) {
  if (words.size() % 2 == 0) return refuse(wrong_arity(words[0]));
  if (only_new)
    for (std::size_t i = 1; i < words.size(); i += 2)
      if (there(words[i])) return answer(0);
  for (std::size_t i = 1; i < words.size(); i += 2) TRY(tables_.insert(words[i], words[i + 1]));
  only_new ? reply_.integer(1) : reply_.simple("OK");
  return {};
}

Result<void> Run::rename(const Words& words, bool only_new) {
  const auto found = tables_.lookup(words[1]);
  if (!found) return refuse("ERR no such key");
  if (only_new && there(words[2])) return answer(0);
  if (words[1] != words[2]) {
    TRY(put_again(words[2], *found, end_of(*found)));
    TRY(tables_.remove(words[1]));
  }
  only_new ? reply_.integer(1) : reply_.simple("OK");
  return {};
}

Result<void> Run::copy(const Words& words) {
  bool replace = false;
  for (std::size_t i = 3; i < words.size(); i++) {
    if (upper(words[i]) == "REPLACE")
      replace = true;
    else if (upper(words[i]) == "DB" && i + 1 < words.size() && words[i + 1] == "0")
      i++;
    else
      return refuse(kSyntax);
  }
  if (words[1] == words[2]) return refuse("ERR source and destination objects are the same");
  const auto found = tables_.lookup(words[1]);
  if (!found || (!replace && there(words[2]))) return answer(0);
  TRY(put_again(words[2], *found, end_of(*found)));
  return answer(1);
}

Result<void> Run::count_present(const Words& words) {
  return answer(std::count_if(words.begin() + 1, words.end(), [this](std::string_view key) { return there(key); }));
}

Result<void> Run::remove_all(const Words& words) {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < words.size(); i++) {
    if (!there(words[i])) continue;
    TRY(tables_.remove(words[i]));
    count++;
  }
  return answer(count);
}

Result<void> Run::get_and(const Words& words, bool remove) {
  value_or_nil(tables_.lookup(words[1]));
  return remove ? tables_.remove(words[1]) : tables_.insert(words[1], words[2]);
}

Result<void> Run::persist(const Words& words) {
  const auto found = tables_.lookup(words[1]);
  if (!found || end_of(*found) == 0) return answer(0);
  TRY(put_again(words[1], *found, 0));
  return answer(1);
}

Result<void> Run::command(const Words& words) {
  using Do = Result<void> (*)(Run&, const Words&);
  static const std::map<std::string_view, Do> all = {
      {"APPEND", [](Run& r, const Words& w) { return r.append(w); }},
      {"COPY", [](Run& r, const Words& w) { return r.copy(w); }},
      {"DECR", [](Run& r, const Words& w) { return r.increment(w[1], -1); }},
      {"DECRBY", [](Run& r, const Words& w) { return r.increment_by(w, true); }},
      {"DEL", [](Run& r, const Words& w) { return r.remove_all(w); }},
      {"ECHO", [](Run& r, const Words& w) { return r.reply_.bulk(w[1]), Result<void>(); }},
      {"EXISTS", [](Run& r, const Words& w) { return r.count_present(w); }},
      {"EXPIRE", [](Run& r, const Words& w) { return r.expire(w, "EX"); }},
      {"EXPIREAT", [](Run& r, const Words& w) { return r.expire(w, "EXAT"); }},
      {"EXPIRETIME", [](Run& r, const Words& w) { return r.time_left(w[1], true, 1000); }},
      {"GET", [](Run& r, const Words& w) { return r.value_or_nil(r.tables_.lookup(w[1])), Result<void>(); }},
      {"GETDEL", [](Run& r, const Words& w) { return r.get_and(w, true); }},
      {"GETEX", [](Run& r, const Words& w) { return r.getex(w); }},
      {"GETRANGE", [](Run& r, const Words& w) { return r.getrange(w); }},
      {"GETSET", [](Run& r, const Words& w) { return r.get_and(w, false); }},
      {"INCR", [](Run& r, const Words& w) { return r.increment(w[1], 1); }},
      {"INCRBY", [](Run& r, const Words& w) { return r.increment_by(w, false); }},
      {"INCRBYFLOAT", [](Run& r, const Words& w) { return r.increment_float(w); }},
      {"MGET", [](Run& r, const Words& w) { return r.mget(w); }},
      {"MSET", [](Run& r, const Words& w) { return r.mset(w, false); }},
      {"MSETNX", [](Run& r, const Words& w) { return r.mset(w, true); }},
      {"PERSIST", [](Run& r, const Words& w) { return r.persist(w); }},
      {"PEXPIRE", [](Run& r, const Words& w) { return r.expire(w, "PX"); }},
      {"PEXPIREAT", [](Run& r, const Words& w) { return r.expire(w, "PXAT"); }},
      {"PEXPIRETIME", [](Run& r, const Words& w) { return r.time_left(w[1], true, 1); }},
      {"PING", [](Run& r, const Words& w) { return r.ping(w); }},
      {"PSETEX", [](Run& r, const Words& w) { return r.set_until(w, "PX"); }},
      {"PTTL", [](Run& r, const Words& w) { return r.time_left(w[1], false, 1); }},
      {"RENAME", [](Run& r, const Words& w) { return r.rename(w, false); }},
      {"RENAMENX", [](Run& r, const Words& w) { return r.rename(w, true); }},
      {"SET", [](Run& r, const Words& w) { return r.set(w); }},
      {"SETEX", [](Run& r, const Words& w) { return r.set_until(w, "EX"); }},
      {"SETNX", [](Run& r, const Words& w) { return r.set_new(w); }},
      {"SETRANGE", [](Run& r, const Words& w) { return r.setrange(w); }},
      {"STRLEN", [](Run& r, const Words& w) { return r.length(w); }},
      {"SUBSTR", [](Run& r, const Words& w) { return r.getrange(w); }},
      {"TOUCH", [](Run& r, const Words& w) { return r.count_present(w); }},
      {"TTL", [](Run& r, const Words& w) { return r.time_left(w[1], false, 1000); }},
      {"TYPE",
       [](Run& r, const Words& w) { return r.reply_.simple(r.there(w[1]) ? "string" : "none"), Result<void>(); }},
      {"UNLINK", [](Run& r, const Words& w) { return r.remove_all(w); }},
  };
  const auto found = all.find(words[0]);
  if (found == all.end())
    return base::fail(Code::invalid, "command ", base::escape(words[0]), " does not run inside the store");
  return found->second(*this, words);
}

Result<std::string> run(Transaction& tables, Bytes, Bytes arguments) {
  const auto malformed = [] { return base::fail(Code::invalid, "resp: the script ends too early"); };
  base::Reader reader(arguments);
  const int protocol = reader.u8();
  const bool transaction = reader.u8() != 0;
  std::string out;
  Reply reply(out, protocol);
  const std::uint32_t watched = reader.u32();
  bool changed = false;
  for (std::uint32_t i = 0; i < watched && reader.ok(); i++) {
    const Bytes key = reader.str();
    const Version version = reader.u64();
    if (!reader.ok()) return malformed();
    const auto found = tables.lookup(key, Range::nothing());
    changed |= (found ? found->version : 0) != version;
  }
  const std::uint32_t count = reader.u32();
  if (changed) {
    reply.nil_array();
    return out;
  }
  if (transaction) reply.array(count);
  Run run(tables, reply);
  for (std::uint32_t i = 0; i < count; i++) {
    const std::uint32_t size = reader.u32();
    if (!reader.ok() || size > reader.left()) return malformed();  // a word has four bytes at least
    Words words;
    for (std::uint32_t w = 0; w < size; w++) words.push_back(reader.str());
    const Spec* spec = reader.ok() && size > 0 ? find_spec(words[0]) : nullptr;
    if (spec == nullptr || !spec->in_store || !arity_fits(*spec, words.size())) return malformed();
    TRY(run.command(words));
  }
  if (!reader.done()) return malformed();
  return out;
}

}  // namespace

std::string encode(const Script& script) {
  std::string out;
  base::Writer writer(out);
  writer.u8(static_cast<std::uint8_t>(script.protocol));
  writer.u8(script.transaction ? 1 : 0);
  writer.u32(static_cast<std::uint32_t>(script.watched.size()));
  for (const Watched& one : script.watched) {
    writer.str(one.key);
    writer.u64(one.version);
  }
  writer.u32(static_cast<std::uint32_t>(script.commands.size()));
  for (const Command& command : script.commands) {
    writer.u32(static_cast<std::uint32_t>(command.size()));
    for (const std::string& word : command) writer.str(word);
  }
  return out;
}

void add_procedures(Procedures& procedures) { procedures.add(std::string(kProcedure), run); }

bool read_integer(std::string_view text, std::int64_t& out) {
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.empty() || digits[0] < '0' || digits[0] > '9' || (digits[0] == '0' && text.size() > 1)) return false;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  return failed == std::errc() && end == text.data() + text.size();
}

bool read_expiry(std::string_view option, std::int64_t number, std::int64_t now_ms, std::int64_t& at_ms) {
  const bool seconds = option.starts_with('E'), absolute = option.ends_with("AT");
  if (number <= 0 || number > (seconds ? kMostMillis / 1000 : kMostMillis)) return false;
  at_ms = (seconds ? number * 1000 : number) + (absolute ? 0 : now_ms);
  return true;
}

}  // namespace zht::resp
