// What the services add to a backup; only this folder knows them.
#pragma once

#include <vector>

#include "zht/backup.h"

namespace zht::tool {

std::vector<BackupService> backup_services();

}  // namespace zht::tool
