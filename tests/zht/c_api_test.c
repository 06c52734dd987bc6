/* Every function of zht/c/zht.h, from plain C11, on a node inside this process: with its client and with one over TCP.
 * Prints the line that failed and ends with 1. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zht/c/zht.h"

#define REQUIRE(condition)                                                                            \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, zht_error());   \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)

static bool equals(zht_bytes bytes, const char* text) {
  return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

static bool value_is(zht_client* client, const char* key, const char* value) {
  zht_outcome* found = NULL;
  const bool right = zht_lookup(client, zht_text(key), &found) == ZHT_OK && equals(zht_outcome_value(found), value);
  zht_outcome_free(found);
  return right;
}

static void operations(zht_client* client) {
  uint64_t version = 0, size = 0;
  zht_outcome* outcome = NULL;
  REQUIRE(zht_insert(client, zht_text("k"), zht_text("one"), 0, &version) == ZHT_OK && version > 0);
  REQUIRE(zht_insert_new(client, zht_text("k"), zht_text("two"), 0, NULL) == ZHT_CONFLICT);
  REQUIRE(strlen(zht_error()) > 0);
  REQUIRE(zht_append(client, zht_text("k"), zht_text("+two"), 0, &size, &version) == ZHT_OK && size == 7);
  REQUIRE(zht_append(client, zht_text("k"), zht_text("xxx"), 8, NULL, NULL) == ZHT_NO_SPACE);
  REQUIRE(zht_lookup(client, zht_text("k"), &outcome) == ZHT_OK);
  REQUIRE(equals(zht_outcome_value(outcome), "one+two") && zht_outcome_present(outcome) && zht_outcome_version(outcome) == version);
  REQUIRE(zht_outcome_size(outcome) == 7 && zht_outcome_offset(outcome) == 0 && zht_outcome_fragment_count(outcome) == 2);
  const uint32_t* sizes = NULL;
  REQUIRE(zht_outcome_fragments(outcome, &sizes) == 2 && sizes[0] == 3 && sizes[1] == 4);
  zht_outcome_free(outcome);
  REQUIRE(zht_lookup_eventual(client, zht_text("k"), version, &outcome) == ZHT_OK && zht_outcome_version(outcome) == version);
  zht_outcome_free(outcome);

  zht_operation operation = {0};
  operation.kind = ZHT_LOOKUP;
  operation.key = zht_text("k");
  operation.range = ZHT_TAIL;
  operation.range_size = 1;
  REQUIRE(zht_call(client, &operation, 0, &outcome) == ZHT_OK && equals(zht_outcome_value(outcome), "+two"));
  REQUIRE(zht_outcome_offset(outcome) == 3);
  zht_outcome_free(outcome);

  const zht_bytes wrong = zht_text("no"), right = zht_text("one+two");
  REQUIRE(zht_cswap(client, zht_text("k"), &wrong, zht_text("x"), &outcome) == ZHT_CONFLICT);
  REQUIRE(outcome != NULL && equals(zht_outcome_value(outcome), "one+two") && zht_outcome_code(outcome) == ZHT_CONFLICT);
  REQUIRE(strlen(zht_outcome_message(outcome)) > 0);
  zht_outcome_free(outcome);
  REQUIRE(zht_cswap(client, zht_text("k"), &right, zht_text("three"), &outcome) == ZHT_OK);
  version = zht_outcome_version(outcome);
  zht_outcome_free(outcome);
  REQUIRE(zht_cswap_version(client, zht_text("k"), version, zht_text("four"), NULL) == ZHT_OK);
  REQUIRE(zht_cswap_version(client, zht_text("k"), 0, zht_text("five"), NULL) == ZHT_CONFLICT);
  REQUIRE(zht_cswap(client, zht_text("new"), NULL, zht_text("made"), NULL) == ZHT_OK && value_is(client, "new", "made"));

  REQUIRE(zht_callback_value(client, zht_text("k"), zht_text("four"), 10000, &outcome) == ZHT_OK);
  zht_outcome_free(outcome);
  REQUIRE(zht_callback_change(client, zht_text("k"), version, 10000, NULL) == ZHT_OK);
  REQUIRE(zht_callback_value(client, zht_text("k"), zht_text("never"), 10, NULL) == ZHT_TIMEOUT);

  REQUIRE(zht_update(client, zht_text("n"), "add", zht_text("41"), &outcome) == ZHT_OK && equals(zht_outcome_value(outcome), "41"));
  zht_outcome_free(outcome);
  REQUIRE(zht_update(client, zht_text("n"), "no such procedure", zht_text(""), NULL) == ZHT_INVALID);

  zht_operation two[2] = {{0}};
  two[0].kind = ZHT_INSERT;
  two[0].key = zht_text("{t}a");
  two[0].value = zht_text("1");
  two[1].kind = ZHT_CSWAP;
  two[1].key = zht_text("{t}b");
  two[1].condition = ZHT_ABSENT;
  two[1].value = zht_text("2");
  REQUIRE(zht_batch(client, two, 2, &outcome) == ZHT_OK && zht_outcome_count(outcome) == 2);
  REQUIRE(zht_outcome_version(zht_outcome_at(outcome, 1)) > 0 && zht_outcome_at(outcome, 2) == NULL);
  zht_outcome_free(outcome);
  two[0].value = zht_text("changed");
  REQUIRE(zht_batch(client, two, 2, &outcome) == ZHT_CONFLICT && zht_outcome_failed_index(outcome) == 1);
  zht_outcome_free(outcome);
  REQUIRE(value_is(client, "{t}a", "1"));
  zht_outcome* each[2] = {NULL, NULL};
  REQUIRE(zht_call_all(client, two, 2, 0, each) == ZHT_CONFLICT);
  REQUIRE(zht_outcome_code(each[0]) == ZHT_OK && zht_outcome_code(each[1]) == ZHT_CONFLICT);
  zht_outcome_free(each[0]);
  zht_outcome_free(each[1]);

  const zht_bytes keys[3] = {zht_text("m1"), zht_text("m2"), zht_make_bytes("m\0003", 3)};
  const zht_bytes values[3] = {zht_text("v1"), zht_make_bytes(NULL, 0), zht_make_bytes("\0\377", 2)};
  zht_outcome* many[3] = {NULL, NULL, NULL};
  REQUIRE(zht_insert_many(client, keys, values, 3, many) == ZHT_OK);
  for (int i = 0; i < 3; i++) zht_outcome_free(many[i]);
  REQUIRE(zht_lookup_many(client, keys, 3, many) == ZHT_OK);
  for (int i = 0; i < 3; i++) {
    const zht_bytes value = zht_outcome_value(many[i]);
    REQUIRE(value.size == values[i].size && (value.size == 0 || memcmp(value.data, values[i].data, value.size) == 0));
    zht_outcome_free(many[i]);
  }

  REQUIRE(zht_remove(client, zht_text("k"), &version) == ZHT_OK);
  REQUIRE(zht_remove(client, zht_text("k"), NULL) == ZHT_NOT_FOUND);
  REQUIRE(zht_lookup(client, zht_text("k"), &outcome) == ZHT_NOT_FOUND);
  zht_outcome_free(outcome);
  REQUIRE(zht_insert(client, zht_make_bytes(NULL, 0), zht_text("v"), 0, NULL) == ZHT_INVALID);
  operation.kind = 77;
  REQUIRE(zht_call(client, &operation, 0, &outcome) == ZHT_INVALID && outcome == NULL);
}

static bool count_entry(void* context, zht_bytes key, uint64_t version, uint64_t size) {
  REQUIRE(key.size == 2 && version > 0 && size <= 2);
  return ++*(int*)context < 2;
}

static void scans(zht_client* client) {
  int seen = 0;
  REQUIRE(zht_scan(client, zht_text("m1"), count_entry, &seen) == ZHT_OK && seen == 1);
  const uint32_t partition = zht_partition_of(zht_text("m1"), zht_partition_count(client));
  zht_operation scan = {0};
  scan.kind = ZHT_SCAN;
  scan.key = zht_text("m1");
  scan.partition = partition;
  zht_outcome* page = NULL;
  REQUIRE(zht_call(client, &scan, 0, &page) == ZHT_OK && zht_outcome_entry_count(page) == 1 && zht_outcome_cursor(page) == 0);
  uint64_t version = 0, size = 0;
  REQUIRE(equals(zht_outcome_entry(page, 0, &version, &size), "m1") && version > 0 && size == 2);
  REQUIRE(zht_outcome_entry(page, 1, NULL, NULL).data == NULL);
  zht_outcome_free(page);
}

static void completed(void* context, zht_outcome* outcome) {
  __atomic_fetch_add((int*)context, zht_outcome_code(outcome) == ZHT_OK ? 1 : 1000, __ATOMIC_SEQ_CST);
  zht_outcome_free(outcome);
}

static void wait_for(const int* counter, int value) {
  const struct timespec pause = {0, 1000000};
  for (int i = 0; i < 20000 && __atomic_load_n(counter, __ATOMIC_SEQ_CST) != value; i++) nanosleep(&pause, NULL);
  REQUIRE(__atomic_load_n(counter, __ATOMIC_SEQ_CST) == value);
}

static void asynchronous(zht_client* client) {
  int counter = 0;
  zht_operation operation = {0};
  operation.kind = ZHT_APPEND;
  operation.key = zht_text("log");
  operation.value = zht_text("x");
  for (int i = 0; i < 500; i++) REQUIRE(zht_submit(client, &operation, 0, completed, &counter, NULL) == ZHT_OK);
  wait_for(&counter, 500);
  zht_outcome* log = NULL;
  REQUIRE(zht_lookup(client, zht_text("log"), &log) == ZHT_OK && zht_outcome_size(log) == 500);
  zht_outcome_free(log);
  REQUIRE(zht_remove(client, zht_text("log"), NULL) == ZHT_OK);

  operation.kind = ZHT_CALLBACK;
  operation.key = zht_text("never");
  operation.value = zht_make_bytes(NULL, 0);
  operation.condition = ZHT_PRESENT;
  uint64_t request = 0;
  counter = 0;
  REQUIRE(zht_submit(client, &operation, 600000, completed, &counter, &request) == ZHT_OK && request != 0);
  zht_cancel(client, request);
  wait_for(&counter, 1000);
}

static size_t take(zht_queue* queue, zht_completed* answers, size_t most) {
  struct pollfd wait = {zht_queue_descriptor(queue), POLLIN, 0};
  size_t got = 0;
  while (got < most) {
    REQUIRE(poll(&wait, 1, 20000) == 1);
    got += zht_queue_take(queue, answers + got, most - got);
  }
  REQUIRE(poll(&wait, 1, 0) == 0);
  return got;
}

static void queues(zht_client* client) {
  zht_queue* queue = NULL;
  REQUIRE(zht_queue_make(client, &queue) == ZHT_OK);
  zht_completed answers[100];
  REQUIRE(zht_queue_take(queue, answers, 100) == 0);
  zht_operation operation = {0};
  operation.kind = ZHT_INSERT;
  operation.value = zht_text("v");
  char keys[100][8];
  for (int i = 0; i < 100; i++) {
    snprintf(keys[i], sizeof keys[i], "q%d", i);
    operation.key = zht_text(keys[i]);
    REQUIRE(zht_queue_submit(queue, &operation, 0, (uint64_t)i) == ZHT_OK);
  }
  bool seen[100] = {false};
  for (size_t i = 0, got = take(queue, answers, 100); i < got; i++) {
    REQUIRE(answers[i].tag < 100 && !seen[answers[i].tag] && zht_outcome_code(answers[i].outcome) == ZHT_OK);
    seen[answers[i].tag] = true;
    zht_outcome_free(answers[i].outcome);
  }
  operation.kind = ZHT_CALLBACK;
  operation.key = zht_text("never");
  operation.condition = ZHT_PRESENT;
  REQUIRE(zht_queue_submit(queue, &operation, 600000, 7) == ZHT_OK);
  zht_queue_cancel(queue, 7);
  REQUIRE(take(queue, answers, 1) == 1 && answers[0].tag == 7 && zht_outcome_code(answers[0].outcome) == ZHT_TIMEOUT);
  zht_outcome_free(answers[0].outcome);

  /* Flat: a lookup of "q5" with tag 9. */
  const unsigned char lookup[] = {9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    /* tag, timeout, partition */
                                  ZHT_LOOKUP, 0, 2, 0, 0, 0, 'q', '5', 0, 0, 0, 0, 0, 0, 0, 0};
  unsigned char answer[256];
  size_t needed = 0, size = zht_queue_call_flat(queue, lookup, sizeof lookup, answer, sizeof answer, &needed);
  REQUIRE(size > 12 && size != (size_t)-1 && answer[0] == 9 && answer[12] == ZHT_OK && memchr(answer + 12, 'v', size - 12) != NULL);
  const size_t whole = size;
  REQUIRE(zht_queue_call_flat(queue, lookup, sizeof lookup, answer, 10, &needed) == 0 && needed == whole);
  REQUIRE(zht_queue_take_flat(queue, answer, 10, &needed) == 0 && needed == whole);
  REQUIRE(zht_queue_take_flat(queue, answer, sizeof answer, &needed) == whole);
  REQUIRE(zht_queue_take_flat(queue, answer, sizeof answer, &needed) == 0 && needed == 0);
  unsigned char both[2 * sizeof lookup];
  memcpy(both, lookup, sizeof lookup);
  memcpy(both + sizeof lookup, lookup, sizeof lookup);
  REQUIRE(zht_queue_submit_flat(queue, both, sizeof both) == ZHT_OK);
  struct pollfd wait = {zht_queue_descriptor(queue), POLLIN, 0};
  for (size = 0; size < 2 * whole; size += zht_queue_take_flat(queue, answer, sizeof answer, &needed)) REQUIRE(poll(&wait, 1, 20000) == 1);
  for (size_t cut = 1; cut < sizeof lookup; cut++) {
    REQUIRE(zht_queue_submit_flat(queue, lookup, cut) == ZHT_INVALID);
    REQUIRE(zht_queue_call_flat(queue, lookup, cut, answer, sizeof answer, &needed) == (size_t)-1);
  }
  REQUIRE(zht_queue_submit(queue, &operation, 600000, 8) == ZHT_OK);
  zht_queue_free(queue); /* with a callback under way */
}

static void all_of_it(zht_client* client) {
  operations(client);
  asynchronous(client);
  queues(client);
}

int main(void) {
  zht_node_options options = {0};
  options.listen = "127.0.0.1:0";
  options.instances = 2;
  zht_node* node = NULL;
  REQUIRE(zht_node_start(&options, &node) == ZHT_OK);
  REQUIRE(strlen(zht_node_listen(node)) > 0 && strlen(zht_node_resp(node)) == 0);
  zht_client *inside = NULL, *outside = NULL;
  REQUIRE(zht_node_client(node, &inside) == ZHT_OK);
  zht_options over = {0};
  over.cluster = zht_node_listen(node);
  REQUIRE(zht_connect(&over, &outside) == ZHT_OK);
  all_of_it(inside);
  REQUIRE(zht_remove(inside, zht_text("n"), NULL) == ZHT_OK && zht_remove(inside, zht_text("new"), NULL) == ZHT_OK);
  REQUIRE(zht_remove(inside, zht_text("{t}b"), NULL) == ZHT_OK);
  all_of_it(outside);
  scans(outside);
  zht_close(outside);
  zht_node_stop(node);
  REQUIRE(zht_insert(inside, zht_text("k"), zht_text("v"), 0, NULL) == ZHT_UNAVAILABLE);
  zht_close(inside);

  over.cluster = "127.0.0.1:1";
  REQUIRE(zht_connect(&over, &outside) == ZHT_UNAVAILABLE && outside == NULL && strlen(zht_error()) > 0);
  options.durability = 9;
  REQUIRE(zht_node_start(&options, &node) == ZHT_INVALID && node == NULL);
  zht_close(NULL);
  zht_node_stop(NULL);
  zht_queue_free(NULL);
  zht_outcome_free(NULL);
  REQUIRE(strcmp(zht_code_name(ZHT_NOT_FOUND), "not_found") == 0 && strcmp(zht_code_name(99), "unknown") == 0);
  REQUIRE(strlen(zht_version_text()) > 0);
  puts("ok");
  return 0;
}
