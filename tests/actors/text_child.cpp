// A text process on its own: `--step-fd=N --cache-fd=N --told-fd=N [--patient]`. At the text "hang" it writes
// a byte to the told descriptor, and then does nothing more unless it is patient.
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "actors/tokenizer/text_server.h"
#include "support/byte_tokenizer.h"

namespace {

using namespace troupe;

class HangingTokenizer final : public testing::ByteTokenizer {
 public:
  HangingTokenizer(int told_fd, bool patient) : told_fd_(told_fd), patient_(patient) {}
  std::vector<TokenId> encode(std::span<const TextSpan> spans) const override {
    for (const TextSpan& span : spans) {
      if (span.text != "hang") continue;
      if (::write(told_fd_, "h", 1) != 1) ::_exit(3);
      while (!patient_) ::pause();
    }
    return ByteTokenizer::encode(spans);
  }

 private:
  const int told_fd_;
  const bool patient_;
};

}  // namespace

int main(int argc, char** argv) {
  int step = -1, cache = -1, told = -1;
  bool patient = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    patient |= word == "--patient";
    for (const auto& [name, fd] :
         {std::pair{"--step-fd=", &step}, {"--cache-fd=", &cache}, {"--told-fd=", &told}}) {
      const std::string_view start = name;
      if (word.starts_with(start))
        std::from_chars(word.data() + start.size(), word.data() + word.size(), *fd);
    }
  }
  auto end = ipc::LowerEnd::attach(step, cache);
  if (!end.ok()) return 2;
  TextServer server(std::make_shared<Link>(*std::move(end)),
                    Encoder(std::make_shared<HangingTokenizer>(told, patient), nullptr), "B", Log());
  for (;;) {
    server.beat();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}
