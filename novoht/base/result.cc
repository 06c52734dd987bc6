#include "novoht/base/result.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace base {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: broken promise: %s: %.*s\n", file, line, condition, static_cast<int>(message.size()),
               message.data());
  std::abort();
}

std::string_view name_of(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::not_found: return "not_found";
    case Code::conflict: return "conflict";
    case Code::invalid: return "invalid";
    case Code::unavailable: return "unavailable";
    case Code::timeout: return "timeout";
    case Code::no_space: return "no_space";
    case Code::corrupt: return "corrupt";
    case Code::io: return "io";
    case Code::unsupported: return "unsupported";
  }
  return "unknown";
}

int exit_status_of(Code code) {
  switch (code) {
    case Code::ok: return 0;
    case Code::invalid: return 2;
    case Code::not_found: return 3;
    case Code::conflict: return 4;
    case Code::unavailable:
    case Code::timeout: return 5;
    case Code::no_space: return 6;
    case Code::corrupt:
    case Code::io: return 7;
    case Code::unsupported: return 8;
  }
  return 1;
}

int errno_of(Code code) {
  switch (code) {
    case Code::ok: return 0;
    case Code::not_found: return ENOENT;
    case Code::conflict: return EEXIST;
    case Code::invalid: return EINVAL;
    case Code::unavailable:
    case Code::timeout: return ETIMEDOUT;
    case Code::no_space: return ENOSPC;
    case Code::corrupt:
    case Code::io: return EIO;
    case Code::unsupported: return EOPNOTSUPP;
  }
  return EIO;
}

Code code_of_errno(int error) {
  switch (error) {
    case ENOENT: return Code::not_found;
    case EEXIST: return Code::conflict;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return Code::no_space;
    case EINVAL:
    case ENAMETOOLONG: return Code::invalid;
    default: return Code::io;
  }
}

Error add_context(std::string_view context, Error error) {
  error.message.insert(0, ": ");
  error.message.insert(0, context);
  return error;
}

Error fail_errno(int error, std::string_view what) {
  return fail(code_of_errno(error), what, ": ", std::strerror(error));
}

}  // namespace base
