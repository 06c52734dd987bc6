// What MATRIX does inside the store, where a client-side loop of lookup and cswap would have to read and rewrite the
// same records: claiming chunks, recording results, cancelling. All of them work on the keys of one job, {t:<job>}.
//
//   matrix.claim   ClaimRequest -> ClaimReply     chunks that nobody owns, or an earlier incarnation of the same agent,
//                                                 become the caller's: epoch + 1. Its own are handed out again
//                                                 unchanged, so a repeated claim does no harm. conflict: a later
//                                                 incarnation lives.
//   matrix.record  RecordRequest -> RecordReply   results and running marks of owned chunks. A chunk whose epoch moved
//   on
//                                                 is fenced: nothing of it is taken. A task that has an end state keeps
//                                                 it: the first one recorded wins, a repeated request changes nothing.
//   matrix.cancel  CancelRequest -> CancelReply   marks the job, and ends every task of chunks that nobody owns.
//
// Whichever request ends the last task also writes {t:<job>}end, on which clients wait.
#pragma once

#include "zht/procedure.h"

namespace matrix {

void add_procedures(zht::Procedures& procedures);

}  // namespace matrix
