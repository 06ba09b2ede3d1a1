#include "model/ranks/rank_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/pause.h"
#include "model/ranks/weight_sums.h"
#include "model/sealed_memory.h"

namespace troupe::model {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kRankHeaderBytes = 4096;
constexpr std::uint64_t kRankMagic = 0x336b6e6172707274;  // "trprank3"
constexpr int kNoteBits = 48;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kSpins = 2000;
/// A rank that sleeps looks up so often: others see that it goes on, and a wake-up that was lost with its
/// sender costs this.
constexpr long kNapNs = 50'000'000;

std::size_t bytes_for(int ranks) {
  return kRankHeaderBytes + 2 * static_cast<std::size_t>(ranks) * RankMeeting::kSlotBytes + kRankSumBytes;
}

Status system_failure(const std::string& what) {
  return failure(Code::internal, what + ": " + std::strerror(errno));
}

}  // namespace

struct RankMemory::Header {
  std::uint64_t magic = kRankMagic;
  std::int32_t ranks = 0;
  alignas(kLine) std::atomic<std::uint32_t> epoch{1};
  alignas(kLine) std::atomic<std::uint32_t> bell{
      0};  ///< the futex: rises when somebody sleeps and something has changed
  alignas(kLine) std::atomic<std::uint32_t> sleepers{
      0};  ///< too many after a death; that costs calls, not meetings
  struct alignas(kLine) Place {
    std::atomic<std::uint64_t> come{0};  ///< epoch in the upper half, meetings come to in the lower
    std::atomic<std::uint64_t> note{0};  ///< the epoch's lower 16 bits, and the number
  };
  Place places[kMostRanks];

  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_relaxed) != 0) shout();
  }
  void shout() {
    bell.fetch_add(1, std::memory_order_relaxed);
    syscall(SYS_futex, &bell, FUTEX_WAKE, kMostRanks);
  }
};

Result<int> create_rank_memory(int ranks) {
  if (ranks < 1 || ranks > kMostRanks) {
    return invalid("memory for " + std::to_string(ranks) + " ranks; allowed are 1 to " +
                   std::to_string(kMostRanks));
  }
  auto file = make_sealed_memory("troupe-ranks", bytes_for(ranks));
  if (!file) return file.status();
  void* const memory = mmap(nullptr, kRankHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (memory == MAP_FAILED) return system_failure("a memory file cannot be mapped");
  (new (memory) RankMemory::Header)->ranks = ranks;
  munmap(memory, kRankHeaderBytes);
  return file->release();
}

Result<RankMemory> RankMemory::attach(int fd) {
  static_assert(sizeof(Header) <= kRankHeaderBytes && std::atomic<std::uint64_t>::is_always_lock_free);
  struct stat found {};
  if (fstat(fd, &found) != 0) return system_failure("the ranks' memory cannot be read");
  const int seals = fcntl(fd, F_GET_SEALS);
  const auto bytes = static_cast<std::size_t>(found.st_size);
  if (seals < 0 || (seals & kSeals) != kSeals || bytes < kRankHeaderBytes) {
    return invalid("the ranks' memory is no sealed memory file of the right size");
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return system_failure("the ranks' memory cannot be mapped");
  RankMemory mapped(static_cast<Header*>(memory), bytes);
  const Header& header = *mapped.header_;
  if (header.magic != kRankMagic || header.ranks < 1 || header.ranks > kMostRanks ||
      bytes != bytes_for(header.ranks)) {
    return invalid("the ranks' memory has another layout than this program's");
  }
  return mapped;
}

RankMemory::RankMemory(RankMemory&& other) noexcept
    : header_(std::exchange(other.header_, nullptr)), bytes_(other.bytes_) {}

RankMemory::~RankMemory() {
  if (header_ != nullptr) munmap(header_, bytes_);
}

int RankMemory::ranks() const { return header_->ranks; }
std::uint32_t RankMemory::epoch() const { return header_->epoch.load(std::memory_order_acquire); }

void RankMemory::set_epoch(std::uint32_t epoch) {
  header_->epoch.store(epoch, std::memory_order_release);
  header_->shout();
}

std::byte* RankMemory::slot(int rank, std::uint32_t meeting) const {
  const std::size_t index = 2 * static_cast<std::size_t>(rank) + meeting % 2;
  return reinterpret_cast<std::byte*>(header_) + kRankHeaderBytes + index * RankMeeting::kSlotBytes;
}

Result<RankMeeting> RankMeeting::attach(int fd, const Shard& shard) {
  Result<RankMemory> memory = RankMemory::attach(fd);
  if (!memory) return memory.status();
  if (memory->ranks() != shard.ranks || shard.rank < 0 || shard.rank >= shard.ranks) {
    return invalid("rank " + std::to_string(shard.rank) + " of " + std::to_string(shard.ranks) +
                   " has been given the memory of " + std::to_string(memory->ranks()) + " ranks");
  }
  RankMeeting meeting(std::move(*memory), shard);
  meeting.begin_epoch(meeting.epoch());
  return meeting;
}

void RankMeeting::begin_epoch(std::uint32_t epoch, std::uint32_t first) {
  epoch_ = epoch;
  next_ = first;
  abandoned_ = false;
  late_ = {};
}

void RankMeeting::arrive() {
  ++next_;
  if (abandoned_) return;
  header_->places[shard_.rank].come.store(std::uint64_t{epoch_} << 32 | next_, std::memory_order_release);
  header_->ring();
}

// Ranks are at most a meeting apart, so the difference tells which number is the later one, also when it has
// wrapped.
bool RankMeeting::has_come(int rank) const {
  const std::uint64_t come = header_->places[rank].come.load(std::memory_order_acquire);
  return come >> 32 == epoch_ && static_cast<std::int32_t>(static_cast<std::uint32_t>(come) - next_) >= 0;
}

bool RankMeeting::all_have_come() const {
  for (int r = 0; r < shard_.ranks; ++r) {
    if (!has_come(r)) return false;
  }
  return true;
}

void RankMeeting::leave_note(std::uint64_t note) {
  header_->places[shard_.rank].note.store(std::uint64_t{epoch_} << kNoteBits | note,
                                          std::memory_order_release);
}

std::uint64_t RankMeeting::note_of(int rank) const {
  const std::uint64_t note = header_->places[rank].note.load(std::memory_order_acquire);
  const bool is_of_epoch = note >> kNoteBits == (epoch_ & 0xffff);
  return is_of_epoch ? note & ((std::uint64_t{1} << kNoteBits) - 1) : 0;
}

bool RankMeeting::wait(void (*waiting)(void*), void* context) {
  if (abandoned_) return false;
  const auto ended = [&] { return this->ended(); };
  for (int i = 0; i < kSpins; ++i) {
    if (all_have_come()) return true;
    if (ended()) break;
    pause_cpu();
  }
  const TimePoint deadline = Clock::now() + patience_;
  for (;;) {
    header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uint32_t bell = header_->bell.load(std::memory_order_relaxed);
    const bool come = all_have_come(), over = ended();
    if (!come && !over) {
      const timespec nap{0, kNapNs};
      syscall(SYS_futex, &header_->bell, FUTEX_WAIT, bell, &nap);
    }
    header_->sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (come) return true;
    waiting(context);
    if (over || ended()) break;
    if (Clock::now() < deadline) continue;
    int missing = 0;
    while (missing + 1 < shard_.ranks && has_come(missing)) ++missing;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience_).count();
    late_ =
        failure(Code::unavailable, "rank " + std::to_string(missing) + " of " + std::to_string(shard_.ranks) +
                                       " has not come to a step for " + std::to_string(seconds) + " s");
    break;
  }
  abandoned_ = true;
  return false;
}

}  // namespace troupe::model
