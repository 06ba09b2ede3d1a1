#include "actors/link/link.h"

#include <algorithm>

#include "base/check.h"

namespace troupe {

namespace {

// What finds no room while the thread waits is tried again after so long; a killed peer may also leave a
// record without its wake-up.
constexpr Duration kLongestWait = std::chrono::milliseconds(20);
// How soon messages that wait for room are tried again: a peer that reads empties its ring in less.
constexpr Duration kRetry = std::chrono::milliseconds(1);

}  // namespace

std::uint32_t Link::send(MessageType type, std::uint64_t tag, std::span<const std::byte> bytes,
                         std::uint32_t epoch) {
  TROUPE_CHECK(bytes.size() <= kMaxMessageBytes);
  const std::lock_guard lock(mutex_);
  const std::uint32_t now = end_.epoch();
  if (epoch != kAnyEpoch && epoch != now) return 0;
  if (waits_for_greeting_ && greeted_.load(std::memory_order_acquire) != now) return 0;
  if (sent_epoch_ != now) {
    sent_epoch_ = now;
    sent_number_ = 0;
    waiting_.clear();
    waiting_bytes_ = 0;
  }
  ++counts_.messages;
  const std::size_t most = end_.max_record(ipc::Channel::step) - sizeof(wire::Message) - wire::kAlignment;
  std::size_t first = 0;
  do {
    const std::span<const std::byte> piece = bytes.subspan(first, std::min(most, bytes.size() - first));
    writer_.begin(now);
    wire::Message& fixed = writer_.record();
    fixed.number = ++sent_number_;
    fixed.tag = tag;
    fixed.type = static_cast<std::uint32_t>(type);
    fixed.first = static_cast<std::uint32_t>(first);
    fixed.total = static_cast<std::uint32_t>(bytes.size());
    const auto span = writer_.array(piece);
    writer_.record().bytes = span;
    push(writer_.finish(), now);
    first += piece.size();
  } while (first < bytes.size());
  return now;
}

/// Requires the mutex.
void Link::push(std::span<const std::byte> record, std::uint32_t epoch) {
  ++counts_.pieces;
  counts_.longest_record = std::max<std::uint64_t>(counts_.longest_record, record.size());
  if (flush() && end_.try_send(ipc::Channel::step, record)) return;
  waiting_.push_back({epoch, {record.begin(), record.end()}});
  waiting_bytes_ += record.size();
  counts_.most_waiting = std::max<std::uint64_t>(counts_.most_waiting, waiting_bytes_);
  waits_.store(true, std::memory_order_release);
}

/// Sends what waits. True when nothing does any more. Requires the mutex.
bool Link::flush() {
  while (!waiting_.empty()) {
    const Waiting& oldest = waiting_.front();
    if (oldest.epoch == end_.epoch() && !end_.try_send(ipc::Channel::step, oldest.record)) return false;
    waiting_bytes_ -= oldest.record.size();
    waiting_.pop_front();
  }
  waits_.store(false, std::memory_order_release);
  return true;
}

void Link::receive(const std::stop_token& stop, Pulse& pulse, const Handlers& handlers) {
  while (!stop.stop_requested()) {
    pulse.beat();
    const bool waits = waits_.load(std::memory_order_acquire);
    const ipc::Received got = end_.receive(Clock::now() + (waits ? kRetry : kLongestWait));
    std::string why;
    switch (got.kind) {
      case ipc::Received::Kind::timeout: break;
      case ipc::Received::Kind::epoch_changed:
        forget(end_.epoch());
        handlers.epoch_changed(end_.epoch());
        break;
      case ipc::Received::Kind::corrupt: why = "a ring holds no sound record"; break;
      case ipc::Received::Kind::record:
        if (!take(got, handlers, why) && why.empty()) why = "a record that is no piece of a message";
        break;
    }
    if (!why.empty()) {
      handlers.broken(why);
      return;
    }
    if (waits) {
      const std::lock_guard lock(mutex_);
      (void)flush();
    }
  }
}

bool Link::take(const ipc::Received& got, const Handlers& handlers, std::string& why) {
  const auto* record = got.view.as<wire::Message>();
  if (record == nullptr || !got.view.holds(record->bytes)) return false;
  if (record->number != ++received_number_) {
    why = "record " + std::to_string(record->number) + " came in the place of " +
          std::to_string(received_number_);
    return false;
  }
  const std::span<const std::byte> piece = got.view.array(record->bytes);
  Arrival arrival{static_cast<MessageType>(record->type), record->tag, got.view.header().epoch, piece};
  if (record->first == 0 && piece.size() == record->total) {
    handlers.arrived(arrival);
    return true;
  }
  if (record->total > kMaxMessageBytes || record->first != whole_.size() ||
      (record->first > 0 && record->total != whole_total_) || piece.empty() ||
      piece.size() > record->total - record->first) {
    return false;
  }
  whole_total_ = record->total;
  whole_.insert(whole_.end(), piece.begin(), piece.end());
  if (whole_.size() < whole_total_) return true;
  arrival.bytes = whole_;
  handlers.arrived(arrival);
  whole_ = {};
  return true;
}

/// The other process is gone: nothing that it has sent, or that was sent to it, counts.
void Link::forget(std::uint32_t epoch) {
  received_number_ = 0;
  whole_ = {};
  steps_sent_ = 0;
  steps_acknowledged_ = 0;
  steps_taken_ = 0;
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [epoch](const Waiting& one) { return one.epoch != epoch; });
  waiting_bytes_ = 0;
  for (const Waiting& one : waiting_) waiting_bytes_ += one.record.size();
}

void Link::took_step() {
  const std::int64_t taken = ++steps_taken_;
  if (taken % (kStepCredit / 4) == 0) send(MessageType::steps_taken, static_cast<std::uint64_t>(taken), {});
}

LinkCounts Link::counts() const {
  const std::lock_guard lock(mutex_);
  LinkCounts counts = counts_;
  counts.most_steps_open = most_steps_open_;
  return counts;
}

}  // namespace troupe
