#pragma once
// `troupe fetch --in=N --out=N --say=N`: fetches the one file that a client's request names by URL, and ends.
// It has the network, and neither keys nor decoders. Descriptors:
//   in   a line each: the most bytes, the most milliseconds, the URL; then the allowed hosts
//   out  gets the bytes of the file
//   say  gets a reason and, on the next line, a message, when there is no file; the exit code is then 1
#include <string>
#include <vector>

namespace troupe::fetch {

int fetch_main(const std::vector<std::string>& words);

}  // namespace troupe::fetch
