// What the kernel can do at most: processes by vfork and exec, so many in flight, from as many threads as there are
// cores, nothing recorded, nothing captured.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bench {

// Runs `argv` (argv[0] a path) `count` times, `width` at a time; returns the seconds it took. wrong() when one does not
// exit with 0.
double spawn_limit(const std::vector<std::string>& argv, std::size_t count, std::size_t width);

}  // namespace bench
