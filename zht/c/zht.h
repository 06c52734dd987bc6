/* The C API of the store: C11 (or C++), opaque handles, no type of another language, no exception.
 *
 *   #include <inttypes.h>
 *   #include <stdio.h>
 *   #include "zht/c/zht.h"
 *
 *   int main(void) {
 *     zht_client* client = NULL;
 *     if (zht_connect(NULL, &client) != ZHT_OK) {            // the local node, started when none runs
 *       fprintf(stderr, "%s\n", zht_error());
 *       return 1;
 *     }
 *     uint64_t version = 0;
 *     zht_outcome* found = NULL;
 *     if (zht_insert(client, zht_text("greeting"), zht_text("hello"), 0, &version) == ZHT_OK &&
 *         zht_lookup(client, zht_text("greeting"), &found) == ZHT_OK) {
 *       zht_bytes value = zht_outcome_value(found);
 *       printf("%.*s, version %" PRIu64 "\n", (int)value.size, (const char*)value.data, version);
 *     } else {
 *       fprintf(stderr, "%s\n", zht_error());
 *     }
 *     zht_outcome_free(found);
 *     zht_close(client);
 *     return 0;
 *   }
 *
 * Link with -lzht (pkg-config zht, or find_package(zht) and zht::c).
 *
 * Threads: a client, a node and a queue may be used from any thread at any time, except that nothing may be under way
 * while they are closed. An outcome belongs to one thread at a time. After fork() the child may use none of the parent's
 * handles, closing included: the threads behind them are not there; it connects anew.
 * Memory: what a function hands out is freed with the function of that name (zht_outcome_free, ...); every free and close
 * takes NULL. Bytes inside a handle live as long as it does. What is passed in is copied before the call returns.
 * Errors: every function that can fail returns a zht_code and keeps a message for the calling thread (zht_error).
 * Times are milliseconds. What each operation means: zht/client.h; on the wire: zht/wire/PROTOCOL.md. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(ZHT_BUILDING)
#define ZHT_API __attribute__((visibility("default")))
#else
#define ZHT_API
#endif

/* ---- errors: one vocabulary for all of the project ---- */
typedef enum zht_code {
  ZHT_OK = 0,
  ZHT_NOT_FOUND = 1,   /* no such key */
  ZHT_CONFLICT = 2,    /* a comparison failed, or it is already there; nothing changed */
  ZHT_INVALID = 3,     /* this argument can never work */
  ZHT_UNAVAILABLE = 4, /* nobody to serve it, or cancelled; nothing changed; the same call may succeed later */
  ZHT_TIMEOUT = 5,     /* no definite answer in time: the change MAY have happened; callback: did not hold in time */
  ZHT_NO_SPACE = 6,    /* a disk, memory or a configured bound is full */
  ZHT_CORRUPT = 7,     /* stored bytes are wrong */
  ZHT_IO = 8,          /* a system call failed */
  ZHT_UNSUPPORTED = 9  /* a newer protocol or format than this build */
} zht_code;

ZHT_API const char* zht_code_name(int code);   /* "not_found", ...; never NULL */
ZHT_API const char* zht_error(void);           /* of this thread's last call that failed; until its next one; never NULL */
ZHT_API const char* zht_version_text(void);    /* "0.1.0" */

typedef struct zht_client zht_client;
typedef struct zht_node zht_node;
typedef struct zht_outcome zht_outcome;
typedef struct zht_queue zht_queue;

typedef struct zht_bytes {
  const void* data; /* may be NULL when size is 0 */
  size_t size;
} zht_bytes;
static inline zht_bytes zht_make_bytes(const void* data, size_t size) {
  zht_bytes bytes;
  bytes.data = data;
  bytes.size = size;
  return bytes;
}
static inline zht_bytes zht_text(const char* text) { return zht_make_bytes(text, strlen(text)); }

/* ---- connecting ---- */
/* Zero means the default everywhere, so begin with `zht_options options = {0};`. */
typedef struct zht_options {
  const char* cluster;         /* "host:port[,host:port...]" or a file of such; NULL: without data_folder $ZHT_CLUSTER, else the local node */
  const char* data_folder;     /* of the local node; NULL: $ZHT_DATA, else $XDG_DATA_HOME/zht, else ~/.local/share/zht */
  uint64_t timeout_ms;         /* of an operation, retries included; 10000 */
  uint64_t connect_timeout_ms; /* 2000 */
  uint64_t max_in_flight;      /* of zht_submit and queues, callbacks aside; 65536 */
  uint64_t max_connections;    /* idle connections kept; 256 */
  bool no_start;               /* do not start the local node when none runs */
  bool quiet;                  /* do not say on stderr that it was started */
  uint64_t reserved[8];        /* 0 */
} zht_options;

/* options NULL: all defaults. Errors: ZHT_UNAVAILABLE (nobody answers; who was asked), ZHT_INVALID. */
ZHT_API zht_code zht_connect(const zht_options* options, zht_client** client);
/* Answers what is under way (ZHT_TIMEOUT when it may have happened, else ZHT_UNAVAILABLE), then frees. Not from a completion. */
ZHT_API void zht_close(zht_client* client);
ZHT_API uint32_t zht_partition_count(const zht_client* client);
ZHT_API uint32_t zht_partition_of(zht_bytes key, uint32_t partition_count);

/* ---- a node inside this process (zht/node.h) ---- */
typedef struct zht_node_options {
  const char* data_folder;   /* NULL: in memory alone */
  uint32_t instances;        /* 0: what the folder has; new: one per core, at most 8 */
  uint32_t partitions;       /* 0: what the folder has; new: 1024 */
  int durability;            /* 0 interval, 1 always, 2 none */
  uint64_t sync_interval_ms; /* 1000 */
  uint64_t max_value_size;   /* bytes; 16 MiB */
  bool local_socket;         /* other processes of this user find it through the data folder */
  const char* listen;        /* host:port; NULL: no TCP */
  const char* resp;          /* host:port for Redis clients; NULL: none */
  uint64_t reserved[8];      /* 0 */
} zht_node_options;
ZHT_API zht_code zht_node_start(const zht_node_options* options, zht_node** node);
ZHT_API zht_code zht_node_client(zht_node* node, zht_client** client); /* without sockets; may outlive the node */
ZHT_API const char* zht_node_listen(const zht_node* node);             /* where it listens; "" : nowhere */
ZHT_API const char* zht_node_resp(const zht_node* node);
ZHT_API void zht_node_stop(zht_node* node);

/* ---- outcomes ---- */
/* The answer to one operation. Functions that take `zht_outcome** outcome` accept NULL; else they always set it, to
 * NULL where there is nothing to tell. It is set on errors too: a conflict carries what is there now. */
ZHT_API zht_code zht_outcome_code(const zht_outcome* outcome);
ZHT_API const char* zht_outcome_message(const zht_outcome* outcome);       /* of an error, else "" */
ZHT_API bool zht_outcome_present(const zht_outcome* outcome);              /* the key exists, after the operation */
ZHT_API zht_bytes zht_outcome_value(const zht_outcome* outcome);           /* lookup, callback, conflict; update: the result */
ZHT_API uint64_t zht_outcome_version(const zht_outcome* outcome);          /* of the key */
ZHT_API uint64_t zht_outcome_size(const zht_outcome* outcome);             /* of the whole value */
ZHT_API uint64_t zht_outcome_offset(const zht_outcome* outcome);           /* of the bytes returned, within it */
ZHT_API uint32_t zht_outcome_fragment_count(const zht_outcome* outcome);   /* of the whole value */
ZHT_API uint32_t zht_outcome_fragment_index(const zht_outcome* outcome);   /* append: this fragment's, from 0 */
/* Sizes of the fragments inside the value returned; 0 of them when it is one fragment. */
ZHT_API size_t zht_outcome_fragments(const zht_outcome* outcome, const uint32_t** sizes);
/* batch: one each on success; on failure those up to the failed one, whose index is the second function's. */
ZHT_API size_t zht_outcome_count(const zht_outcome* outcome);
ZHT_API uint32_t zht_outcome_failed_index(const zht_outcome* outcome);
ZHT_API const zht_outcome* zht_outcome_at(const zht_outcome* outcome, size_t index); /* belongs to `outcome`; NULL past the end */
/* scan */
ZHT_API size_t zht_outcome_entry_count(const zht_outcome* outcome);
ZHT_API zht_bytes zht_outcome_entry(const zht_outcome* outcome, size_t index, uint64_t* version, uint64_t* size); /* the key */
ZHT_API uint64_t zht_outcome_cursor(const zht_outcome* outcome);           /* where to go on; 0: that was all */
ZHT_API void zht_outcome_free(zht_outcome* outcome);

/* ---- operations as values: for batches, for many at once, for everything below that takes one ---- */
enum zht_kind {
  ZHT_INSERT = 1, ZHT_LOOKUP, ZHT_REMOVE, ZHT_APPEND, ZHT_CSWAP, ZHT_CALLBACK, ZHT_UPDATE, ZHT_BATCH, ZHT_SCAN
};
enum zht_condition { ZHT_NONE = 0, ZHT_ABSENT, ZHT_PRESENT, ZHT_EQUALS, ZHT_AT_VERSION, ZHT_AFTER_VERSION };
enum zht_range { ZHT_WHOLE = 0, ZHT_BYTES, ZHT_TAIL, ZHT_NOTHING };
enum zht_desired { ZHT_SET = 0, ZHT_DELETE, ZHT_KEEP };

/* Begin with `zht_operation operation = {0};` and set what the operation has. */
typedef struct zht_operation zht_operation;
struct zht_operation {
  int kind;                      /* enum zht_kind */
  zht_bytes key;                 /* 1..65535 bytes; update: the key or "{tag}" it works on; scan: the prefix; batch: none */
  zht_bytes value;               /* insert, append, cswap; update: the arguments */
  int condition;                 /* enum zht_condition; insert: NONE or ABSENT; cswap, callback: any; remove, append: NONE,
                                    PRESENT or AT_VERSION */
  zht_bytes condition_value;     /* EQUALS */
  uint64_t condition_version;    /* AT_VERSION, AFTER_VERSION */
  int desired;                   /* cswap: enum zht_desired, what it leaves behind; KEEP only checks */
  uint64_t ttl_ms;               /* insert, cswap, append to an absent key; 0: for ever */
  uint64_t limit;                /* append: largest size, 0: none; scan: entries a page, 1..10000, 0: 1000 */
  bool missing_ok;               /* remove: an absent key is fine */
  bool eventual;                 /* lookup: any copy may answer, see zht_lookup_eventual; condition: NONE or AFTER_VERSION */
  int range;                     /* lookup, callback: enum zht_range */
  uint64_t range_offset;         /* BYTES */
  uint64_t range_size;           /* BYTES: how many at most; TAIL: how many of the last fragments */
  const char* procedure;         /* update: its name, 1..255 bytes */
  const zht_operation* operations; /* batch: on keys of one partition, 1..4096; no callback, batch or scan */
  size_t operation_count;
  uint32_t partition;            /* scan */
  uint64_t cursor;               /* scan: 0 to begin */
};

/* Blocks until it is answered, `timeout_ms` at most (0: the client's; callback: how long to wait for the condition). */
ZHT_API zht_code zht_call(zht_client* client, const zht_operation* operation, uint64_t timeout_ms, zht_outcome** outcome);
/* Many at once, each a request of its own; what goes to one instance leaves in one write. `outcomes` has room for `count`;
 * each is set and must be freed. Returns ZHT_OK when every one is ok, else the first error's code. */
ZHT_API zht_code zht_call_all(zht_client* client, const zht_operation* operations, size_t count, uint64_t timeout_ms,
                              zht_outcome** outcomes);

/* ---- the operations by name; blocking, with the client's time-out; out-parameters may be NULL ---- */
ZHT_API zht_code zht_insert(zht_client* client, zht_bytes key, zht_bytes value, uint64_t ttl_ms, uint64_t* version);
ZHT_API zht_code zht_insert_new(zht_client* client, zht_bytes key, zht_bytes value, uint64_t ttl_ms, uint64_t* version);
ZHT_API zht_code zht_lookup(zht_client* client, zht_bytes key, zht_outcome** outcome);
/* The same of any copy of the key's partition, as it knows it to be committed: it may be old. Only a copy answers that has seen
 * the change with version `at_least` of the partition (0: any), so who gives the newest version he has seen never goes back. */
ZHT_API zht_code zht_lookup_eventual(zht_client* client, zht_bytes key, uint64_t at_least, zht_outcome** outcome);
ZHT_API zht_code zht_remove(zht_client* client, zht_bytes key, uint64_t* version);
/* Adds a fragment; `size`: of the value now. ZHT_NO_SPACE: it would grow past `limit` bytes (0: no such limit). */
ZHT_API zht_code zht_append(zht_client* client, zht_bytes key, zht_bytes value, uint64_t limit, uint64_t* size, uint64_t* version);
/* Sets the value where it equals `expected` (NULL: where the key is absent). ZHT_CONFLICT: `outcome` has what is there. */
ZHT_API zht_code zht_cswap(zht_client* client, zht_bytes key, const zht_bytes* expected, zht_bytes desired, zht_outcome** outcome);
/* The same where the key's version is `expected` (0: where it is absent). */
ZHT_API zht_code zht_cswap_version(zht_client* client, zht_bytes key, uint64_t expected, zht_bytes desired, zht_outcome** outcome);
/* Waits until the value equals `value`; and until the key has changed after `version`. ZHT_TIMEOUT: not in time. */
ZHT_API zht_code zht_callback_value(zht_client* client, zht_bytes key, zht_bytes value, uint64_t timeout_ms, zht_outcome** outcome);
ZHT_API zht_code zht_callback_change(zht_client* client, zht_bytes key, uint64_t version, uint64_t timeout_ms, zht_outcome** outcome);
ZHT_API zht_code zht_update(zht_client* client, zht_bytes key, const char* procedure, zht_bytes arguments, zht_outcome** outcome);
/* All or nothing. */
ZHT_API zht_code zht_batch(zht_client* client, const zht_operation* operations, size_t count, zht_outcome** outcome);
/* Every key that begins with `prefix`: false from `entry` ends the scan. Called on this thread, between requests. */
typedef bool (*zht_entry_function)(void* context, zht_bytes key, uint64_t version, uint64_t size);
ZHT_API zht_code zht_scan(zht_client* client, zht_bytes prefix, zht_entry_function entry, void* context);
/* Many keys, each by itself: as zht_call_all. */
ZHT_API zht_code zht_lookup_many(zht_client* client, const zht_bytes* keys, size_t count, zht_outcome** outcomes);
ZHT_API zht_code zht_insert_many(zht_client* client, const zht_bytes* keys, const zht_bytes* values, size_t count, zht_outcome** outcomes);

/* ---- asynchronous, with a function ---- */
/* Called once, on one of the client's own threads; it must not block and may submit. The outcome is its to free. */
typedef void (*zht_completion_function)(void* context, zht_outcome* outcome);
/* `request`, where not NULL, gets a number for zht_cancel. On an error the function is never called. Blocks only while
 * max_in_flight requests wait for their answers. */
ZHT_API zht_code zht_submit(zht_client* client, const zht_operation* operation, uint64_t timeout_ms,
                            zht_completion_function completion, void* context, uint64_t* request);
/* Ends it early, unless it has its answer: ZHT_UNAVAILABLE when nothing can have happened, else ZHT_TIMEOUT. */
ZHT_API void zht_cancel(zht_client* client, uint64_t request);

/* ---- asynchronous, with a descriptor to poll: for event loops ---- */
/* Answers gather in the queue; its descriptor is readable while there are some. A queue is freed before its client
 * is closed; callbacks under way are cancelled then, and answers that come later are dropped. */
ZHT_API zht_code zht_queue_make(zht_client* client, zht_queue** queue);
ZHT_API void zht_queue_free(zht_queue* queue);
ZHT_API int zht_queue_descriptor(const zht_queue* queue);
ZHT_API zht_code zht_queue_submit(zht_queue* queue, const zht_operation* operation, uint64_t timeout_ms, uint64_t tag);
ZHT_API void zht_queue_cancel(zht_queue* queue, uint64_t tag); /* of zht_queue_submit; every one that has this tag */
typedef struct zht_completed {
  uint64_t tag;
  zht_outcome* outcome; /* to be freed */
} zht_completed;
/* Up to `most` answers; never blocks. */
ZHT_API size_t zht_queue_take(zht_queue* queue, zht_completed* completed, size_t most);

/* ---- flat: for bindings of languages in which every call is dear ----
 * Operations and outcomes as bytes, many in one call. Little-endian; `bytes` below: u32 size, then so many.
 *   operation: u64 tag, u32 timeout_ms (0: the client's), u32 partition (scan; else 0), then an operation as a batch has
 *              it (PROTOCOL.md, field 0x8006): u8 kind, u8 flags, key bytes, value bytes, extra bytes
 *   answer:    u64 tag, u32 size, then `size` bytes: an outcome as a batch's reply has it (PROTOCOL.md) */
/* Any number of operations; ZHT_INVALID when one cannot be read, and then none was submitted. */
ZHT_API zht_code zht_queue_submit_flat(zht_queue* queue, const void* operations, size_t size);
/* Fills `to` with as many whole answers as fit and returns how many bytes that is. 0 with *needed > 0: the next one takes
 * so many bytes; 0 with *needed == 0: there is none. */
ZHT_API size_t zht_queue_take_flat(zht_queue* queue, void* to, size_t size, size_t* needed);
/* One operation, now, on this thread where that can be: its answer is taken like zht_queue_take_flat's. Where it has to
 * wait (a callback, a node that is away) returns 0 with *needed == 0 soon: the answer comes through the queue with its tag.
 * What does not fit is queued too. (size_t)-1: an error, see zht_error(); nothing was submitted. */
ZHT_API size_t zht_queue_call_flat(zht_queue* queue, const void* operation, size_t operation_size, void* to, size_t size, size_t* needed);

#ifdef __cplusplus
}
#endif
