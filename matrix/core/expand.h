// Placeholders of a command template, as users of GNU parallel know them:
//   {}  the item       {.}  without its last extension     {/}  its last path component    {//}  the folder it is in
//   {#} the number, from 1                                 {/.} last component without extension
//   {2} {2.} {2/} {2//} {2/.}  the same of the second of several sources of items
// Everything else in braces stays as it is. {} and the others of several sources are those of each, with blanks between.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace matrix {

bool has_placeholder(const std::string& word, std::size_t sources = 1);
// `quoted`: each replacement is quoted for /bin/sh, so that an item is never read as shell syntax.
std::string expand(const std::string& word, const std::string& item, std::uint64_t number, bool quoted = false);
std::string expand(const std::string& word, const std::vector<std::string>& parts, std::uint64_t number, bool quoted);
// Every choice of one from each source, the last changing fastest.
std::vector<std::vector<std::string>> combinations(const std::vector<std::vector<std::string>>& sources);
std::string quote_for_shell(const std::string& text);

}  // namespace matrix
