// The `zht` program. Each verb is in the file of its name.
#include "zht/procedure.h"
#include "zht/support/program.h"
#include "zht/tool/serve.h"

int main(int argc, char** argv) {
  support::Program program("zht", "the zero-hop hash table",
                           {"zht insert greeting hello && zht lookup greeting", "zht serve --listen 127.0.0.1:5470"});
  zht::Procedures procedures;
  zht::tool::add_all_procedures(procedures);
  zht::tool::add_serve(program, procedures);
  return program.run(argc, argv);
}
