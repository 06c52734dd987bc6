// The operating system's files, written through memory: what lies inside a file's reserved size is copied into a shared
// mapping of it instead of being handed to pwrite(2). The kernel has it at once all the same, so it survives the death of
// the process; sync() (fdatasync) covers it as it covers any dirty page. For a node inside a program, whose lone change is
// so cheap that the system call would be two thirds of it: 0.7 instead of 2.0 us.
//
// What is given up: a page that the disk cannot read, of a segment written before the last restart, ends the process
// (SIGBUS) where pwrite would have returned an error. Lack of space is met by reserve(), before anything is written.
#pragma once

#include <memory>

#include "novoht/base/file.h"

namespace zht::server {

std::unique_ptr<base::FileSystem> mapped_files();  // any thread

}  // namespace zht::server
