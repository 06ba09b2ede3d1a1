#pragma once
// The hubs' lists of files, as JSON, and what is allowed in them. A list is another machine's word: a path in
// it must not lead out of the folder that is written.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fetch/remote_file.h"

namespace troupe::fetch {

/// A relative path of plain names: none of them empty, "." or "..", longer than 255 bytes, or with a
/// backslash or a control character.
Status check_path(std::string_view path);

/// ORG/NAME, each of letters, digits, '.', '_' and '-', beginning with a letter or digit.
Status check_model_name(std::string_view name);

// One page of a listing. Error for text that is not such a list, and for a bad path, size or sum in it.
// Folders and files whose path has a part that begins with a dot are left out.
Result<std::vector<RemoteFile>> parse_huggingface_tree(std::string_view json);
Result<std::vector<RemoteFile>> parse_modelscope_files(std::string_view json);

struct GitTree {
  std::vector<RemoteFile> files;
  bool truncated = false;  ///< more pages follow
};
Result<GitTree> parse_git_tree(std::string_view json);

/// True if `text` is a Git LFS pointer, the small file that stands for a large one in git. Sets size and sum
/// of `file` to those of the large one.
bool read_lfs_pointer(std::string_view text, RemoteFile& file);

/// The files of a checkpoint: all, or without weights in other formats when there are *.safetensors. Error if
/// a path occurs twice, or if there is no config.json; not with `all`.
Result<std::vector<RemoteFile>> choose_files(std::vector<RemoteFile> files, bool all);

}  // namespace troupe::fetch
