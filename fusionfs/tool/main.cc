// The `fusionfs` program.
#include <CLI/CLI.hpp>

#include "fusionfs/tool/verbs.h"
#include "zht/support/program.h"

int main(int argc, char** argv) {
  support::Program program("fusionfs", "a distributed file system over ZHT",
                           {"fusionfs mount /mnt/shared", "fusionfs umount /mnt/shared"});
  fusionfs::add_mount_verbs(program);
  fusionfs::add_look_verbs(program);
  fusionfs::add_inspect_verbs(program);
  return program.run(argc, argv);
}
