#include "zht/procedure.h"
#include "zht/resp/procedures.h"
#include "zht/tool/serve.h"

#ifdef ZHT_WITH_FUSIONFS
#include "fusionfs/core/procedures.h"
#endif
#ifdef ZHT_WITH_MATRIX
#include "matrix/core/procedures.h"
#endif
#ifdef ZHT_WITH_FABRIQ
#include "fabriq/core/procedures.h"
#endif

namespace zht::tool {

void add_all_procedures(Procedures& procedures) {
  add_general_procedures(procedures);
  resp::add_procedures(procedures);
#ifdef ZHT_WITH_FUSIONFS
  fusionfs::add_procedures(procedures);
#endif
#ifdef ZHT_WITH_MATRIX
  matrix::add_procedures(procedures);
#endif
#ifdef ZHT_WITH_FABRIQ
  fabriq::add_procedures(procedures);
#endif
}

}  // namespace zht::tool
