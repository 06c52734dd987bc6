// Placeholders of a command template, as users of GNU parallel know them:
//   {}  the item       {.}  without its last extension     {/}  its last path component    {//}  the folder it is in
//   {#} the number, from 1                                 {/.} last component without extension
// Everything else in braces stays as it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace matrix {

bool has_placeholder(const std::string& word);
// `quoted`: each replacement is quoted for /bin/sh, so that an item is never read as shell syntax.
std::string expand(const std::string& word, const std::string& item, std::uint64_t number, bool quoted = false);
std::string quote_for_shell(const std::string& text);

}  // namespace matrix
