// Writes replies as Redis does, in RESP2 or, after HELLO 3, in RESP3 (where nothing is `_` and a map has a type of its
// own).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zht::resp {

class Reply {
 public:
  // Appends to `out`, which outlives it. protocol: 2 or 3.
  Reply(std::string& out, int protocol) : out_(out), protocol_(protocol) {}
  int protocol() const { return protocol_; }
  void simple(std::string_view text);  // +OK
  void error(std::string_view text);   // -ERR ..., line ends made harmless
  void integer(std::int64_t number);
  void bulk(std::string_view bytes);
  void nil();
  void nil_array();                                         // what EXEC answers when a watched key has changed
  void array(std::size_t count);                            // its elements follow
  void map(std::size_t count);                              // `count` pairs follow; RESP2: an array of twice as many
  void raw(std::string_view bytes) { out_.append(bytes); }  // already a reply

 private:
  void sized(char type, std::size_t count);
  std::string& out_;
  const int protocol_;
};

}  // namespace zht::resp
