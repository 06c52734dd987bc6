// A process that outlives the node's by a moment. When a process is killed, the others find out by its silence, which takes as long
// as a lease lasts; but the kernel knows at once, and nothing that the dead process had promised can be broken by it any more. So a
// node is watched by a small process of its own that says so: it holds one end of a pair of sockets, whose other end the kernel
// closes with the last thread of the node, and then tells the managers: one has the node's instances counted out of their views
// (Change::exited), and none takes it for a place for copies. A node that is stopped, cut off or lost with its machine is found
// out by silence, as before.
//
//   TRY_LET(witness, Witness::start(credentials));   // before there is a second thread
//   witness->inform(testament);                      // whenever what it would say has changed
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "novoht/base/result.h"
#include "zht/security/guard.h"

namespace zht::wire {
class Testament;
}

namespace zht::server {

// Any one thread.
class Witness {
 public:
  // Forks. `credentials` is asked in the new process, when it is needed there. Errors: io.
  static base::Result<std::unique_ptr<Witness>> start(std::function<base::Result<security::Opener>()> credentials);
  ~Witness();
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  // What to say from now on. Never blocks; a witness that does not listen is one that is not there.
  void inform(const wire::Testament& testament);

 private:
  explicit Witness(int descriptor) : descriptor_(descriptor) {}
  const int descriptor_;
  std::string told_;
};

}  // namespace zht::server
