#pragma once
// The jobs that were given to one text process and are not answered. A job at which the process dies is asked
// again once, alone, and fails at the second death; the others lose nothing but time. Pure: no I/O.
//
// The process has a thread for each lane and takes the jobs of a lane in order. So at its death only the
// first job of each lane was at work: these are suspects, and each runs alone before anything else does.
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "actors/messages.h"

namespace troupe {

class TextJobs {
 public:
  /// Ends of the process at which a job fails.
  static constexpr int kMostDeaths = 2;

  /// A new job, an Encode as bytes; returns its number, above 0. due() names it when it is to be sent.
  std::uint64_t add(Bytes encode, TextLane lane);

  /// The jobs that are to be sent now, in order.
  std::vector<std::uint64_t> due() const;

  /// The job was sent in this epoch of the link, which is not 0.
  void sent(std::uint64_t number, std::uint32_t epoch) { jobs_.at(number).sent_in = epoch; }

  /// Valid until the job is answered or has failed.
  const Bytes& bytes(std::uint64_t number) const { return jobs_.at(number).encode; }
  TextLane lane(std::uint64_t number) const { return jobs_.at(number).lane; }

  /// The process has answered. False: no such job is open.
  bool answered(std::uint64_t number);

  /// The process has ended, and the link is in this epoch now. Returns the jobs that fail, which are
  /// forgotten; the others that were sent in earlier epochs are to be sent again.
  std::vector<std::uint64_t> lost(std::uint32_t epoch);

  std::size_t size() const { return jobs_.size(); }

 private:
  struct Job {
    Bytes encode;
    TextLane lane = TextLane::common;
    std::uint32_t sent_in = 0;  // epoch; 0: it is to be sent
    int deaths = 0;             // of the process, while the job was at work
  };
  std::map<std::uint64_t, Job> jobs_;  // by number, which is the order in which they are sent
  std::uint64_t last_ = 0;
};

}  // namespace troupe
