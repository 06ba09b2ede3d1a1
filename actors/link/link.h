#pragma once
// One end of the link between a front and an engine, or a front and a text process: messages, as bytes, over
// the step rings of an ipc::LinkEnd that the supervisor has made. What lies above it does not know what
// carries them. It owns
//
//   pieces    a message is sent as records of at most 1 MiB, numbered without a gap within an epoch; the
//   other end puts
//             them together again, never more than kMaxMessageBytes
//   order     messages arrive in the order in which send() was called; while the ring is full they wait here
//   epochs    what was sent in an epoch that has passed is dropped on both sides; a message may name the
//   epoch that its
//             sender takes to be the present one
//   credit    the engine's end counts the steps that it has sent and the front has not acknowledged
//   (behind()); other
//             messages need no credit, so that a cancellation never waits for it
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/pulse.h"
#include "base/status.h"
#include "ipc/link.h"

namespace troupe {

/// What a message is. Each names the struct that it holds and what its tag means.
enum class MessageType : std::uint32_t {
  // front → engine
  greeting = 1,     ///< Greeting
  submit,           ///< Submit
  cancel,           ///< Cancel
  steps_taken,      ///< nothing; tag: how many StepTokens the front has taken in this epoch
  compile,          ///< Compile; answered under the same tag, as are the next three
  reset_cache,      ///< ResetPrefixCache
  ask_status,       ///< nothing
  probe,            ///< nothing
  cancel_compile,   ///< CancelCompile; not answered, as the next
  release_grammar,  ///< ReleaseGrammar
  expect_blocks,    ///< ExpectBlocks; not answered, as the next
  forget_blocks,    ///< ForgetBlocks
  // engine → front
  welcome = 64,  ///< Welcome
  link_up,       ///< LinkUp
  link_down,     ///< LinkDown
  step_tokens,   ///< StepTokens; tag: the index of the SESSION HOST
  refused,       ///< Refused; tag: likewise
  step_stats,    ///< StepStats
  answer,        ///< what the question's type is answered with; tag: the question's
  trace,         ///< TracedEvent
  silent,        ///< SilentPart
  // front → text process, which greets as a front does
  encode = 128,       ///< Encode; tag: the number of the job
  encode_long,        ///< the same, in TextLane::long_texts
  encode_background,  ///< and in TextLane::background
  // text process → front
  encoded = 160,  ///< Encoded; tag: the number of the job
};

/// A message that has arrived. The bytes are valid during the call.
struct Arrival {
  MessageType type{};
  std::uint64_t tag = 0;
  std::uint32_t epoch = 0;
  std::span<const std::byte> bytes;
};

/// What a Link has done since its start.
struct LinkCounts {
  std::uint64_t messages = 0;        ///< sent
  std::uint64_t pieces = 0;          ///< records that they took
  std::uint64_t longest_record = 0;  ///< bytes
  std::uint64_t most_waiting = 0;    ///< bytes of messages that waited for room at one time
  std::int64_t most_steps_open = 0;  ///< StepTokens that were sent and not acknowledged at one time
};

class Link {
 public:
  static constexpr std::size_t kMaxMessageBytes = std::size_t{256} << 20;
  /// StepTokens that may be unacknowledged before behind() is true.
  static constexpr std::int64_t kStepCredit = 128;
  /// The epoch of send() that is always the present one.
  static constexpr std::uint32_t kAnyEpoch = 0;

  explicit Link(ipc::LinkEnd end) : end_(std::move(end)) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Any thread; never waits. Returns the epoch in which the message was sent, or 0: `epoch` has passed, and
  /// it was dropped. A message that is longer than kMaxMessageBytes is a bug of the caller.
  std::uint32_t send(MessageType type, std::uint64_t tag, std::span<const std::byte> bytes,
                     std::uint32_t epoch = kAnyEpoch);

  /// Drops what is sent in an epoch before greeted() has been called for it: a front on another machine may
  /// be absent for a long time. Call it before the first send().
  void wait_for_greeting() { waits_for_greeting_ = true; }
  void greeted(std::uint32_t epoch) { greeted_.store(epoch, std::memory_order_release); }

  /// What receive() calls, on its thread.
  struct Handlers {
    std::function<void(const Arrival&)> arrived;
    std::function<void(std::uint32_t epoch)>
        epoch_changed;  ///< the other process is gone, and what was under way is lost
    std::function<void(const std::string& why)> broken;  ///< nothing more is received
  };
  /// Receives until asked to stop. One thread. Beats the pulse at least five times a second.
  void receive(const std::stop_token& stop, Pulse& pulse, const Handlers& handlers);

  /// The engine's end: a StepTokens is about to be sent. Any thread.
  void count_step() { raise(most_steps_open_, steps_sent_.fetch_add(1) + 1 - steps_acknowledged_.load()); }
  /// The engine's end: the front has taken so many of this epoch.
  void acknowledged(std::int64_t steps) { steps_acknowledged_.store(steps); }
  /// The engine's end: the front has not taken so many steps that no more should be run for it.
  bool behind() const { return steps_sent_.load() - steps_acknowledged_.load() >= kStepCredit; }

  /// The front's end: a StepTokens was taken. Any thread. Acknowledges every kStepCredit / 4th.
  void took_step();

  /// The present epoch, as this end knows it.
  std::uint32_t epoch() const { return end_.epoch(); }
  ipc::LinkEnd& end() { return end_; }
  LinkCounts counts() const;

 private:
  struct Waiting {
    std::uint32_t epoch = 0;
    std::vector<std::byte> record;
  };
  bool flush();
  void push(std::span<const std::byte> record, std::uint32_t epoch);
  bool take(const ipc::Received& got, const Handlers& handlers, std::string& why);
  void forget(std::uint32_t epoch);
  static void raise(std::atomic<std::int64_t>& most, std::int64_t value) {
    for (std::int64_t old = most.load(); old < value && !most.compare_exchange_weak(old, value);) {
    }
  }

  ipc::LinkEnd end_;

  mutable std::mutex mutex_;  // of what sends, down to the next blank line
  std::uint32_t sent_epoch_ = 0;
  std::uint64_t sent_number_ = 0;
  std::deque<Waiting> waiting_;
  std::size_t waiting_bytes_ = 0;
  wire::RecordWriter<wire::Message> writer_;
  LinkCounts counts_;

  // Of the receiving thread.
  std::uint64_t received_number_ = 0;
  std::vector<std::byte> whole_;  // a message of which pieces are missing
  std::uint32_t whole_total_ = 0;

  std::atomic<std::int64_t> steps_sent_{0}, steps_acknowledged_{0};
  std::atomic<std::int64_t> steps_taken_{0};
  std::atomic<std::int64_t> most_steps_open_{0};
  std::atomic<bool> waits_{false};
  bool waits_for_greeting_ = false;
  std::atomic<std::uint32_t> greeted_{0};  // the last epoch in which the other end has greeted
};

}  // namespace troupe
