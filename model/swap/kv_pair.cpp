#include "model/swap/kv_pair.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/clock.h"

namespace troupe::model {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{32} << 20;
constexpr Duration kPairLook = std::chrono::microseconds(50);
constexpr Duration kIdleLook = std::chrono::minutes(1);  // a closed socket ends the wait at once
constexpr const char* kGone = "the other end has gone";
constexpr const char* kStoodStill = "the other end has stood still";

// A mover's end may wait for the other end, so it has a thread of its own.
void end_beside(std::unique_ptr<PairMover> mover) {
  if (mover == nullptr) return;
  std::thread([ending = std::move(mover)]() mutable {
    ::pthread_setname_np(::pthread_self(), "kv_pair_end");
    ending.reset();
  }).detach();
}

/// Looks at `done` until it is true. Otherwise says why not: the deadline has passed, or the other end has
/// gone. When `stop` becomes true there is little time left.
template <class Done>
std::string wait_until(const Done& done, TimePoint deadline, const PairSocket& socket,
                       const PairLimits& limits, const std::atomic<bool>* stop) {
  TimePoint next_look = Clock::now();
  for (bool stopped = false; !done();) {
    const TimePoint now = Clock::now();
    if (stop != nullptr && *stop && !std::exchange(stopped, true))
      deadline = std::min(deadline, now + limits.stopped);
    if (now >= deadline) return stopped ? "a copy was given up" : kStoodStill;
    if (now >= next_look) {
      if (socket.has_ended()) return kGone;
      next_look = now + std::chrono::milliseconds(1);
    }
    std::this_thread::sleep_for(kPairLook);
  }
  return "";
}

PairHello hello_of(const PeerKvMemory& memory, const PairTerms& terms, const PairMover& mover) {
  PairHello hello;
  hello.life = memory.own_life;
  hello.block_bytes = memory.block_bytes;
  hello.library = mover.library();
  hello.batch = static_cast<std::uint32_t>(terms.batch);
  hello.slices = static_cast<std::uint32_t>(terms.slices.size());
  put_text(hello.gpu, mover.gpu());
  for (std::size_t i = 0; i < terms.slices.size(); ++i) {
    const KvSlice& slice = terms.slices[i];
    hello.slice[i] = {slice.from, slice.bytes, slice.rows, slice.from_pitch};
  }
  return hello;
}

/// True if the slice is not empty and lies within a block.
bool is_within(const PairSlice& slice, std::uint64_t block_bytes) {
  if (slice.bytes == 0 || slice.rows == 0 || slice.from > block_bytes) return false;
  if (slice.bytes > block_bytes - slice.from) return false;
  const std::uint64_t left = block_bytes - slice.from - slice.bytes;
  return slice.rows == 1 || (slice.from_pitch >= slice.bytes && slice.rows - 1 <= left / slice.from_pitch);
}

}  // namespace

std::size_t PairTerms::bytes() const {
  std::size_t bytes = 0;
  for (const KvSlice& slice : slices) bytes += slice.rows * slice.bytes;
  return bytes;
}

std::size_t pair_batch(std::size_t bytes_of_block) {
  return std::clamp<std::size_t>(kBatchBytes / std::max<std::size_t>(bytes_of_block, 1), 1, kMostPairBlocks);
}

// ---- The receiver

KvPairReceiver::KvPairReceiver(OwnedFd socket, const PeerKvMemory& memory, PairTerms terms, MakeMover make,
                               TellPair tell, const PairLimits& limits)
    : socket_(std::move(socket)),
      terms_(std::move(terms)),
      make_(std::move(make)),
      tell_(std::move(tell)),
      limits_(limits) {
  thread_ = std::thread([this, memory] {
    ::pthread_setname_np(::pthread_self(), "kv_pair_meet");
    PairNews news;
    try {
      news = join(memory);
    } catch (const std::runtime_error& error) {
      news = {mover_ == nullptr ? PairNews::What::refused : PairNews::What::failed, error.what()};
    }
    if (news.what != PairNews::What::ready) return lose(news);
    tell_(news);
    ready_ = true;
  });
}

KvPairReceiver::~KvPairReceiver() {
  end();
  thread_.join();
  end_beside(std::move(mover_));
}

PairNews KvPairReceiver::join(const PeerKvMemory& memory) {
  const TimePoint deadline = Clock::now() + limits_.meet;
  if (terms_.slices.size() > kMostPairSlices)
    return {PairNews::What::refused, "a block would come in too many slices"};
  mover_ = make_(terms_);
  if (!socket_.send(hello_of(memory, terms_, *mover_))) return {PairNews::What::lost, kGone};
  PairAnswer answer;
  switch (socket_.receive(answer, deadline)) {
    case PairSocket::Got::packet: break;
    case PairSocket::Got::nothing: return {PairNews::What::lost, kStoodStill};
    case PairSocket::Got::end: return {PairNews::What::lost, kGone};
  }
  if (answer.kind == PairAnswer::Kind::refused) return {PairNews::What::refused, text_in(answer.why)};
  if (answer.kind != PairAnswer::Kind::welcome)
    return {PairNews::What::failed, "the other end has sent what is no answer to a greeting"};
  PairMeeting meeting;
  mover_->make_id(meeting.id);
  if (!socket_.send(meeting)) return {PairNews::What::lost, kGone};
  mover_->meet(meeting.id);
  const std::string why = wait_until([this] { return mover_->met(); }, deadline, socket_, limits_, nullptr);
  return {why.empty()    ? PairNews::What::ready
          : why == kGone ? PairNews::What::lost
                         : PairNews::What::failed,
          why};
}

void KvPairReceiver::lose(const PairNews& news) {
  ready_ = false;
  end();
  end_beside(std::move(mover_));
  tell_(news);
}

bool KvPairReceiver::copy(std::span<const wire::BlockCopy> copies, const std::atomic<bool>& stop) {
  while (!copies.empty()) {
    if (!ready_ || stop) return false;
    const auto batch = copies.first(std::min(copies.size(), terms_.batch));
    PairNews news;
    try {
      news = copy_batch(batch, stop);
    } catch (const std::runtime_error& error) {
      news = {PairNews::What::failed, error.what()};
    }
    if (news.what != PairNews::What::ready) {
      lose(news);
      return false;
    }
    copies = copies.subspan(batch.size());
  }
  return true;
}

/// `ready`: it has been copied.
PairNews KvPairReceiver::copy_batch(std::span<const wire::BlockCopy> copies, const std::atomic<bool>& stop) {
  const TimePoint deadline = Clock::now() + limits_.move;
  PairRequest request{++number_, static_cast<std::uint32_t>(copies.size())};
  std::vector<BlockId> own;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    request.block[i] = copies[i].from;
    own.push_back(copies[i].to);
  }
  if (!socket_.send(request)) return {PairNews::What::lost, kGone};
  PairAnswer answer;
  PairSocket::Got got = PairSocket::Got::nothing;
  const auto answered = [&] {
    got = socket_.receive(answer, TimePoint{});
    return got != PairSocket::Got::nothing;
  };
  if (auto why = wait_until(answered, deadline, socket_, limits_, &stop); !why.empty())
    return {PairNews::What::lost, why};
  if (got == PairSocket::Got::end) return {PairNews::What::lost, kGone};
  if (answer.kind != PairAnswer::Kind::sending || answer.number != number_)
    return {PairNews::What::failed, "the other end has sent what is no answer to a request"};
  mover_->move(own);
  const std::string why = wait_until([this] { return mover_->moved(); }, deadline, socket_, limits_, &stop);
  if (!why.empty()) return {why == kStoodStill ? PairNews::What::failed : PairNews::What::lost, why};
  mover_->put();
  return {};
}

// ---- The sender

KvPairSender::KvPairSender(OwnedFd socket, const Memory& memory, MakeMover make, const PairLimits& limits)
    : socket_(std::move(socket)), memory_(memory), make_(std::move(make)), limits_(limits) {
  thread_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "kv_pair_send");
    try {
      run();
    } catch (const std::runtime_error&) {
      // The receiver says that the pair has ended; a GPU that has failed is reported by its own thread.
    }
    socket_.close();
    end_beside(std::move(mover_));
    ended_ = true;
  });
}

KvPairSender::~KvPairSender() {
  socket_.close();
  thread_.join();
}

void KvPairSender::run() {
  if (welcome() && meet()) serve();
}

std::string KvPairSender::refusal(const PairHello& hello) const {
  if (hello.magic != kPairMagic || hello.version != kPairVersion)
    return "the other instance is of another build";
  if (hello.life != memory_.life) return "the other instance asks for a KV memory that has gone";
  const bool sound =
      hello.batch >= 1 && hello.batch <= kMostPairBlocks && hello.slices >= 1 &&
      hello.slices <= kMostPairSlices &&
      std::all_of(hello.slice, hello.slice + std::min<std::size_t>(hello.slices, kMostPairSlices),
                  [&](const PairSlice& slice) { return is_within(slice, memory_.block_bytes); });
  if (hello.block_bytes != memory_.block_bytes || !sound) {
    return "a KV block of the prefill instance has " + std::to_string(memory_.block_bytes) +
           " bytes, the other one asks for parts of " + std::to_string(hello.block_bytes);
  }
  return "";
}

/// True: both ends may meet.
bool KvPairSender::welcome() {
  PairHello hello;
  if (socket_.receive(hello, Clock::now() + limits_.meet) != PairSocket::Got::packet) return false;
  PairAnswer answer;
  std::string why = refusal(hello);
  if (why.empty()) {
    for (std::size_t i = 0; i < hello.slices; ++i) {
      const PairSlice& slice = hello.slice[i];
      terms_.slices.push_back(
          {.from = slice.from, .bytes = slice.bytes, .rows = slice.rows, .from_pitch = slice.from_pitch});
    }
    terms_.batch = hello.batch;
    try {
      mover_ = make_(terms_);
    } catch (const std::runtime_error& error) {
      why = std::string("the prefill instance: ") + error.what();
    }
  }
  if (why.empty() && text_in(hello.gpu) == mover_->gpu())
    why = "both instances are on GPU " + mover_->gpu() + ", and NCCL takes one rank of each GPU";
  if (why.empty() && hello.library != mover_->library()) {
    why = "the prefill instance has version " + std::to_string(mover_->library()) +
          " of NCCL, the decode instance " + std::to_string(hello.library);
  }
  if (!why.empty()) {
    answer.kind = PairAnswer::Kind::refused;
    put_text(answer.why, why);
  }
  return socket_.send(answer) && why.empty();
}

bool KvPairSender::meet() {
  const TimePoint deadline = Clock::now() + limits_.meet;
  PairMeeting meeting;
  if (socket_.receive(meeting, deadline) != PairSocket::Got::packet) return false;
  mover_->meet(meeting.id);
  return wait_until([this] { return mover_->met(); }, deadline, socket_, limits_, nullptr).empty();
}

bool KvPairSender::is_sound(const PairRequest& request, std::uint64_t number) const {
  return request.number == number && request.count >= 1 && request.count <= terms_.batch &&
         std::all_of(request.block, request.block + request.count, [this](BlockId block) {
           return block >= 0 && static_cast<std::size_t>(block) < memory_.blocks;
         });
}

/// Until the receiver has gone, stands still in a batch, or asks for what there is not.
void KvPairSender::serve() {
  for (std::uint64_t number = 1;;) {
    PairRequest request;
    const PairSocket::Got got = socket_.receive(request, Clock::now() + kIdleLook);
    if (got == PairSocket::Got::end) return;
    if (got == PairSocket::Got::nothing) continue;
    if (!is_sound(request, number)) return;
    // The receiver has to take part before the bytes can be handed to the GPU here.
    if (!socket_.send(PairAnswer{PairAnswer::Kind::sending, 0, number})) return;
    mover_->move({request.block, request.count});
    const auto moved = [this] { return mover_->moved(); };
    if (!wait_until(moved, Clock::now() + limits_.move, socket_, limits_, nullptr).empty()) return;
    ++number;
  }
}

}  // namespace troupe::model
