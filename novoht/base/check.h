// CHECK(condition, message): a promise inside our own code. Broken: the program says where and aborts, in release
// builds too. Nothing that comes from a disk, a socket or a user may reach one: that is a Result's business.
#pragma once

#include <string_view>

namespace base {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);
}

#define CHECK(condition, ...)                                                                            \
  do {                                                                                                   \
    if (!(condition)) [[unlikely]]                                                                       \
      ::base::check_failed(__FILE__, __LINE__, #condition, std::string_view{__VA_ARGS__});                \
  } while (false)
