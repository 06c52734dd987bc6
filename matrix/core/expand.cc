#include "matrix/core/expand.h"

#include <array>
#include <string_view>

namespace matrix {
namespace {

constexpr std::array<std::string_view, 6> kPlaceholders = {"{}", "{.}", "{/}", "{//}", "{/.}", "{#}"};

std::string base_name(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string folder_name(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// "a.tar.gz" -> "a.tar"; a leading dot is part of the name: ".profile" stays.
std::string without_extension(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::size_t first = slash == std::string::npos ? 0 : slash + 1;
  const auto dot = path.rfind('.');
  return dot == std::string::npos || dot <= first ? path : path.substr(0, dot);
}

std::string value_of(std::string_view placeholder, const std::string& item, std::uint64_t number) {
  if (placeholder == "{}") return item;
  if (placeholder == "{.}") return without_extension(item);
  if (placeholder == "{/}") return base_name(item);
  if (placeholder == "{//}") return folder_name(item);
  if (placeholder == "{/.}") return without_extension(base_name(item));
  return std::to_string(number);
}

std::string_view placeholder_at(std::string_view text) {
  for (const auto placeholder : kPlaceholders)
    if (text.starts_with(placeholder)) return placeholder;
  return {};
}

}  // namespace

bool has_placeholder(const std::string& word) {
  for (std::size_t at = word.find('{'); at != std::string::npos; at = word.find('{', at + 1))
    if (!placeholder_at(std::string_view(word).substr(at)).empty()) return true;
  return false;
}

std::string expand(const std::string& word, const std::string& item, std::uint64_t number, bool quoted) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = word.find('{'); at != std::string::npos; at = word.find('{', from)) {
    const std::string_view placeholder = placeholder_at(std::string_view(word).substr(at));
    out.append(word, from, at - from);
    from = at + std::max<std::size_t>(placeholder.size(), 1);
    if (placeholder.empty()) {
      out += '{';
      continue;
    }
    const std::string value = value_of(placeholder, item, number);
    out += quoted ? quote_for_shell(value) : value;
  }
  return out.append(word, from);
}

std::string quote_for_shell(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

}  // namespace matrix
