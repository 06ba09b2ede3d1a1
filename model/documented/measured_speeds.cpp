#include "model/documented/measured_speeds.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace troupe::model {
namespace {

constexpr std::string_view kSmall = "ERNIE-4.5-0.3B", kMiddle = "ERNIE-4.5-21B-A3B",
                           kLarge = "ERNIE-4.5-300B-A47B", kCard = "H200-141G", kFp8 = "block_wise_fp8";

constexpr MeasuredStep kSteps[] = {
    {kSmall, "", kCard, 1, 1, "0.321", "2026-11-22", "| 1 | 0.321 ms, 3,116 tok/s"},
    {kSmall, "", kCard, 1, 32, "0.964", "2026-11-22", "| 32 | 0.964 ms, 33,196"},
    {kSmall, "", kCard, 1, 128, "2.001", "2026-11-22", "| 128 | 2.001 ms, 63,963"},
    {kSmall, "wint8", kCard, 1, 1, "0.330", "2026-11-25", "| batch 1 | 0.328 | 0.330"},
    {kSmall, "wint8", kCard, 1, 32, "0.957", "2026-11-25", "| 32 | 0.976 | 0.957"},
    {kSmall, "wint8", kCard, 1, 128, "2.16", "2026-11-25", "| 128 / 256 | 2.00 / 3.27 | 2.16"},
    {kSmall, "wint4", kCard, 1, 1, "0.316", "2026-11-25",
     "| batch 1 | 0.328 | 0.330, **0.99 ×** (1.08) | 0.316"},
    {kSmall, "wint4", kCard, 1, 32, "1.08", "2026-11-25", "| 32 | 0.976 | 0.957 | 1.08"},
    {kSmall, "wint4", kCard, 1, 128, "2.44", "2026-11-25", "| 128 / 256 | 2.00 / 3.27 | 2.16 / 3.90 | 2.44"},
    {kMiddle, "", kCard, 1, 1, "1.94", "2026-11-30",
     "| 1 | 0.321 ms, 3,116 tok/s | 0.178 ms | 0.56 | 1.94 ms"},
    {kMiddle, "", kCard, 1, 32, "11.6", "2026-11-29", "| 32 | 0.964 ms, 33,196 | 0.457 | 0.47 | 11.6 ms"},
    {kMiddle, "", kCard, 1, 128, "15.6", "2026-11-29", "| 128 | 2.001 ms, 63,963 | 1.320 | 0.66 | 15.6 ms"},
    {kMiddle, "wint8", kCard, 1, 1, "1.45", "2026-11-30", "| batch 1 | 1.94 | 1.45"},
    {kMiddle, "wint8", kCard, 1, 32, "7.54", "2026-11-29", "| 32 | 11.6 | 7.54"},
    {kMiddle, "wint8", kCard, 1, 128, "12.5", "2026-11-29", "| 128 | 15.9 | 12.5"},
    {kMiddle, "wint4", kCard, 1, 1, "1.23", "2026-11-30",
     "| batch 1 | 1.94 | 1.45, **1.34 ×** (1.35) | 1.23"},
    {kMiddle, "wint4", kCard, 1, 32, "5.61", "2026-11-29", "| 32 | 11.6 | 7.54, 1.54 × | 5.61"},
    {kMiddle, "wint4", kCard, 1, 128, "10.6", "2026-11-29", "| 128 | 15.9 | 12.5, 1.27 × | 10.6"},
    {kMiddle, kFp8, kCard, 1, 1, "1.95", "2026-11-23", "| batch 1 | 2.31 | 1.95"},
    {kMiddle, kFp8, kCard, 1, 32, "8.15", "2026-11-23", "| 32 | 11.7 | 8.15"},
    {kMiddle, kFp8, kCard, 1, 128, "11.6", "2026-11-23", "| 128 | 15.9 | 11.6"},
    {kMiddle, "", kCard, 2, 1, "1.73", "2026-11-24", "| batch 1 | 2.35 ms | 1.73 ms"},
    {kMiddle, "", kCard, 2, 32, "6.83", "2026-11-24", "| 32 | 11.8 ms | 6.83 ms"},
    {kMiddle, "", kCard, 2, 128, "9.80", "2026-11-24", "| 128 | 15.9 ms | 9.80 ms"},
    {kLarge, "wint4", kCard, 2, 1, "7.43", "2026-11-25", "| batch 1 | 7.43 ms, 135 tok/s"},
    {kLarge, "wint4", kCard, 2, 128, "52.2", "2026-11-25", "| batch 128 | 52.2 ms, 2,450 tok/s"},
};

}  // namespace

std::span<const MeasuredStep> measured_steps() { return kSteps; }

const MeasuredStep* find_measured(std::string_view shape, std::string_view quantization,
                                  std::string_view card, int cards, int sequences) {
  const auto* const found = std::ranges::find_if(kSteps, [&](const MeasuredStep& step) {
    return step.shape == shape && step.quantization == quantization && step.card == card &&
           step.cards == cards && step.sequences == sequences;
  });
  return found == std::end(kSteps) ? nullptr : found;
}

double tokens_per_s(const MeasuredStep& step) {
  return 1e3 * step.sequences / std::strtod(std::string(step.ms).c_str(), nullptr);
}

}  // namespace troupe::model
