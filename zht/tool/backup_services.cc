#include "zht/tool/backup_services.h"

#ifdef ZHT_WITH_FUSIONFS
#include "fusionfs/backup/service.h"
#endif

namespace zht::tool {

std::vector<BackupService> backup_services() {
  std::vector<BackupService> services;
#ifdef ZHT_WITH_FUSIONFS
  services.push_back(fusionfs::backup_service());
#endif
  return services;
}

}  // namespace zht::tool
