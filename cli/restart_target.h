#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe::cli {

/// What can be restarted, for sentences.
inline constexpr std::string_view kRestartKinds = "engine, front, media, text, video and worker";

/// Which process `troupe restart WORD --index N` means: a name as `troupe status` shows it. The word is a
/// kind or such a name ("media-0"), which has its number. `processes` are the names that the server has;
/// whether the process is among them is not looked at.
Result<std::string> restart_target(const std::string& word, std::optional<int> index,
                                   const std::vector<std::string>& processes);

}  // namespace troupe::cli
