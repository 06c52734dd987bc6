#include "zht/security/munge.h"

#include <unistd.h>

#ifdef ZHT_HAS_MUNGE
#include <dlfcn.h>
#include <munge.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <type_traits>
#endif

namespace zht::security {

using base::Bytes;
using base::Code;
using base::Error;
using base::fail;
using base::Result;

namespace {
constexpr Bytes kWord = "munge", kWordAndPath = "munge:", kPassword = "zht";
}  // namespace

bool Munge::is_meant(Bytes word) { return word == kWord || word.starts_with(kWordAndPath); }

Result<std::shared_ptr<const Munge>> Munge::open(Bytes word) {
  CHECK(is_meant(word), "not munge");
  std::shared_ptr<Munge> made(new Munge);
  made->origin_ = word;
  if (word.starts_with(kWordAndPath)) {
    made->socket_ = word.substr(kWordAndPath.size());
    if (made->socket_.empty()) return fail(Code::invalid, "munge: names no socket; say munge for munged's usual one");
  }
  TRY(made->prove("first words"));
  return std::shared_ptr<const Munge>(std::move(made));
}

std::shared_ptr<const Munge> Munge::for_purpose(Bytes purpose) const {
  std::shared_ptr<Munge> made(new Munge(*this));
  made->purpose_ = purpose;
  return made;
}

std::string Munge::remedy() const {
  return "this cluster lets in whom munge vouches for: ZHT_SECRET_FILE=munge, as the node's user or root (Redis clients: AUTH with what "
         "`munge -s zht` prints)";
}

#ifdef ZHT_HAS_MUNGE

namespace {

// What is used of libmunge. No calls before it was found; never unloaded.
struct Library {
  decltype(&::munge_encode) encode = nullptr;
  decltype(&::munge_decode) decode = nullptr;
  decltype(&::munge_ctx_create) create = nullptr;
  decltype(&::munge_ctx_destroy) destroy = nullptr;
  decltype(&::munge_ctx_set) set = nullptr;
  decltype(&::munge_ctx_strerror) context_error = nullptr;
  decltype(&::munge_strerror) error = nullptr;
  std::string missing;  // why there is none; empty: it is there

  Library() {
    void* const handle = ::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      missing = ::dlerror();
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      if (function == nullptr) missing = std::string("libmunge has no ") + name;
    };
    find(encode, "munge_encode");
    find(decode, "munge_decode");
    find(create, "munge_ctx_create");
    find(destroy, "munge_ctx_destroy");
    find(set, "munge_ctx_set");
    find(context_error, "munge_ctx_strerror");
    find(error, "munge_strerror");
  }
};

const Library& library() {
  static const Library one;
  return one;
}

using Steady = std::chrono::steady_clock;
constexpr auto kAfterSilence = std::chrono::seconds(1);  // that long nobody waits for a munged that did not answer
std::atomic<Steady::rep> silent_until{0};

// One call's context, which threads must not share.
class Call {
 public:
  explicit Call(const std::string& socket) : context_(library().create()) {
    CHECK(context_ != nullptr, "out of memory");
    if (!socket.empty()) library().set(context_, MUNGE_OPT_SOCKET, socket.c_str());
  }
  ~Call() { library().destroy(context_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  munge_ctx_t context() const { return context_; }
  Error failed(munge_err_t error) const {
    const bool silent = error == EMUNGE_SOCKET || error == EMUNGE_TIMEOUT;
    if (silent) silent_until = (Steady::now() + kAfterSilence).time_since_epoch().count();
    const char* words = library().context_error(context_);
    return fail(silent ? Code::unavailable : Code::invalid, "munge: ", words != nullptr ? words : library().error(error),
                silent ? "; is munged running here?" : "");
  }

 private:
  const munge_ctx_t context_;
};

Result<void> ready() {
  if (!library().missing.empty()) return fail(Code::unsupported, "munge: ", library().missing, "; install the package libmunge2");
  if (Steady::now().time_since_epoch().count() < silent_until) return fail(Code::unavailable, "munge: munged did not answer a moment ago");
  return {};
}

}  // namespace

Result<std::string> Munge::prove(Bytes statement) const {
  TRY(ready());
  const std::string payload = purpose_ + "\n" + std::string(statement);
  const Call call(socket_);
  char* credential = nullptr;
  const munge_err_t error = library().encode(&credential, call.context(), payload.data(), static_cast<int>(payload.size()));
  const std::string proof = credential != nullptr ? credential : "";
  ::free(credential);
  if (error != EMUNGE_SUCCESS) return call.failed(error);
  if (proof.size() > kMostProof) return fail(Code::unsupported, "munge: a credential of ", proof.size(), " bytes");
  return proof;
}

Result<void> Munge::check(Bytes statement, Bytes proof) const { return opens(proof, purpose_ + "\n" + std::string(statement)); }

bool Munge::admits(Bytes word) const {
  while (!word.empty() && (word.back() == '\n' || word.back() == '\r')) word.remove_suffix(1);
  return word.size() <= kMostProof && opens(word, kPassword);
}

Result<void> Munge::opens(Bytes credential, Bytes payload) const {
  // libmunge reads up to a zero byte, and complains of anything but its own words.
  if (!credential.starts_with("MUNGE:") || credential.find('\0') != Bytes::npos) return fail(Code::invalid, "that is no credential of munge");
  TRY(ready());
  const Call call(socket_);
  void* bytes = nullptr;
  int size = 0;
  uid_t user = 0;
  gid_t group = 0;
  const munge_err_t error = library().decode(std::string(credential).c_str(), call.context(), &bytes, &size, &user, &group);
  const std::string said(static_cast<const char*>(bytes), bytes != nullptr && size > 0 ? static_cast<std::size_t>(size) : 0);
  ::free(bytes);
  if (error != EMUNGE_SUCCESS) return call.failed(error);
  if (said != payload) return fail(Code::invalid, "munge: a credential for something else");
  if (user != 0 && user != ::geteuid())
    return fail(Code::invalid, "munge: a process of user ", user, "; let in are those of user ", ::geteuid(), " and of root");
  return {};
}

#else

namespace {
Error without() { return fail(Code::unsupported, "munge: this was built without it (package libmunge-dev)"); }
}  // namespace

Result<std::string> Munge::prove(Bytes) const { return without(); }
Result<void> Munge::check(Bytes, Bytes) const { return without(); }
bool Munge::admits(Bytes) const { return false; }
Result<void> Munge::opens(Bytes, Bytes) const { return without(); }

#endif

}  // namespace zht::security
