#include "model/card_check/check_worker.h"

#include <cstdlib>
#include <memory>
#include <new>

#include "base/clock.h"
#include "model/card_check/check_lines.h"

namespace troupe::model {
namespace {

class Reporter {
 public:
  explicit Reporter(std::FILE* out) : out_(out) {}
  void say(CheckEvent event, std::vector<std::string> words) {
    std::fputs(to_text({event, std::move(words)}).c_str(), out_);
    std::fflush(out_);
  }

 private:
  std::FILE* out_;
};

long milliseconds_since(TimePoint begin) {
  return static_cast<long>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count());
}

}  // namespace

int run_checks(const CheckOrder& order, const std::vector<kernels::check::KernelCheck>& checks,
               std::FILE* out) {
  Reporter report(out);
  const auto unusable = [&](Code code, const std::string& why) {
    report.say(CheckEvent::unusable, {std::to_string(static_cast<int>(code)), why});
    return 1;
  };
  if (const Status usable = cuda_usable(order.ordinal); !usable.ok())
    return unusable(usable.code, usable.message);
  std::unique_ptr<Cuda> cuda;
  try {
    cuda = std::make_unique<Cuda>(CudaOptions{.ordinal = order.ordinal, .avoided = order.avoided});
  } catch (const CudaError& error) {
    return unusable(Code::unavailable,
                    std::string("GPU ") + std::to_string(order.ordinal) + " cannot be used: " + error.what());
  }
  Cpu cpu({.pin = false});
  const kernels::cuda::GpuTraits traits = kernels::cuda::traits_of(*cuda);
  for (std::size_t i = static_cast<std::size_t>(order.first); i < checks.size(); ++i) {
    const kernels::check::KernelCheck& check = checks[i];
    const kernels::check::TakenWay way = check.way(traits);
    const std::string index = std::to_string(i);
    report.say(CheckEvent::begins,
               {index, std::string(check.op), check.what, std::string(check.needs), way.name,
                way.avoidable ? std::string(to_string(*way.avoidable)) : std::string()});
    const TimePoint begin = Clock::now();
    Status status;
    bool broken = false;  // an error of CUDA stays with the process
    try {
      status = check.run(cpu, *cuda);
      cuda->sync();
    } catch (const CudaError& error) {
      status = failure(Code::internal, error.what());
      broken = true;
    } catch (const std::bad_alloc&) {
      return unusable(Code::unavailable, "there is not enough memory to check the GPU");
    }
    const std::string ms = std::to_string(milliseconds_since(begin));
    if (status.ok())
      report.say(CheckEvent::right, {index, ms});
    else
      report.say(CheckEvent::wrong, {index, ms, status.message});
    if (broken) ::_Exit(1);  // destructors would throw the same error again
  }
  report.say(CheckEvent::ends, {std::to_string(checks.size())});
  return 0;
}

}  // namespace troupe::model
