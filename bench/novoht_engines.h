// The systems that novoht_bench compares, each behind the same few calls:
//
//   Engine engine(folder, pairs, Use::plain);
//   engine.insert(key, value);  engine.append(key, value);  engine.remove(key);
//   engine.equals(key, expected);  engine.has(key);
//   engine.round();   // every kRound operations: what was changed goes to the operating system, where it has not yet
//   engine.commit();  // Use::synced: everything before survives a loss of power
//
// Every engine is opened the way its manual advises for this use: room for all pairs reserved or cached, no compression,
// filters on, and everything visible to the next read at once. An engine may group writes within a round, as NoVoHT does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef WITH_ABSL
#include <absl/container/flat_hash_map.h>
#endif
#ifdef WITH_KYOTO
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <kchashdb.h>
#pragma GCC diagnostic pop
#endif
#ifdef WITH_TKRZW
#include <tkrzw_dbm_hash.h>
#endif
#ifdef WITH_BDB
#include <db.h>
#endif
#ifdef WITH_LEVELDB
#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>
#include <leveldb/write_batch.h>
#endif
#ifdef WITH_ROCKSDB
#include <rocksdb/db.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#endif
#ifdef WITH_LMDB
#include <lmdb.h>
#endif

#include "bench/measure.h"
#include "novoht/store.h"

namespace bench {

using base::Bytes;

constexpr std::size_t kKeySize = 48, kValueSize = 24;
constexpr std::size_t kRound = 256;  // operations between two rounds
constexpr std::uint64_t kPairBytes = kKeySize + 2 * kValueSize + 32;  // what a pair takes on a peer's disk, about

// Key and value `index`, made on the spot: a table of them would cost every system a cache miss of its own.
struct Pair {
  explicit Pair(std::uint64_t index) {
    std::uint64_t word = index * 0x9e3779b97f4a7c15 + 1;
    for (std::size_t i = 0; i < kKeySize; i += 8, word = word * 0xd1342543de82ef95 + index) base::store(key_ + i, word);
    for (std::size_t i = 0; i < kValueSize; i += 8) base::store(value_ + i, index + i);
  }
  Bytes key() const { return Bytes(key_, kKeySize); }
  Bytes value() const { return Bytes(value_, kValueSize); }

 private:
  char key_[kKeySize], value_[kValueSize];
};

// plain: whatever is fastest. synced: commit() is durable. logged: what round() has handed over survives the death of the
// process; the folder may hold what such a process left.
enum class Use { plain, synced, logged };

class NovohtEngine {
 public:
  static constexpr bool kOnDisk = true;
  NovohtEngine(const std::string& folder, std::size_t, Use, const novoht::Options& options = {}) : files_(base::real_files()) {
    auto opened = novoht::Store::open(*files_, folder + "/novoht", options);
    if (!opened) wrong(opened.error().message);
    store_ = *std::move(opened);
  }
  // With so much memory and no more.
  static std::unique_ptr<NovohtEngine> limited(const std::string& folder, std::size_t pairs, std::uint64_t memory) {
    novoht::Options options;
    options.memory_limit = memory;
    return std::make_unique<NovohtEngine>(folder, pairs, Use::plain, options);
  }
  void insert(Bytes key, Bytes value) { apply(novoht::Change::insert(key, value)); }
  void append(Bytes key, Bytes value) { apply(novoht::Change::append(key, value)); }
  void remove(Bytes key) { apply(novoht::Change::remove(key)); }
  bool equals(Bytes key, Bytes expected) {
    const auto value = store_->lookup(kTable, key);
    return value && equals(*value, expected);
  }
  bool has(Bytes key) const { return store_->lookup(kTable, key).has_value(); }
  void round() {
    require(store_->flush().has_value(), "flush failed");
    require(store_->maintain({}).has_value(), "maintain failed");
  }
  void commit() { require(store_->sync().has_value(), "sync failed"); }

  std::size_t equal_many(std::span<const Pair> pairs) {
    keys_.clear();
    for (const Pair& pair : pairs) keys_.push_back(pair.key());
    found_.resize(pairs.size());
    store_->lookup_many(kTable, keys_, found_);
    std::size_t good = 0;
    for (std::size_t i = 0; i < pairs.size(); i++) good += found_[i] && equals(*found_[i], pairs[i].value());
    return good;
  }
  void insert_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) changes_.push_back(novoht::Change::insert(pair.key(), pair.value()));
    apply_many();
  }
  // The same, each a record of its own.
  void insert_each(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) independent_.push_back({kTable, novoht::Change::insert(pair.key(), pair.value())});
    versions_.resize(independent_.size());
    require(store_->apply_many(independent_, versions_).has_value(), "apply_many failed");
    independent_.clear();
  }
  void append_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) changes_.push_back(novoht::Change::append(pair.key(), pair.value()));
    apply_many();
  }
  void remove_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) changes_.push_back(novoht::Change::remove(pair.key()));
    apply_many();
  }

 private:
  static constexpr novoht::TableId kTable{0};
  bool equals(const novoht::ValueView& value, Bytes expected) {
    if (const auto whole = value.contiguous()) return *whole == expected;
    copy_.clear();
    return value.read(0, value.size(), copy_) && copy_ == expected;
  }
  void apply(const novoht::Change& change) {
    require(store_->apply(kTable, std::span(&change, 1)).has_value(), "apply failed");
  }
  void apply_many() {
    require(store_->apply(kTable, changes_).has_value(), "apply failed");
    changes_.clear();
  }
  std::unique_ptr<base::FileSystem> files_;
  std::unique_ptr<novoht::Store> store_;
  std::vector<Bytes> keys_;
  std::vector<std::optional<novoht::ValueView>> found_;
  std::vector<novoht::Change> changes_;
  std::vector<novoht::TableChange> independent_;
  std::vector<novoht::Version> versions_;
  std::string copy_;
};

// Maps are asked by a view of the key, without a string made of it.
struct ViewHash {
  using is_transparent = void;
  std::size_t operator()(Bytes key) const { return std::hash<Bytes>()(key); }
};
struct UnorderedMap {
  using Map = std::unordered_map<std::string, std::string, ViewHash, std::equal_to<>>;
  static Bytes view(Bytes key) { return key; }
};
#ifdef WITH_ABSL
struct FlatHashMap {
  using Map = absl::flat_hash_map<std::string, std::string>;
  static absl::string_view view(Bytes key) { return {key.data(), key.size()}; }  // which may be a type of its own
};
#endif

// kReserved: with room for all pairs from the start, which an embedder seldom knows.
template <typename Kind, bool kReserved = false>
class MapEngine {
 public:
  static constexpr bool kOnDisk = false;
  MapEngine(const std::string&, std::size_t pairs, Use) {
    if (kReserved) map_.reserve(pairs);
  }
  void insert(Bytes key, Bytes value) {
    if (const auto found = map_.find(Kind::view(key)); found != map_.end()) found->second.assign(value);
    else map_.emplace(std::string(key), std::string(value));
  }
  void append(Bytes key, Bytes value) { map_.find(Kind::view(key))->second.append(value); }
  void remove(Bytes key) { map_.erase(map_.find(Kind::view(key))); }
  bool equals(Bytes key, Bytes expected) const {
    const auto found = map_.find(Kind::view(key));
    return found != map_.end() && found->second == expected;
  }
  bool has(Bytes key) const { return map_.find(Kind::view(key)) != map_.end(); }
  void round() {}

 private:
  typename Kind::Map map_;
};

#ifdef WITH_KYOTO
class KyotoEngine {
 public:
  static constexpr bool kOnDisk = true;
  KyotoEngine(const std::string& folder, std::size_t pairs, Use) {
    // As its manual advises: twice as many buckets as pairs, and the whole file mapped.
    db_.tune_buckets(static_cast<std::int64_t>(2 * pairs));
    db_.tune_map(static_cast<std::int64_t>(pairs * 256 + (64 << 20)));
    require(db_.open(folder + "/casket.kch", kyotocabinet::HashDB::OWRITER | kyotocabinet::HashDB::OCREATE),
            "Kyoto Cabinet does not open");
  }
  void insert(Bytes key, Bytes value) { require(db_.set(key.data(), key.size(), value.data(), value.size()), "set"); }
  void append(Bytes key, Bytes value) { require(db_.append(key.data(), key.size(), value.data(), value.size()), "append"); }
  void remove(Bytes key) { require(db_.remove(key.data(), key.size()), "remove"); }
  bool equals(Bytes key, Bytes expected) {
    char buffer[256];
    const auto size = db_.get(key.data(), key.size(), buffer, sizeof buffer);
    return size >= 0 && Bytes(buffer, static_cast<std::size_t>(size)) == expected;
  }
  bool has(Bytes key) { return db_.check(key.data(), key.size()) >= 0; }
  void round() {}
  void commit() { require(db_.synchronize(true), "synchronize"); }

 private:
  kyotocabinet::HashDB db_;
};
#endif

#ifdef WITH_TKRZW
class TkrzwEngine {
 public:
  static constexpr bool kOnDisk = true;
  TkrzwEngine(const std::string& folder, std::size_t pairs, Use) {
    tkrzw::HashDBM::TuningParameters tuning;
    tuning.num_buckets = static_cast<std::int64_t>(2 * pairs);
    tuning.offset_width = 5;
    require(db_.OpenAdvanced(folder + "/casket.tkh", true, tkrzw::File::OPEN_DEFAULT, tuning).IsOK(), "Tkrzw does not open");
  }
  ~TkrzwEngine() { db_.Close(); }
  void insert(Bytes key, Bytes value) { require(db_.Set(key, value).IsOK(), "Set"); }
  void append(Bytes key, Bytes value) { require(db_.Append(key, value).IsOK(), "Append"); }
  void remove(Bytes key) { require(db_.Remove(key).IsOK(), "Remove"); }
  bool equals(Bytes key, Bytes expected) { return db_.Get(key, &value_).IsOK() && value_ == expected; }
  bool has(Bytes key) { return db_.Get(key).IsOK(); }
  void round() {}
  void commit() { require(db_.Synchronize(true).IsOK(), "Synchronize"); }

 private:
  tkrzw::HashDBM db_;
  std::string value_;
};
#endif

#ifdef WITH_BDB
class BdbEngine {
 public:
  static constexpr bool kOnDisk = true;
  BdbEngine(const std::string& folder, std::size_t pairs, Use use) : use_(use) {
    const std::uint64_t cache = pairs * 256 + (16 << 20);
    if (use != Use::plain) {
      check(db_env_create(&environment_, 0));
      check(environment_->set_cachesize(environment_, static_cast<u_int32_t>(cache >> 30), static_cast<u_int32_t>(cache & 0x3fffffff), 1));
      check(environment_->open(environment_, folder.c_str(),
                               DB_CREATE | DB_PRIVATE | DB_RECOVER | DB_INIT_MPOOL | DB_INIT_LOG | DB_INIT_TXN | DB_INIT_LOCK, 0600));
    }
    check(db_create(&db_, environment_, 0));
    if (environment_ == nullptr)
      check(db_->set_cachesize(db_, static_cast<u_int32_t>(cache >> 30), static_cast<u_int32_t>(cache & 0x3fffffff), 1));
    check(db_->set_h_nelem(db_, static_cast<u_int32_t>(pairs)));
    check(db_->open(db_, nullptr, environment_ == nullptr ? (folder + "/bdb").c_str() : "bdb", nullptr, DB_HASH,
                    DB_CREATE | (environment_ == nullptr ? 0 : DB_AUTO_COMMIT), 0600));
  }
  ~BdbEngine() {
    commit();
    db_->close(db_, 0);
    if (environment_ != nullptr) environment_->close(environment_, 0);
  }
  void insert(Bytes key, Bytes value) {
    DBT k = thing(key), v = thing(value);
    check(db_->put(db_, transaction(), &k, &v, 0));
  }
  void append(Bytes key, Bytes value) {
    require(get(key), "append: no such key");
    value_.append(value);
    insert(key, value_);
  }
  void remove(Bytes key) {
    DBT k = thing(key);
    check(db_->del(db_, transaction(), &k, 0));
  }
  bool equals(Bytes key, Bytes expected) { return get(key) && value_ == expected; }
  bool has(Bytes key) { return get(key); }
  void write_out() { check(db_->sync(db_, 0)); }
  // Without transactions its cache is its own until it is closed.
  void round() {
    if (use_ == Use::logged) commit(DB_TXN_WRITE_NOSYNC);
  }
  void commit(u_int32_t how = DB_TXN_SYNC) {
    if (DB_TXN* const done = std::exchange(transaction_, nullptr)) check(done->commit(done, how));
  }

 private:
  static void check(int status) { require(status == 0, status == 0 ? "" : db_strerror(status)); }
  static DBT thing(Bytes bytes) {
    DBT made{};
    made.data = const_cast<char*>(bytes.data());
    made.size = static_cast<u_int32_t>(bytes.size());
    return made;
  }
  DB_TXN* transaction() {
    if (environment_ != nullptr && transaction_ == nullptr) check(environment_->txn_begin(environment_, nullptr, &transaction_, 0));
    return transaction_;
  }
  bool get(Bytes key) {
    char buffer[512];
    DBT k = thing(key), v{};
    v.data = buffer;
    v.ulen = sizeof buffer;
    v.flags = DB_DBT_USERMEM;
    if (db_->get(db_, transaction_, &k, &v, 0) != 0) return false;
    value_.assign(buffer, v.size);
    return true;
  }
  const Use use_;
  DB_ENV* environment_ = nullptr;
  DB* db_ = nullptr;
  DB_TXN* transaction_ = nullptr;
  std::string value_;
};
#endif

#ifdef WITH_LEVELDB
class LevelDbEngine {
 public:
  static constexpr bool kOnDisk = true;
  LevelDbEngine(const std::string& folder, std::size_t pairs, Use use)
      : cache_(leveldb::NewLRUCache(pairs * kPairBytes)), filter_(leveldb::NewBloomFilterPolicy(10)), grouped_(use == Use::synced) {
    leveldb::Options options;
    options.create_if_missing = true;
    options.block_cache = cache_.get();
    options.filter_policy = filter_.get();
    options.write_buffer_size = 64 << 20;
    options.compression = leveldb::kNoCompression;
    leveldb::DB* db = nullptr;
    const auto status = leveldb::DB::Open(options, folder + "/leveldb", &db);
    require(status.ok(), status.ToString());
    db_.reset(db);
  }
  void insert(Bytes key, Bytes value) {
    if (grouped_) batch_.Put(slice(key), slice(value));
    else require(db_->Put({}, slice(key), slice(value)).ok(), "Put");
  }
  void append(Bytes key, Bytes value) {
    require(db_->Get({}, slice(key), &value_).ok(), "append: no such key");
    value_.append(value);
    insert(key, value_);
  }
  void remove(Bytes key) { require(db_->Delete({}, slice(key)).ok(), "Delete"); }
  bool equals(Bytes key, Bytes expected) { return db_->Get({}, slice(key), &value_).ok() && value_ == expected; }
  bool has(Bytes key) { return db_->Get({}, slice(key), &value_).ok(); }
  void round() {}
  void insert_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) batch_.Put(slice(pair.key()), slice(pair.value()));
    write(false);
  }
  void remove_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) batch_.Delete(slice(pair.key()));
    write(false);
  }
  void commit() { write(true); }

 private:
  static leveldb::Slice slice(Bytes bytes) { return {bytes.data(), bytes.size()}; }
  void write(bool sync) {
    leveldb::WriteOptions options;
    options.sync = sync;
    require(db_->Write(options, &batch_).ok(), "Write");
    batch_.Clear();
  }
  std::unique_ptr<leveldb::Cache> cache_;
  std::unique_ptr<const leveldb::FilterPolicy> filter_;
  std::unique_ptr<leveldb::DB> db_;
  leveldb::WriteBatch batch_;
  const bool grouped_;
  std::string value_;
};
#endif

#ifdef WITH_ROCKSDB
// append as RocksDB has it: a merge operator that joins.
class Joining final : public rocksdb::AssociativeMergeOperator {
 public:
  bool Merge(const rocksdb::Slice&, const rocksdb::Slice* existing, const rocksdb::Slice& value, std::string* result,
             rocksdb::Logger*) const override {
    if (existing != nullptr) result->assign(existing->data(), existing->size());
    result->append(value.data(), value.size());
    return true;
  }
  const char* Name() const override { return "joining"; }
};

class RocksDbEngine {
 public:
  static constexpr bool kOnDisk = true;
  RocksDbEngine(const std::string& folder, std::size_t pairs, Use use, std::uint64_t cache_bytes = 0) : use_(use) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.OptimizeForPointLookup((cache_bytes != 0 ? cache_bytes : pairs * kPairBytes + (8 << 20)) >> 20);
    options.IncreaseParallelism(2);
    options.compression = rocksdb::kNoCompression;
    options.merge_operator = std::make_shared<Joining>();
    options.manual_wal_flush = use != Use::synced;  // written once a round, as ours
    rocksdb::DB* db = nullptr;
    const auto status = rocksdb::DB::Open(options, folder + "/rocksdb", &db);
    require(status.ok(), status.ToString());
    db_.reset(db);
  }
  static std::unique_ptr<RocksDbEngine> limited(const std::string& folder, std::size_t pairs, std::uint64_t memory) {
    return std::make_unique<RocksDbEngine>(folder, pairs, Use::plain, memory);
  }
  void insert(Bytes key, Bytes value) {
    if (use_ == Use::synced) require(batch_.Put(slice(key), slice(value)).ok(), "Put");
    else require(db_->Put({}, slice(key), slice(value)).ok(), "Put");
  }
  void append(Bytes key, Bytes value) { require(db_->Merge({}, slice(key), slice(value)).ok(), "Merge"); }
  void remove(Bytes key) { require(db_->Delete({}, slice(key)).ok(), "Delete"); }
  bool equals(Bytes key, Bytes expected) {
    value_.Reset();
    return get(key) && Bytes(value_.data(), value_.size()) == expected;
  }
  bool has(Bytes key) {
    value_.Reset();
    return get(key);
  }
  void round() {
    if (use_ != Use::synced) require(db_->FlushWAL(false).ok(), "FlushWAL");
  }
  std::size_t equal_many(std::span<const Pair> pairs) {
    keys_.clear();
    for (const Pair& pair : pairs) keys_.push_back(slice(pair.key()));
    found_.resize(pairs.size());
    states_.resize(pairs.size());
    for (auto& one : found_) one.Reset();
    db_->MultiGet({}, db_->DefaultColumnFamily(), keys_.size(), keys_.data(), found_.data(), states_.data());
    std::size_t good = 0;
    for (std::size_t i = 0; i < pairs.size(); i++)
      good += states_[i].ok() && Bytes(found_[i].data(), found_[i].size()) == pairs[i].value();
    return good;
  }
  void insert_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) require(batch_.Put(slice(pair.key()), slice(pair.value())).ok(), "Put");
    write(false);
  }
  void append_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) require(batch_.Merge(slice(pair.key()), slice(pair.value())).ok(), "Merge");
    write(false);
  }
  void remove_many(std::span<const Pair> pairs) {
    for (const Pair& pair : pairs) require(batch_.Delete(slice(pair.key())).ok(), "Delete");
    write(false);
  }
  void commit() { write(true); }

 private:
  static rocksdb::Slice slice(Bytes bytes) { return {bytes.data(), bytes.size()}; }
  bool get(Bytes key) { return db_->Get({}, db_->DefaultColumnFamily(), slice(key), &value_).ok(); }
  void write(bool sync) {
    rocksdb::WriteOptions options;
    options.sync = sync;
    require(db_->Write(options, &batch_).ok(), "Write");
    batch_.Clear();
  }
  const Use use_;
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::WriteBatch batch_;
  rocksdb::PinnableSlice value_;
  std::vector<rocksdb::Slice> keys_;
  std::vector<rocksdb::PinnableSlice> found_;
  std::vector<rocksdb::Status> states_;
};
#endif

#ifdef WITH_LMDB
class LmdbEngine {
 public:
  static constexpr bool kOnDisk = true;
  LmdbEngine(const std::string& folder, std::size_t pairs, Use use) {
    check(mdb_env_create(&environment_));
    check(mdb_env_set_mapsize(environment_, pairs * 1024 + (std::size_t{1} << 30)));
    check(mdb_env_open(environment_, (folder + "/lmdb").c_str(),
                       MDB_NOSUBDIR | MDB_NORDAHEAD | MDB_NOMEMINIT | (use == Use::synced ? 0 : MDB_NOSYNC | MDB_WRITEMAP), 0600));
    check(mdb_txn_begin(environment_, nullptr, 0, &write_));
    check(mdb_dbi_open(write_, nullptr, 0, &db_));
    check(mdb_txn_commit(std::exchange(write_, nullptr)));
  }
  ~LmdbEngine() {
    commit();
    if (read_ != nullptr) mdb_txn_abort(read_);
    mdb_env_close(environment_);
  }
  // It has no memory but the system's.
  static std::unique_ptr<LmdbEngine> limited(const std::string& folder, std::size_t pairs, std::uint64_t) {
    return std::make_unique<LmdbEngine>(folder, 4 * pairs, Use::plain);
  }
  void insert(Bytes key, Bytes value) {
    MDB_val k = thing(key), v = thing(value);
    check(mdb_put(writing(), db_, &k, &v, 0));
  }
  void append(Bytes key, Bytes value) {
    const auto old = get(writing(), key);
    require(old.has_value(), "append: no such key");
    value_.assign(*old).append(value);
    insert(key, value_);
  }
  void remove(Bytes key) {
    MDB_val k = thing(key);
    check(mdb_del(writing(), db_, &k, nullptr));
  }
  bool equals(Bytes key, Bytes expected) { return get(reading(), key) == expected; }
  bool has(Bytes key) { return get(reading(), key).has_value(); }
  // One transaction for a round: LMDB's own way of grouping writes.
  void round() {
    commit();
    if (read_ != nullptr && reading_) {
      mdb_txn_reset(read_);
      reading_ = false;
    }
  }
  void commit() {
    if (write_ != nullptr) check(mdb_txn_commit(std::exchange(write_, nullptr)));
  }

 private:
  static void check(int status) { require(status == 0, status == 0 ? "" : mdb_strerror(status)); }
  static MDB_val thing(Bytes bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }
  MDB_txn* writing() {
    if (reading_) {
      mdb_txn_reset(read_);
      reading_ = false;
    }
    if (write_ == nullptr) check(mdb_txn_begin(environment_, nullptr, 0, &write_));
    return write_;
  }
  MDB_txn* reading() {
    if (write_ != nullptr) return write_;
    if (read_ == nullptr) check(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &read_));
    else if (!reading_) check(mdb_txn_renew(read_));
    reading_ = true;
    return read_;
  }
  std::optional<Bytes> get(MDB_txn* in, Bytes key) {
    MDB_val k = thing(key), v;
    if (mdb_get(in, db_, &k, &v) != 0) return {};
    return Bytes(static_cast<const char*>(v.mv_data), v.mv_size);
  }
  MDB_env* environment_ = nullptr;
  MDB_txn *write_ = nullptr, *read_ = nullptr;
  bool reading_ = false;
  MDB_dbi db_ = 0;
  std::string value_;
};
#endif

}  // namespace bench
