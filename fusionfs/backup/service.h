// What FusionFS adds to a backup of the store (zht/backup.h): the contents of files, which lie in the nodes' chunk stores.
//
// Chunks are written in place, so their bytes are not those of one moment as keys are. What is promised is in README.md, "Backups":
// most files are copied before the cut, and a copy counts if the inode has not been committed since; the others are copied right
// after it. A restored file system is that of the cut in all its names and inodes.
#pragma once

#include "zht/backup.h"

namespace fusionfs {

zht::BackupService backup_service();

}  // namespace fusionfs
