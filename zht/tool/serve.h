// `zht serve`: runs a node, in the foreground or in the background.
#pragma once

namespace support {
class Program;
}
namespace zht {
class Procedures;
}

namespace zht::tool {

// Adds the verb. `procedures`: the general ones and every service's; outlives the program's run.
void add_serve(support::Program& program, const Procedures& procedures);

// The procedures of every service this build has, and the general ones. Only this folder knows the services.
void add_all_procedures(Procedures& procedures);

}  // namespace zht::tool
