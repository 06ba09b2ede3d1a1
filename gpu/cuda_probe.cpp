#include "gpu/cuda_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "base/spawn.h"
#include "gpu/cuda.h"

namespace troupe {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

// What the child sends: small enough for one atomic write to the pipe.
struct ProbeAnswer {
  Code code = Code::ok;
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  int capability = 0;
  int accelerated = 0;
  int devices = 0;
  std::uint64_t reaches = 0;
  char text[1024] = {};
};

void set_text(ProbeAnswer& answer, const std::string& text) {
  std::strncpy(answer.text, text.c_str(), sizeof answer.text - 1);
}

ProbeAnswer look(int ordinal) {
  ProbeAnswer answer;
  if (Status usable = cuda_usable(ordinal); !usable.ok()) {
    answer.code = usable.code;
    set_text(answer, usable.message);
    return answer;
  }
  try {
    const Cuda device({.ordinal = ordinal});
    const CudaMemory memory = device.memory();
    answer.free = memory.free;
    answer.total = memory.total;
    answer.capability = device.capability();
    answer.accelerated = device.features().wgmma ? 1 : 0;
    answer.devices = cuda_devices();
    for (int other = 0; other < std::min(answer.devices, 64); ++other) {
      if (cuda_reaches(ordinal, other)) answer.reaches |= std::uint64_t{1} << other;
    }
    set_text(answer, device.describe());
  } catch (const CudaError& error) {
    answer.code = Code::unavailable;
    set_text(answer, std::string("GPU ") + std::to_string(ordinal) +
                         " cannot be used; another process may have all of its memory: " + error.what());
  }
  return answer;
}

// Reads the child's answer; false if none came in time.
bool await(int fd, ProbeAnswer& answer) {
  std::size_t got = 0;
  const TimePoint deadline = Clock::now() + kPatience;
  while (got < sizeof answer) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waits{fd, POLLIN, 0};
    const int ready = ::poll(&waits, 1, static_cast<int>(left > 0 ? left : 0));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t n = ::read(fd, reinterpret_cast<char*>(&answer) + got, sizeof answer - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    got += static_cast<std::size_t>(n);
  }
  return true;
}

Result<CudaProbe> result_of(const ProbeAnswer& answer) {
  if (answer.code != Code::ok) return failure(answer.code, answer.text);
  return CudaProbe{.name = answer.text,
                   .free = answer.free,
                   .total = answer.total,
                   .capability = answer.capability,
                   .accelerated = answer.accelerated != 0,
                   .devices = answer.devices,
                   .reaches = answer.reaches};
}

}  // namespace

std::string card_name(const CudaProbe& gpu) {
  const std::size_t begin = gpu.name.find(": ");
  if (begin == std::string::npos) return gpu.name;
  return gpu.name.substr(begin + 2, gpu.name.find(',') - begin - 2);
}

Result<CudaProbe> probe_cuda(int ordinal) {
  if (cuda_initialized()) return result_of(look(ordinal));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return failure(Code::internal, std::string("no pipe for a look at the GPU: ") + std::strerror(errno));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_all_but(std::array{ends[1]});
    const ProbeAnswer answer = look(ordinal);
    const bool sent = ::write(ends[1], &answer, sizeof answer) == static_cast<ssize_t>(sizeof answer);
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  ProbeAnswer answer;
  const bool answered = child > 0 && await(ends[0], answer);
  ::close(ends[0]);
  if (child > 0) {
    if (!answered) ::kill(child, SIGKILL);
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (!answered) return failure(Code::unavailable, "The GPU driver gave no answer; nvidia-smi may say more.");
  answer.text[sizeof answer.text - 1] = '\0';
  return result_of(answer);
}

}  // namespace troupe
