// What a step pays for crossing from the engine to a worker and back: one record each way between two
// processes, through the ends that the product uses (LinkEnd: rings, doorbells, epoch check, heartbeat).
//
//   hot      both sides poll
//   parked   the worker sleeps in its futex, the engine polls for the answer. Its bound is the same game
//            over two bare words and a futex, played in turns with it, so that both see the same machine.
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <new>
#include <vector>

#include "base/pause.h"
#include "bench/report.h"
#include "ipc/link.h"

namespace {

using namespace troupe;
using namespace troupe::ipc;
using namespace std::chrono_literals;

struct BareWords {
  alignas(64) std::atomic<std::uint32_t> question{0};
  alignas(64) std::atomic<std::uint32_t> answer{0};
};

// The processors that this program was given, asked for before anything is pinned.
const std::vector<int>& processors() {
  static const std::vector<int> all = [] {
    cpu_set_t set;
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    return cpus;
  }();
  return all;
}

void pin_to(std::size_t nth) {
  if (processors().size() < 2) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processors()[nth % processors().size()], &one);
  sched_setaffinity(0, sizeof one, &one);
}

template <class Body>
pid_t other_process(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin_to(1);
    body();
    _exit(0);
  }
  return pid;
}

void stop(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

double median(std::vector<double>& samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2),
                   samples.end());
  return samples[samples.size() / 2];
}

void pause_for(std::int64_t ns) {
  for (const std::int64_t end = now_ns() + ns; now_ns() < end;) pause_cpu();
}

template <class R>
struct Player {
  wire::RecordWriter<R> writer;
  bool send(LinkEnd& end, std::uint64_t step) {
    writer.begin(end.epoch());
    writer.record().step = step;
    return end.try_send(Channel::step, writer.finish());
  }
};

// Answers every plan with a result, waiting as it is told.
void echo(const LinkFds& fds, Duration spin) {
  auto end = LowerEnd::attach(fds.step.get(), fds.cache.get());
  if (!end) _exit(1);
  end->set_spin(spin);
  Player<wire::StepResult> player;
  for (;;) {
    const Received got = end->receive(Clock::now() + 10s);
    if (got.kind != Received::Kind::record) _exit(1);
    player.send(*end, got.view.as<wire::StepPlan>()->step);
  }
}

double link_round_trip_us(UpperEnd& engine, Player<wire::StepPlan>& player, std::uint64_t step) {
  const std::int64_t start = now_ns();
  player.send(engine, step);
  const Received got = engine.receive(Clock::now() + 10s);
  const std::int64_t end = now_ns();
  if (got.kind != Received::Kind::record) {
    std::fprintf(stderr, "ring_bench: no answer within 10 s\n");
    std::exit(1);
  }
  return static_cast<double>(end - start) / 1e3;
}

long futex(std::atomic<std::uint32_t>& word, int op, std::uint32_t value) {
  return syscall(SYS_futex, &word, op, value, nullptr, nullptr, 0);
}

double bare_round_trip_us(BareWords& words, std::uint32_t n) {
  const std::int64_t start = now_ns();
  words.question.store(n, std::memory_order_release);
  futex(words.question, FUTEX_WAKE, 1);
  while (words.answer.load(std::memory_order_acquire) != n) pause_cpu();
  return static_cast<double>(now_ns() - start) / 1e3;
}

void bare_echo(BareWords& words) {
  for (std::uint32_t seen = 0;;) {
    while (words.question.load(std::memory_order_acquire) == seen) futex(words.question, FUTEX_WAIT, seen);
    words.answer.store(++seen, std::memory_order_release);
  }
}

LinkFds make_link() {
  auto fds = create_link();
  if (!fds) {
    std::fprintf(stderr, "ring_bench: %s\n", fds.status().message.c_str());
    std::exit(1);
  }
  return std::move(*fds);
}

double hot_us() {
  const LinkFds fds = make_link();
  auto engine = UpperEnd::attach(fds.step.get(), fds.cache.get());
  engine->set_spin(1s);
  const pid_t worker = other_process([&] { echo(fds, 1s); });
  Player<wire::StepPlan> player;
  std::uint64_t step = 0;
  double best = 1e9;
  for (int block = 0; block < 20; ++block) {
    constexpr int kRounds = 20'000;  // timed as a whole: reading the clock costs a tenth of a round
    const std::int64_t start = now_ns();
    for (int i = 0; i < kRounds; ++i) {
      player.send(*engine, ++step);
      if (engine->receive(TimePoint::max()).kind != Received::Kind::record) std::exit(1);
    }
    best = std::min(best, static_cast<double>(now_ns() - start) / 1e3 / kRounds);
  }
  stop(worker);
  return best;
}

struct Parked {
  double link_us;
  double bare_us;
};

Parked parked_us() {
  const LinkFds fds = make_link();
  auto engine = UpperEnd::attach(fds.step.get(), fds.cache.get());
  engine->set_spin(1s);
  void* memory = mmap(nullptr, sizeof(BareWords), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* words = new (memory) BareWords;
  const pid_t worker = other_process([&] { echo(fds, 0s); });
  const pid_t bare = other_process([&] { bare_echo(*words); });
  Player<wire::StepPlan> player;
  std::vector<double> link_samples, bare_samples;
  for (std::uint32_t i = 1; i <= 6000; ++i) {
    pause_for(60'000);  // time to fall asleep
    bare_samples.push_back(bare_round_trip_us(*words, i));
    pause_for(60'000);
    link_samples.push_back(link_round_trip_us(*engine, player, i));
  }
  stop(worker);
  stop(bare);
  munmap(memory, sizeof(BareWords));
  return {median(link_samples), median(bare_samples)};
}

// One process pushes 64-byte records into a bare ring as fast as another takes them.
double million_records_per_s() {
  auto fd = Segment::create(SegmentKind::step, 1 << 20, 4096);
  auto segment = Segment::attach(fd->get(), SegmentKind::step);
  constexpr std::uint64_t kRecords = 4'000'000;
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const pid_t writer = other_process([&] {
      RingProducer producer(segment->down());
      std::uint64_t record[8] = {};
      for (std::uint64_t i = 0; i < kRecords; ++i) {
        record[0] = i;
        while (!producer.try_push(std::as_bytes(std::span(record)))) pause_cpu();
      }
    });
    RingConsumer consumer(segment->down());
    std::span<const std::byte> seen;
    while (consumer.peek(seen) != RingConsumer::Peek::record) pause_cpu();
    const std::int64_t start = now_ns();
    for (std::uint64_t i = 0; i < kRecords; ++i) {
      while (consumer.peek(seen) != RingConsumer::Peek::record) pause_cpu();
      consumer.pop();
    }
    best = std::max(best, static_cast<double>(kRecords) * 1e3 / static_cast<double>(now_ns() - start));
    waitpid(writer, nullptr, 0);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv);
  pin_to(0);
  report.row({"ring.round_trip.hot", hot_us(), "us", 0, 1.0, bench::Better::lower});
  const Parked parked = parked_us();
  report.row({"ring.round_trip.parked", parked.link_us, "us", parked.bare_us, parked.bare_us + 2,
              bench::Better::lower});
  report.row({"ring.throughput.64B", million_records_per_s(), "M/s", 0, 0, bench::Better::higher});
  return report.all_met() ? 0 : 1;
}
