// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD that lets the n-th call of a kind fail, or ends the process there, as it
// would in front of a disk that is sick or full, a signal, a kill or a power failure:
//
//   MOESAIC_FAULT=CALL:N:EFFECT:FOLDER LD_PRELOAD=faults.so moesaic ...
//
// CALL is open, read, write, stat, list (of a folder), fsync, rename, other (mkdir, unlink and so
// on), any of these, or change: any that changes something, since a kill before another one leaves
// the same. EFFECT is a name of errno, short (a read or a write does half of its work), slow (it
// takes eight seconds more), empty (of close: the file loses its content), kill (before the call,
// SIGKILL), or power: the same after whatever no fsync has made durable has been undone. Only calls
// on files below FOLDER, an absolute path, are counted; with N+ all from the n-th on fail. What is
// deleted counts as durable at once.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Inode = std::pair<dev_t, ino_t>;

/// A change of a folder that is not durable before that folder is synced.
struct Change {
  bool renames = false, exchanges = false;
  Inode folder;
  std::string from, to;  ///< `to` alone of what was created.
  std::string replaced;  ///< Another name of the file that a rename replaced.
};

struct State {
  std::recursive_mutex mutex;
  bool armed = false, fired = false, lasts = false;
  std::string call, effect, folder;
  long left = 0;
  std::map<Inode, off_t> durable;  ///< Sizes of files that were written to since.
  std::vector<Change> pending;
  int kept = 0;
};

State& state() {
  static State* const all = new State;  // It outlives whoever ends last.
  return *all;
}

thread_local bool inside = false;  // What this library does itself is no matter.

std::string of_fd(int fd) {
  std::array<char, 4096> text{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = ::readlink(link.c_str(), text.data(), text.size());
  return n > 0 ? std::string(text.data(), static_cast<size_t>(n)) : "";
}

std::string absolute(int folder, const char* path) {
  const fs::path name(path);
  if (name.is_absolute()) return name.lexically_normal().string();
  const std::string base = folder == AT_FDCWD ? fs::current_path().string() : of_fd(folder);
  return (fs::path(base) / name).lexically_normal().string();
}

bool is_below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  ::lstat(path.c_str(), &status);  // All zeros where there is none.
  return status;
}

bool is_there(const std::string& path) {
  return status_of(path).st_nlink > 0;
}

Inode inode_of(const std::string& path) {
  const struct stat status = status_of(path);
  return {status.st_dev, status.st_ino};
}

void rename_to(const std::string& from, const std::string& to, unsigned flags = 0) {
  ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
}

/// Undoes what is not durable.
void lose_power(State& s) {
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(s.folder, error)) {
    const auto size = s.durable.find(inode_of(entry.path().string()));
    if (size != s.durable.end()) fs::resize_file(entry.path(), size->second, error);
  }
  for (auto change = s.pending.rbegin(); change != s.pending.rend(); ++change) {
    if (change->exchanges) {
      rename_to(change->from, change->to, RENAME_EXCHANGE);
    } else if (change->renames) {
      rename_to(change->to, change->from);
      if (!change->replaced.empty()) rename_to(change->replaced, change->to);
    } else {
      fs::remove_all(change->to, error);
    }
  }
}

void put_elsewhere(std::string& path, const std::string& from, const std::string& to) {
  if (is_below(path, from)) path = to + path.substr(from.size());
}

/// A folder has been synced.
void settle(State& s, const Inode& folder) {
  for (size_t i = 0; i < s.pending.size();) {
    if (s.pending[i].folder != folder) {
      ++i;
      continue;
    }
    const Change done = s.pending[i];
    s.pending.erase(s.pending.begin() + static_cast<std::ptrdiff_t>(i));
    if (!done.renames) continue;
    for (size_t j = 0; j < i; ++j) {
      for (std::string* path : {&s.pending[j].from, &s.pending[j].to}) {
        const bool back = done.exchanges && is_below(*path, done.to);
        put_elsewhere(*path, back ? done.to : done.from, back ? done.from : done.to);
      }
    }
    // What was created elsewhere is durable under its new name.
    const size_t before = s.pending.size();
    std::erase_if(s.pending, [&](const Change& c) { return !c.renames && c.to == done.to; });
    i -= std::min(i, before - s.pending.size());
  }
}

/// What is to become of a call. It holds the lock for as long as a counted call takes.
class Verdict {
 public:
  Verdict(std::string_view call, const std::string& path, bool changes = true)
      : lock_(state().mutex) {
    State& s = state();
    counts_ = s.armed && !inside && is_below(path, s.folder);
    inside_before_ = std::exchange(inside, true);
    if (!counts_) lock_.unlock();
    const bool meant = s.call == call || s.call == "any" || (s.call == "change" && changes);
    if (!counts_ || (s.fired && !s.lasts) || !meant || --s.left > 0) return;
    s.fired = true;
    if (s.effect == "power") lose_power(s);
    if (s.effect == "power" || s.effect == "kill") ::kill(::getpid(), SIGKILL);
    halves_ = s.effect == "short";
    empties_ = s.effect == "empty";
    if (s.effect == "slow") {
      ::sleep(8);
    } else if (!halves_ && !empties_) {
      error_ = number_of(s.effect);
    }
  }
  Verdict(const Verdict&) = delete;
  Verdict& operator=(const Verdict&) = delete;
  ~Verdict() { inside = inside_before_; }

  /// Returns whether the call fails, with errno set.
  bool fails() const {
    if (error_ != 0) errno = error_;
    return error_ != 0;
  }
  bool counts() const { return counts_; }
  bool empties() const { return empties_; }
  size_t share_of(size_t bytes) const { return halves_ && bytes > 1 ? bytes / 2 : bytes; }

 private:
  static int number_of(const std::string& name) {
    for (int number = 1; number < 134; ++number) {
      const char* const known = ::strerrorname_np(number);
      if (known != nullptr && name == known) return number;
    }
    std::fprintf(stderr, "faults: no errno is named %s\n", name.c_str());
    std::abort();
  }

  std::unique_lock<std::recursive_mutex> lock_;
  bool counts_ = false, inside_before_ = false, halves_ = false, empties_ = false;
  int error_ = 0;
};

/// Returns the path of a descriptor, or nothing where no calls are counted: that takes time.
std::string counted(int fd) {
  return state().armed && !inside ? of_fd(fd) : "";
}

std::string counted(int folder, const char* path) {
  return state().armed && !inside ? absolute(folder, path) : "";
}

void arm(const std::string& call, long n, const std::string& effect, const std::string& folder) {
  State& s = state();
  s.call = call;
  s.left = n;
  s.effect = effect;
  s.folder = folder;
  s.armed = true;
}

[[gnu::constructor]] void arm_by_environment() {
  const char* const given = std::getenv("MOESAIC_FAULT");
  if (given == nullptr) return;
  std::array<std::string, 4> parts;
  std::string_view rest = given;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t end = i + 1 < parts.size() ? rest.find(':') : rest.size();
    parts[i] = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  state().lasts = parts[1].ends_with('+');
  arm(parts[0], std::atol(parts[1].c_str()), parts[2], parts[3]);
}

void record_new(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  Change change;
  change.folder = inode_of(folder);
  change.to = path;
  state().pending.push_back(std::move(change));
}

int opened(int folder, const char* name, int flags, mode_t mode) {
  const std::string path = counted(folder, name);
  const Verdict verdict("open", path, (flags & (O_CREAT | O_TRUNC)) != 0);
  if (verdict.fails()) return -1;
  const bool fresh = verdict.counts() && (flags & O_CREAT) != 0 && !is_there(path);
  const auto fd = static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
  if (fd >= 0 && fresh) record_new(path);
  return fd;
}

int renamed(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const std::string source = counted(from_folder, from), target = counted(to_folder, to);
  const Verdict verdict("rename", target);
  if (verdict.fails()) return -1;
  State& s = state();
  Change change;
  change.renames = true;
  change.exchanges = (flags & RENAME_EXCHANGE) != 0;
  if (verdict.counts()) {
    change.folder = inode_of(fs::path(target).parent_path().string());
    change.from = source;
    change.to = target;
    if (!change.exchanges && S_ISREG(status_of(target).st_mode)) {
      change.replaced = s.folder + ".replaced-" + std::to_string(s.kept++);
      ::link(target.c_str(), change.replaced.c_str());
    }
  }
  const auto result =
      static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (result == 0 && verdict.counts()) s.pending.push_back(change);
  return result;
}

int synced(int fd, long call) {
  const Verdict verdict("fsync", counted(fd));
  if (verdict.fails()) return -1;
  const auto result = static_cast<int>(::syscall(call, fd));
  if (result != 0 || !verdict.counts()) return result;
  struct stat status {};
  ::fstat(fd, &status);
  state().durable.erase({status.st_dev, status.st_ino});
  if (S_ISDIR(status.st_mode)) settle(state(), {status.st_dev, status.st_ino});
  return 0;
}

/// Notes how much of a file that is about to be written is durable.
void record_write(int fd) {
  struct stat status {};
  ::fstat(fd, &status);
  state().durable.emplace(Inode(status.st_dev, status.st_ino), status.st_size);
}

}  // namespace

extern "C" {

void moesaic_fault(const char* call, long n, const char* effect, const char* folder) {
  arm(call, n, effect, folder);
}

int moesaic_fault_fired() {
  return state().fired ? 1 : 0;
}

mode_t mode_in(int flags, va_list list) {
  return (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
}

#define OPEN(name)                              \
  int name(const char* path, int flags, ...) {  \
    va_list list;                               \
    va_start(list, flags);                      \
    const mode_t mode = mode_in(flags, list);   \
    va_end(list);                               \
    return opened(AT_FDCWD, path, flags, mode); \
  }
#define OPEN_AT(name)                                      \
  int name(int folder, const char* path, int flags, ...) { \
    va_list list;                                          \
    va_start(list, flags);                                 \
    const mode_t mode = mode_in(flags, list);              \
    va_end(list);                                          \
    return opened(folder, path, flags, mode);              \
  }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)

int close(int fd) {
  if (state().call == "close") {
    const std::string path = counted(fd);
    const Verdict verdict("close", path, false);
    if (verdict.empties()) ::syscall(SYS_truncate, path.c_str(), 0L);
  }
  return static_cast<int>(::syscall(SYS_close, fd));
}

ssize_t read(int fd, void* bytes, size_t count) {
  const Verdict verdict("read", counted(fd), false);
  return verdict.fails() ? -1 : ::syscall(SYS_read, fd, bytes, verdict.share_of(count));
}

ssize_t pread(int fd, void* bytes, size_t count, off_t offset) {
  const Verdict verdict("read", counted(fd), false);
  return verdict.fails() ? -1 : ::syscall(SYS_pread64, fd, bytes, verdict.share_of(count), offset);
}
ssize_t pread64(int fd, void* bytes, size_t count, off_t offset) {
  return pread(fd, bytes, count, offset);
}

ssize_t write(int fd, const void* bytes, size_t count) {
  const Verdict verdict("write", counted(fd));
  if (verdict.fails()) return -1;
  if (verdict.counts()) record_write(fd);
  return ::syscall(SYS_write, fd, bytes, verdict.share_of(count));
}

int fsync(int fd) {
  return synced(fd, SYS_fsync);
}
int fdatasync(int fd) {
  return synced(fd, SYS_fdatasync);
}

int rename(const char* from, const char* to) {
  return renamed(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return renamed(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return renamed(from_folder, from, to_folder, to, flags);
}

int stat(const char* name, struct stat* status) {
  const Verdict verdict("stat", counted(AT_FDCWD, name), false);
  if (verdict.fails()) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, name, status, 0));
}
// What LibTorch's copy of std::filesystem calls, which is ours where LibTorch is linked before
// libstdc++.
int __xstat(int /*version*/, const char* name, struct stat* status) {  // NOLINT
  return stat(name, status);
}
dirent* readdir(DIR* folder) {
  static const auto next = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  const Verdict verdict("list", counted(::dirfd(folder)), false);
  return verdict.fails() ? nullptr : next(folder);
}

int mkdir(const char* name, mode_t mode) {
  const std::string path = counted(AT_FDCWD, name);
  const Verdict verdict("other", path);
  if (verdict.fails()) return -1;
  const auto result = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, name, mode));
  if (result == 0 && verdict.counts()) record_new(path);
  return result;
}

int unlinkat(int folder, const char* name, int flags) {
  const Verdict verdict("other", counted(folder, name));
  return verdict.fails() ? -1 : static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}
int unlink(const char* name) {
  return unlinkat(AT_FDCWD, name, 0);
}
int rmdir(const char* name) {
  return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}

}  // extern "C"
