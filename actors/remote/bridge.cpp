#include "actors/remote/bridge.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "actors/link/link.h"
#include "actors/link/message_codec.h"

namespace troupe::remote {
namespace {

/// Longest single wait for a record, so that beats go out in time.
constexpr Duration kLongestWait = std::chrono::milliseconds(50);
/// How often the engine's block names are looked at.
constexpr Duration kNamesPeriod = std::chrono::milliseconds(100);
/// How soon a record that finds no room in the ring is tried again.
constexpr Duration kRoomRetry = std::chrono::milliseconds(1);
/// A heartbeat, in ns, of one that is attached and does not respond.
constexpr std::int64_t kLongAgo = 1;
/// Records that are there go out in one write up to about so many bytes.
constexpr std::size_t kMostAtOnce = 64 << 10;

/// The engine names the blocks of a step and tells of its tokens at the same time, on two threads. If it
/// takes longer, blocks are computed again where the prompt is handed over to.
constexpr Duration kPublishTime = std::chrono::milliseconds(1);

/// True if a sequence ends with the tokens of this record. Of a message in several pieces the last one
/// counts.
bool ends_sequence(const wire::RecordView& record) {
  const auto& message = *record.as<wire::Message>();
  if (message.type != static_cast<std::uint32_t>(MessageType::step_tokens) || !record.holds(message.bytes))
    return false;
  const auto piece = record.array(message.bytes);
  if (piece.size() < message.total) return message.first + piece.size() == message.total;
  StepTokens step;
  return decode(piece, step) && std::any_of(step.sequences.begin(), step.sequences.end(),
                                            [](const auto& one) { return one.finish != Finish::none; });
}

std::span<const std::byte> bytes_of(const std::uint64_t& word) { return std::as_bytes(std::span(&word, 1)); }

}  // namespace

std::string Bridge::run(Stream& stream, FrameReader& reader, const std::stop_token& stop) {
  // A new epoch is told once, before any record of it.
  while (end_.LinkMonitor::epoch() != end_.epoch()) (void)end_.receive(TimePoint{});
  epoch_ = end_.epoch();
  over_ = submitted_ = false;
  {
    const std::lock_guard lock(mutex_);
    why_.clear();
    counts_.last = {};
  }
  heard_ = engine_alive_ = Clock::now();
  engine_heartbeat_ = 0;
  engine_drains_ = false;
  held_.clear();
  held_bytes_.clear();
  submit_.clear();
  pixel_source_.restart();
  std::thread reading([&] {
    ::pthread_setname_np(::pthread_self(), "relay_read");
    read(stream, reader);
  });
  next_beat_ = next_look_ = TimePoint{};
  told_draining_ = false;
  name_changes_.restart();
  while (!over()) {
    if (stop.stop_requested()) {
      end_with("was left");
      break;
    }
    out_.clear();
    put_due(Clock::now());
    // The first is waited for; those behind it go along.
    for (TimePoint until = out_.empty() ? Clock::now() + kLongestWait : TimePoint{};
         out_.size() < kMostAtOnce; until = TimePoint{}) {
      if (!collect(end_.receive(until), stream, stop)) break;
    }
    if (!over()) (void)write_out(stream, stop);
  }
  end_.done();
  stream.close();
  reading.join();
  if (names_ && side_ == ipc::Side::lower) names_->distrust();
  // Unless the process at the other end has ended, which its supervisor has told already.
  if (end_.LinkMonitor::epoch() == epoch_) end_.reaped(side_);
  pixel_sink_.clear();
  const std::lock_guard lock(mutex_);
  return why_;
}

/// Writes the frames that have been put. False: the connection is over.
bool Bridge::write_out(Stream& stream, const std::stop_token& stop) {
  if (out_.empty()) return true;
  // Without a limit: a peer that is alive but does not read may go on later, and one that is not is noticed
  // by the reading thread, which closes the stream.
  const Stream::Progress progress = stream.write(out_, TimePoint::max(), stop);
  out_.clear();
  if (progress == Stream::Progress::late) end_with("was left");
  if (progress == Stream::Progress::failed) end_with("has ended the connection: " + stream.error());
  return progress == Stream::Progress::done;
}

/// Beats, changed names and a drain go out before records: while no engine is attached its ring stays full.
void Bridge::put_due(TimePoint now) {
  const bool upper = side_ == ipc::Side::upper;
  if (now >= next_beat_) {
    next_beat_ = now + kBeatPeriod;
    const std::int64_t heartbeat = upper ? end_.heartbeat_ns(ipc::Side::lower) : 1;
    put_frame(out_, FrameKind::beat, bytes_of(static_cast<std::uint64_t>(heartbeat)));
  }
  if (now >= next_look_) {
    next_look_ = now + kNamesPeriod;
    if (!upper) pixel_source_.put_gone(out_);
    if (upper && names_) put_names();
  }
  if (draining_ && !std::exchange(told_draining_, true)) put_frame(out_, FrameKind::draining, {});
}

void Bridge::put_names() {
  if (const auto changes = name_changes_.look(); !changes.empty()) put_frame(out_, FrameKind::names, changes);
}

/// False: nothing more is there, or the connection is over.
bool Bridge::collect(const ipc::Received& got, Stream& stream, const std::stop_token& stop) {
  using Kind = ipc::Received::Kind;
  switch (got.kind) {
    case Kind::timeout: return false;
    case Kind::epoch_changed: end_with("was left, as the process on this side has ended"); return false;
    case Kind::corrupt: end_with("was left, as a ring of this side holds no sound record"); return false;
    case Kind::record: break;
  }
  const auto* message = got.view.as<wire::Message>();
  if (message == nullptr) return true;  // the other end of the link says nothing else
  if (side_ == ipc::Side::upper) {
    if (names_first_ && names_) {
      const bool ends = ends_sequence(got.view);
      if (ends) std::this_thread::sleep_for(kPublishTime);
      // With each step, so that blocks are fetched while later ones are computed.
      if (ends || message->type == static_cast<std::uint32_t>(MessageType::step_stats)) put_names();
    }
    count(got.view);
  } else if (message->type == static_cast<std::uint32_t>(MessageType::submit) &&
             !take_request(got.view, stream, stop)) {
    return false;
  }
  put_frame(out_, FrameKind::record, got.view.bytes());
  return true;
}

/// What a request's images and videos show goes before the last record of it. False: the connection is over.
bool Bridge::take_request(const wire::RecordView& record, Stream& stream, const std::stop_token& stop) {
  if (!pixel_source_.sees()) return true;
  const auto& message = *record.as<wire::Message>();
  const auto piece = record.array(message.bytes);
  if (message.first == 0) submit_.clear();
  submit_.insert(submit_.end(), piece.begin(), piece.end());
  if (submit_.size() < message.total) return true;
  Submit request;
  const bool sound = decode(submit_, request);
  submit_ = {};
  // What is not sound the engine finds.
  return !sound || pixel_source_.put_items(request, out_, [&] { return write_out(stream, stop); });
}

void Bridge::count(const wire::RecordView& record) {
  const auto& message = *record.as<wire::Message>();
  StepStats stats;
  if (message.type != static_cast<std::uint32_t>(MessageType::step_stats) || !record.holds(message.bytes) ||
      !decode(record.array(message.bytes), stats)) {
    return;
  }
  submitted_ = false;
  const std::lock_guard lock(mutex_);
  counts_.last = stats;
  counts_.prompt_tokens += stats.admitted_tokens;
  counts_.generated_tokens += stats.generated_tokens;
}

bool Bridge::idle() const {
  const StepStats last = counts().last;
  return !submitted_ && last.running + last.waiting == 0;
}

EngineCounts Bridge::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

/// The first reason counts.
void Bridge::end_with(std::string why) {
  const std::lock_guard lock(mutex_);
  if (!over_) why_ = std::move(why);
  over_ = true;
}

void Bridge::read(Stream& stream, FrameReader& reader) {
  while (!over()) {
    Frame frame;
    const FrameReader::Got got = reader.next(/*greets=*/false, frame);
    if (got == FrameReader::Got::bad || (got == FrameReader::Got::frame && !take(frame))) {
      end_with("has sent what is no record of a link");
      break;
    }
    if (got == FrameReader::Got::frame) continue;
    std::size_t count = 0;
    switch (stream.read(reader.room(), count, Clock::now() + kLongestWait)) {
      case Stream::Progress::done:
        reader.filled(count);
        heard_ = Clock::now();
        break;
      case Stream::Progress::late:
        if (Clock::now() - heard_ >= kLost) end_with("gave no sign of life for 3 s");
        if (Clock::now() - engine_alive_ >= kLost && engine_heartbeat_ != 0)
          end_with("gave no sign of life for 3 s, though its relay did");
        break;
      case Stream::Progress::failed: end_with("has ended the connection: " + stream.error()); break;
    }
  }
  stream.close();  // which wakes the writing thread
}

/// False: the peer may not send it.
bool Bridge::take(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::beat: {
      std::uint64_t heartbeat = 0;
      std::memcpy(&heartbeat, frame.payload.data(), sizeof heartbeat);
      if (side_ == ipc::Side::lower) take_beat(heartbeat);
      return true;
    }
    case FrameKind::names:
      return side_ == ipc::Side::lower && (!names_ || apply_names(*names_, frame.payload));
    case FrameKind::pixels: return side_ == ipc::Side::upper && pixel_sink_.take_pixels(frame.payload);
    case FrameKind::pixels_gone: return side_ == ipc::Side::upper && pixel_sink_.take_gone(frame.payload);
    case FrameKind::draining:
      if (side_ == ipc::Side::upper) return false;
      engine_drains_ = true;
      end_.heartbeat().store(kLongAgo, std::memory_order_relaxed);
      return true;
    default: return take_record(frame.payload);
  }
}

void Bridge::take_beat(std::uint64_t heartbeat) {
  if (heartbeat == engine_heartbeat_ && heartbeat != 0) return;
  engine_heartbeat_ = heartbeat;
  if (heartbeat == 0) {
    engine_alive_ = Clock::now();
  } else {
    engine_lives();
  }
}

/// The engine's sign of life is this end's. One that drains gives none: the front then sends new requests
/// elsewhere at once, and waits for those that run.
void Bridge::engine_lives() {
  engine_alive_ = Clock::now();
  if (!engine_drains_) end_.beat();
}

bool Bridge::take_record(std::span<std::byte> record) {
  auto* header = reinterpret_cast<wire::Header*>(record.data());
  header->epoch = epoch_;
  wire::RecordView view;
  if (!wire::RecordView::open(record, view) || view.as<wire::Message>() == nullptr) return false;
  if (side_ == ipc::Side::lower) {
    engine_lives();
  } else if (view.as<wire::Message>()->type == static_cast<std::uint32_t>(MessageType::submit)) {
    submitted_ = true;
    if (pixel_sink_.sees()) return take_submit(view);
  }
  if (!held_.empty()) return false;  // the pieces of a message come together
  forward(record);
  return true;
}

/// A request's records wait for its last one: with it the places of images and videos are put in, which
/// changes no length.
bool Bridge::take_submit(const wire::RecordView& record) {
  const auto& message = *record.as<wire::Message>();
  const auto piece = record.array(message.bytes);
  if (message.first != held_bytes_.size() || message.total > Link::kMaxMessageBytes || piece.empty() ||
      piece.size() > message.total - message.first) {
    return false;
  }
  held_.emplace_back(record.bytes().begin(), record.bytes().end());
  held_bytes_.insert(held_bytes_.end(), piece.begin(), piece.end());
  if (held_bytes_.size() < message.total) return true;
  Submit request;
  if (!decode(held_bytes_, request)) return false;
  if (pixel_sink_.translate(request)) {
    Bytes translated;
    encode(request, translated);
    if (translated.size() != held_bytes_.size()) return false;
    for (std::vector<std::byte>& one : held_) {
      wire::RecordView view;
      if (!wire::RecordView::open(one, view)) return false;
      const auto& its = *view.as<wire::Message>();
      const std::size_t bytes = view.array(its.bytes).size();
      std::memcpy(one.data() + its.bytes.offset, translated.data() + its.first, bytes);
    }
  }
  for (const std::vector<std::byte>& one : held_) forward(one);
  held_.clear();
  held_bytes_.clear();
  return true;
}

/// Waits for room in the ring; drops the record when the connection ends meanwhile.
void Bridge::forward(std::span<const std::byte> record) {
  bool waited = false;
  while (!end_.try_send(ipc::Channel::step, record)) {
    if (over() || end_.LinkMonitor::epoch() != epoch_) return;
    std::this_thread::sleep_for(kRoomRetry);
    waited = true;
  }
  if (waited) heard_ = engine_alive_ = Clock::now();
}

}  // namespace troupe::remote
