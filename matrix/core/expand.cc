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

struct Placeholder {
  std::size_t size = 0;   // of its text; 0: there is none
  std::size_t part = 0;   // which source, from 1; 0: all
  std::string_view what;  // one of kPlaceholders
};

// At the beginning of `text`, of a command with so many sources.
Placeholder placeholder_at(std::string_view text, std::size_t parts) {
  for (const auto placeholder : kPlaceholders)
    if (text.starts_with(placeholder)) return {placeholder.size(), 0, placeholder};
  std::size_t at = 1, part = 0;
  for (; at < text.size() && at < 4 && text[at] >= '0' && text[at] <= '9'; at++) part = part * 10 + static_cast<std::size_t>(text[at] - '0');
  if (at == 1 || part == 0 || part > parts) return {};
  for (const auto placeholder : kPlaceholders)
    if (placeholder != "{#}" && text.substr(at).starts_with(placeholder.substr(1))) return {at + placeholder.size() - 1, part, placeholder};
  return {};
}

}  // namespace

bool has_placeholder(const std::string& word, std::size_t sources) {
  for (std::size_t at = word.find('{'); at != std::string::npos; at = word.find('{', at + 1))
    if (placeholder_at(std::string_view(word).substr(at), sources).size != 0) return true;
  return false;
}

std::string expand(const std::string& word, const std::string& item, std::uint64_t number, bool quoted) {
  return expand(word, std::vector<std::string>{item}, number, quoted);
}

std::string expand(const std::string& word, const std::vector<std::string>& parts, std::uint64_t number, bool quoted) {
  std::string out;
  std::size_t from = 0;
  const auto put = [&](std::string_view what, const std::string& part) {
    const std::string value = value_of(what, part, number);
    out += quoted ? quote_for_shell(value) : value;
  };
  for (std::size_t at = word.find('{'); at != std::string::npos; at = word.find('{', from)) {
    const Placeholder found = placeholder_at(std::string_view(word).substr(at), parts.size());
    out.append(word, from, at - from);
    from = at + std::max<std::size_t>(found.size, 1);
    if (found.size == 0) {
      out += '{';
    } else if (found.part != 0) {
      put(found.what, parts[found.part - 1]);
    } else if (found.what == "{#}") {
      put(found.what, {});
    } else {
      for (std::size_t i = 0; i < parts.size(); i++) {
        if (i > 0) out += ' ';
        put(found.what, parts[i]);
      }
    }
  }
  return out.append(word, from);
}

std::vector<std::vector<std::string>> combinations(const std::vector<std::vector<std::string>>& sources) {
  std::vector<std::vector<std::string>> all{{}};
  for (const auto& source : sources) {
    std::vector<std::vector<std::string>> more;
    for (const auto& before : all) {
      for (const auto& item : source) {
        more.push_back(before);
        more.back().push_back(item);
      }
    }
    all = std::move(more);
  }
  return all;
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
