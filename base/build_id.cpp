#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <filesystem>
#include <string_view>

#include "base/hex.h"

namespace troupe {
namespace {

/// Looks through the notes of the first object, which is the program; stops the walk with 1.
int find_build_id(dl_phdr_info* program, std::size_t, void* into) {
  auto& id = *static_cast<std::string*>(into);
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = program->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const unsigned char*>(program->dlpi_addr + segment.p_vaddr);
    const auto* const end = at + segment.p_memsz;
    const auto aligned = [](std::size_t bytes) { return (bytes + 3) / 4 * 4; };
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
      const auto* const name = at + sizeof note;
      const auto* const content = name + aligned(note.n_namesz);
      const auto* const next = content + aligned(note.n_descsz);
      if (next > end || next <= at) break;
      if (note.n_type == NT_GNU_BUILD_ID && std::string_view(reinterpret_cast<const char*>(name),
                                                             note.n_namesz) == std::string_view("GNU\0", 4))
        id = to_hex({content, note.n_descsz});
      at = next;
    }
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string id;
  ::dl_iterate_phdr(find_build_id, &id);
  if (!id.empty()) return id;
  std::error_code error;
  const std::filesystem::path program = "/proc/self/exe";
  const auto size = std::filesystem::file_size(program, error);
  const auto changed = std::filesystem::last_write_time(program, error).time_since_epoch().count();
  return "size " + std::to_string(size) + ", changed " + std::to_string(changed);
}

}  // namespace troupe
