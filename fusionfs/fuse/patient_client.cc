#include "fusionfs/fuse/patient_client.h"

namespace fusionfs {

using zht::Millis;
using zht::Operation;
using zht::Outcome;

bool PatientClient::Known::is_silent(zht::PartitionId partition) {
  if (!any.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex);
  return all || silent.count(partition) != 0;
}

void PatientClient::Known::note(zht::PartitionId partition, std::uint64_t answers_before, const Outcome& outcome) {
  if (outcome.code != base::Code::timeout && outcome.code != base::Code::unavailable) {
    answers.fetch_add(1, std::memory_order_relaxed);
    if (!any.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex);
    all = false;
    silent.erase(partition);
    any = !silent.empty();
    return;
  }
  const std::lock_guard lock(mutex);
  silent.insert(partition);
  if (answers.load(std::memory_order_relaxed) == answers_before) all = true;
  any = true;
}

PatientClient::PatientClient(zht::Client& client, Millis moment)
    : client_(client), moment_(moment), partitions_(client.partition_count()), known_(std::make_shared<Known>()) {}

void PatientClient::submit(Operation operation, zht::Completion completion, Millis timeout) {
  if (timeout.count() != 0 || operation.kind == zht::OpKind::callback)
    return client_.submit(std::move(operation), std::move(completion), timeout);
  const zht::PartitionId partition = zht::partition_of(operation, partitions_);
  const std::uint64_t before = known_->answers.load(std::memory_order_relaxed);
  if (known_->is_silent(partition)) timeout = moment_;
  client_.submit(
      std::move(operation),
      [known = known_, partition, before, completion = std::move(completion)](Outcome outcome) {
        known->note(partition, before, outcome);
        completion(std::move(outcome));
      },
      timeout);
}

Outcome PatientClient::call(Operation operation, Millis timeout) {
  if (timeout.count() != 0 || operation.kind == zht::OpKind::callback) return client_.call(std::move(operation), timeout);
  const zht::PartitionId partition = zht::partition_of(operation, partitions_);
  const std::uint64_t before = known_->answers.load(std::memory_order_relaxed);
  if (known_->is_silent(partition)) timeout = moment_;
  Outcome outcome = client_.call(std::move(operation), timeout);
  known_->note(partition, before, outcome);
  return outcome;
}

zht::RequestNumber PatientClient::start(Operation operation, zht::Completion completion, Millis timeout) {
  return client_.start(std::move(operation), std::move(completion), timeout);
}

bool PatientClient::silent(zht::Bytes key) const {
  return known_->any.load(std::memory_order_relaxed) &&
         known_->is_silent(zht::partition_of(key, partitions_));
}

}  // namespace fusionfs
