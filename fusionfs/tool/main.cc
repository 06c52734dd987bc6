// The `fusionfs` program; as `mount.fusionfs` it is what mount(8) calls for `mount -t fusionfs` and /etc/fstab, as
// `mount.fuse.fusionfs` what it calls to remount (the kernel says that our type is fuse.fusionfs).
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fusionfs/tool/verbs.h"
#include "zht/support/program.h"

namespace {

// mount.fusionfs SOURCE DIRECTORY [-sfnrvw] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]: SOURCE is host:port of a cluster, or
// any word without a colon for the local node.
std::vector<std::string> from_mount(const std::vector<std::string>& given) {
  std::vector<std::string> plain, out{given[0], "mount"};
  for (std::size_t i = 1; i < given.size(); ++i) {
    const std::string& each = given[i];
    if (each == "-o" && i + 1 < given.size()) {
      out.insert(out.end(), {"-o", given[++i]});
    } else if ((each == "-N" || each == "-t") && i + 1 < given.size()) {
      ++i;
    } else if (each == "-r" || each == "--help" || each == "-h") {
      out.push_back(each);
    } else if (each.starts_with("-")) {
      // -s, -f, -n, -v, -w: nothing to be done here.
    } else {
      plain.push_back(each);
    }
  }
  if (plain.size() == 2) {
    if (plain[0].find(':') != std::string::npos) out.insert(out.end(), {"--cluster", plain[0]});
    plain.erase(plain.begin());
  }
  out.insert(out.end(), plain.begin(), plain.end());
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  support::Program program("fusionfs", "a distributed file system over ZHT",
                           {"fusionfs mount /mnt/shared", "fusionfs umount /mnt/shared"});
  fusionfs::add_mount_verbs(program);
  fusionfs::add_look_verbs(program);
  fusionfs::add_inspect_verbs(program);
  fusionfs::add_scrub_verb(program);
  fusionfs::add_serve_verb(program);
  fusionfs::add_provenance_verbs(program);
  std::vector<std::string> words(argv, argv + argc);
  const std::string_view name = argc > 0 ? argv[0] : "";
  if (name.ends_with("mount.fusionfs") || name.ends_with("mount.fuse.fusionfs")) words = from_mount(words);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return program.run(static_cast<int>(words.size()), pointers.data());
}
