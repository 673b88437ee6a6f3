// SPDX-License-Identifier: Apache-2.0
// A web server for one test: a thread on a loopback port that answers GET, with ranges or without,
// whole or cut off.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace moesaic::test {

class HttpServer {
 public:
  enum class Ranges { honoured, ignored };

  explicit HttpServer(std::map<std::string, std::vector<uint8_t>> files,
                      Ranges ranges = Ranges::honoured)
      : files_(std::move(files)), ranges_(ranges) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_, generic, size) != 0 || listen(listener_, 8) != 0 ||
        getsockname(listener_, generic, &size) != 0) {
      throw std::runtime_error("no loopback port for the test's server");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/"; }
  /// From now on an answer's body ends after so many bytes, although its header promises all.
  void cut_after(size_t bytes) { cut_after_ = bytes; }
  /// Calls `action` before each answer, in the server's thread.
  void before_answers(std::function<void()> action) { before_ = std::move(action); }
  /// `respond` returns the whole answer to the text of a request, or "" for the usual one; it runs
  /// in the server's thread.
  void answer_by(std::function<std::string(const std::string&)> respond) {
    respond_ = std::move(respond);
  }
  /// "NAME RANGE" of each request so far.
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    while (true) {
      const int client = accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      answer(client);
      close(client);
    }
  }

  void answer(int client) {
    std::string request;
    char piece[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      const ssize_t count = recv(client, piece, sizeof(piece), 0);
      if (count <= 0) return;
      request.append(piece, static_cast<size_t>(count));
    }
    if (before_) before_();
    const size_t begin = request.find('/') + 1;
    const std::string name = request.substr(begin, request.find(' ', begin) - begin);
    const size_t range = request.find("Range: bytes=");
    const size_t from = range == std::string::npos ? 0 : std::stoul(request.substr(range + 13));
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(name + " " + std::to_string(from));
    }
    if (const std::string own = respond_ ? respond_(request) : ""; !own.empty()) {
      return send_all(client, own);
    }
    const auto file = files_.find(name);
    if (file == files_.end())
      return send_all(client, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    send_file(client, file->second, ranges_ == Ranges::honoured ? from : 0);
  }

  void send_file(int client, const std::vector<uint8_t>& file, size_t from) {
    const std::string all = std::to_string(file.size());
    if (from > 0 && from >= file.size()) {
      return send_all(client, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n");
    }
    std::string head = from == 0 ? "HTTP/1.1 200 OK\r\n"
                                 : "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " +
                                       std::to_string(from) + "-" +
                                       std::to_string(file.size() - 1) + "/" + all + "\r\n";
    head +=
        "Connection: close\r\nContent-Length: " + std::to_string(file.size() - from) + "\r\n\r\n";
    const std::string body(file.begin() + static_cast<std::ptrdiff_t>(from), file.end());
    send_all(client, head + body.substr(0, cut_after_));
  }

  static void send_all(int client, const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t count = send(client, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }

  std::map<std::string, std::vector<uint8_t>> files_;
  Ranges ranges_;
  std::atomic<size_t> cut_after_ = SIZE_MAX;
  std::function<void()> before_;
  std::function<std::string(const std::string&)> respond_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace moesaic::test
