// What `matrix run` reads goes to its task, which the machine's agent starts, not this process: through a pipe in the data folder, as
// it comes and as the task takes it.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "novoht/base/result.h"

namespace matrix {

class StandardInput {
 public:
  // Makes the pipe in `folder` and begins to carry as soon as a task has opened it. Nothing: standard input is a terminal, /dev/null or
  // closed. io: the pipe cannot be made.
  static base::Result<std::unique_ptr<StandardInput>> carry(const std::string& folder);
  ~StandardInput();  // what was not taken is lost
  StandardInput(const StandardInput&) = delete;
  StandardInput& operator=(const StandardInput&) = delete;
  const std::string& path() const { return path_; }

 private:
  StandardInput() = default;
  void run();

  std::string path_;
  int pipe_ = -1, opened_ = -1, stop_ = -1;  // the pipe; inotify: somebody has opened it; eventfd: to end the thread
  std::thread thread_;
};

}  // namespace matrix
