#include "tests/sim/faults.h"

namespace zht::sim {

const char* name_of(Happened kind) {
  switch (kind) {
    case Happened::dropped: return "message dropped";
    case Happened::delayed: return "message delayed";
    case Happened::repeated: return "message repeated";
    case Happened::overtaken: return "message overtaken";
    case Happened::cut_both_ways: return "link cut both ways";
    case Happened::cut_one_way: return "link cut one way";
    case Happened::link_stalled: return "link stalled";
    case Happened::killed: return "process killed";
    case Happened::restarted: return "process restarted";
    case Happened::stalled: return "process stalled";
    case Happened::stalled_answer: return "process stalled before it answered";
    case Happened::power_lost: return "power lost";
    case Happened::power_lost_by_all: return "power lost by all";
    case Happened::unsynced_lost: return "unsynced data lost";
    case Happened::torn_log: return "log torn";
    case Happened::disk_full: return "disk full";
    case Happened::disk_failed: return "disk failed";
    case Happened::bit_rot: return "bit rot";
    case Happened::keeper_rot: return "bit rot at a keeper";
    case Happened::keeper_lost: return "keeper lost its promises";
    case Happened::forgotten: return "copy of a former member thrown away";
    case Happened::died_opening: return "died while it opened a store";
    case Happened::clock_rate: return "clock drifts otherwise";
    case Happened::clock_jump: return "clock jumped";
    case Happened::joined: return "node joined";
    case Happened::left: return "node left";
    case Happened::keeper_left: return "keeper left";
    case Happened::keepers_changed: return "keepers changed";
    case Happened::moved: return "partition moved";
    case Happened::vote_interrupted: return "vote interrupted";
    case Happened::count: break;
  }
  return "unknown";
}

}  // namespace zht::sim
