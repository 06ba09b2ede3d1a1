#pragma once
// How a bench program prints a figure: one row beside its bound. tools/bench collects the rows.
//
// With --json each row is one object:
// {"name","value","unit","bound","ratio","must","met"}; otherwise one aligned line.
#include <cstdio>
#include <cstring>
#include <string>

namespace troupe::bench {

enum class Better { higher, lower };

struct Row {
  std::string name;  ///< "ring.round_trip.hot"
  double value = 0;
  std::string unit;  ///< "us", "tok/s"
  double bound = 0;  ///< the physical or same-run reference limit, in `unit`; 0 when there is none
  double must = 0;   ///< what the figure has to reach, in `unit`; 0 when nothing is demanded
  Better better = Better::higher;
};

class Report {
 public:
  Report(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) json_ |= std::strcmp(argv[i], "--json") == 0;
  }

  void row(const Row& r) {
    const double ratio = r.bound > 0 ? r.value / r.bound : 0;
    const bool met = r.must <= 0 || (r.better == Better::higher ? r.value >= r.must : r.value <= r.must);
    all_met_ &= met;
    if (json_) {
      std::printf(
          "{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"bound\":%.6g,\"ratio\":%.4g,"
          "\"must\":%.6g,\"met\":%s}\n",
          r.name.c_str(), r.value, r.unit.c_str(), r.bound, ratio, r.must, met ? "true" : "false");
    } else {
      std::printf("%-44s %12.4g %-8s bound %10.4g  ratio %6.3f  must %s%10.4g  %s\n", r.name.c_str(), r.value,
                  r.unit.c_str(), r.bound, ratio, r.better == Better::higher ? ">=" : "<=", r.must,
                  r.must <= 0 ? "-"
                  : met       ? "met"
                              : "MISSED");
    }
    std::fflush(stdout);
  }

  bool all_met() const { return all_met_; }

 private:
  bool json_ = false;
  bool all_met_ = true;
};

}  // namespace troupe::bench
