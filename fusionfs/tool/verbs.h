// The verbs of the `fusionfs` program.
#pragma once

namespace support {
class Program;
}

namespace fusionfs {

void add_mount_verbs(support::Program& program);    // mount, umount, status
void add_look_verbs(support::Program& program);     // ls, stat, du, df
void add_inspect_verbs(support::Program& program);  // fsck, locate
void add_scrub_verb(support::Program& program);     // scrub
void add_serve_verb(support::Program& program);     // serve
void add_provenance_verbs(support::Program& program);  // provenance, bench

}  // namespace fusionfs
