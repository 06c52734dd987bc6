#include "zht/resp/reply.h"

#include <charconv>

namespace zht::resp {

void Reply::sized(char type, std::size_t count) {
  char text[24];
  char* const end = std::to_chars(text, text + sizeof text, count).ptr;
  out_ += type;
  out_.append(text, end).append("\r\n");
}

void Reply::simple(std::string_view text) { (out_ += '+').append(text).append("\r\n"); }
void Reply::error(std::string_view text) {
  out_ += '-';
  for (char c : text) out_ += c == '\r' || c == '\n' ? ' ' : c;
  out_ += "\r\n";
}
void Reply::integer(std::int64_t number) {
  char text[24];
  char* const end = std::to_chars(text, text + sizeof text, number).ptr;
  out_ += ':';
  out_.append(text, end).append("\r\n");
}
void Reply::bulk(std::string_view bytes) {
  sized('$', bytes.size());
  out_.append(bytes).append("\r\n");
}
void Reply::nil() { out_ += protocol_ == 3 ? "_\r\n" : "$-1\r\n"; }
void Reply::nil_array() { out_ += protocol_ == 3 ? "_\r\n" : "*-1\r\n"; }
void Reply::array(std::size_t count) { sized('*', count); }
void Reply::map(std::size_t count) { protocol_ == 3 ? sized('%', count) : sized('*', 2 * count); }

}  // namespace zht::resp
