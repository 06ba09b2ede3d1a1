#include "actors/tokenizer/text_jobs.h"

#include <algorithm>
#include <array>
#include <utility>

namespace troupe {

std::uint64_t TextJobs::add(Bytes encode, TextLane lane) {
  jobs_.emplace(++last_, Job{std::move(encode), lane});
  return last_;
}

std::vector<std::uint64_t> TextJobs::due() const {
  const auto suspect = std::ranges::find_if(jobs_, [](const auto& entry) { return entry.second.deaths > 0; });
  if (suspect != jobs_.end()) {
    const bool others =
        std::ranges::any_of(jobs_, [](const auto& entry) { return entry.second.sent_in != 0; });
    return others ? std::vector<std::uint64_t>() : std::vector{suspect->first};
  }
  std::vector<std::uint64_t> due;
  for (const auto& [number, job] : jobs_) {
    if (job.sent_in == 0) due.push_back(number);
  }
  return due;
}

bool TextJobs::answered(std::uint64_t number) { return jobs_.erase(number) > 0; }

std::vector<std::uint64_t> TextJobs::lost(std::uint32_t epoch) {
  std::vector<std::uint64_t> failed;
  std::array<bool, kTextLanes> seen{};
  for (auto& [number, job] : jobs_) {
    if (job.sent_in == 0 || job.sent_in == epoch) continue;
    job.sent_in = 0;
    if (std::exchange(seen[static_cast<std::size_t>(job.lane)], true)) continue;
    if (++job.deaths >= kMostDeaths) failed.push_back(number);
  }
  for (const std::uint64_t number : failed) jobs_.erase(number);
  return failed;
}

}  // namespace troupe
