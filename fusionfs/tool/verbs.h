// The verbs of the `fusionfs` program.
#pragma once

namespace support {
class Program;
}

namespace fusionfs {

void add_mount_verbs(support::Program& program);  // mount, umount, status

}  // namespace fusionfs
