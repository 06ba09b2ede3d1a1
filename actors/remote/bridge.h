#pragma once
// Carries the records of one end of a link to a stream and back, while a connection lasts. A pair of bridges,
// one beside the front and one beside the engine, makes two links on two machines into one.
//
// A connection is an epoch. What ends it raises the epoch of both links, each by its own bridge: the engine
// then drops the front's sequences, and the front takes no token that is still under way. The other way
// round, a new epoch of a link (its process has ended) ends the connection.
//
// A peer is lost when nothing has come from it for kLost; also an engine whose heartbeat has stood still for
// so long. Time in which this side does not read, as its ring is full, does not count.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/observation_messages.h"
#include "actors/remote/frames.h"
#include "actors/remote/name_changes.h"
#include "actors/remote/pixels.h"
#include "actors/remote/stream.h"
#include "base/clock.h"
#include "ipc/link.h"

namespace troupe::remote {

inline constexpr Duration kBeatPeriod = std::chrono::milliseconds(500);
inline constexpr Duration kLost = std::chrono::seconds(3);

/// Of the steps that an engine has told of while a front was there.
struct EngineCounts {
  StepStats last;  ///< the step told of last
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;
};

/// Null where the model does not see.
struct Pixels {
  std::shared_ptr<const ipc::PatchRegion> source;  ///< beside a front: its region
  std::shared_ptr<PixelStore> store;               ///< beside an engine
};

class Bridge {
 public:
  /// `side` is the end's own: lower beside a front, where the bridge stands for the engine. The end
  /// is used while run() runs alone. `names`: the table of the engine's block names, or the front's copy of
  /// it; null: names are not sent. `pixels`: images and videos; null: none are sent.
  Bridge(ipc::LinkEnd& end, ipc::Side side, std::shared_ptr<ipc::BlockNames> names, Pixels pixels = {})
      : end_(end),
        side_(side),
        names_(std::move(names)),
        name_changes_(names_),
        pixel_source_(std::move(pixels.source)),
        pixel_sink_(std::move(pixels.store)) {}

  /// Carries records until the connection or the process at the other end of the link ends, or asked to stop.
  /// `reader` may hold bytes that came behind the greeting. Returns why it has ended, in words that follow
  /// the peer's name: "gave no sign of life for 3 s". One thread at a time.
  std::string run(Stream& stream, FrameReader& reader, const std::stop_token& stop);

  /// Beside a prefill engine, before run(): whether the front is that of a decode instance. The names of a
  /// prompt's blocks then go before the tokens that end a sequence, so that they are known where the prompt
  /// is handed over to.
  void put_names_first(bool on) { names_first_ = on; }

  /// Ends the connection, as the peer is of no use. Any thread.
  void leave(const std::string& why) { end_with(why); }

  /// Beside an engine: fronts are told that it wants no new requests. Any thread.
  void drain() { draining_ = true; }

  /// Beside an engine: what it has told fronts of its steps. Any thread.
  EngineCounts counts() const;
  /// Beside an engine: nothing of the front runs or waits there, as far as it has told. Any thread.
  bool idle() const;

 private:
  void read(Stream& stream, FrameReader& reader);
  bool take(const Frame& frame);
  bool take_record(std::span<std::byte> record);
  bool take_submit(const wire::RecordView& record);
  void forward(std::span<const std::byte> record);
  void take_beat(std::uint64_t heartbeat);
  void engine_lives();
  bool collect(const ipc::Received& got, Stream& stream, const std::stop_token& stop);
  bool take_request(const wire::RecordView& record, Stream& stream, const std::stop_token& stop);
  bool write_out(Stream& stream, const std::stop_token& stop);
  void put_due(TimePoint now);
  void put_names();
  void count(const wire::RecordView& record);
  void end_with(std::string why);
  bool over() const { return over_; }

  ipc::LinkEnd& end_;
  const ipc::Side side_;
  const std::shared_ptr<ipc::BlockNames> names_;
  bool names_first_ = false;
  std::atomic<bool> draining_{false};
  mutable std::mutex mutex_;  // of counts_ and why_
  EngineCounts counts_;
  std::atomic<bool> submitted_{false};  // a request that the engine has not told of

  // Of one connection.
  std::uint32_t epoch_ = 0;
  std::atomic<bool> over_{false};
  std::string why_;
  NameChanges name_changes_;  // of the writing thread, as the next
  PixelSource pixel_source_;
  std::vector<std::byte> submit_;  // a Submit of which pieces are missing
  std::vector<std::byte> out_;     // frames that are written next
  TimePoint next_beat_{}, next_look_{};
  bool told_draining_ = false;
  TimePoint heard_{};  // of the reading thread, as those below
  TimePoint engine_alive_{};
  std::uint64_t engine_heartbeat_ = 0;
  bool engine_drains_ = false;
  PixelSink pixel_sink_;
  std::vector<std::vector<std::byte>> held_;  // records of a Submit of which pieces are missing
  std::vector<std::byte> held_bytes_;         // the message's, as far as it has come
};

}  // namespace troupe::remote
