// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tessera::test {

struct HttpReply {
  int status = 0;
  /// The names are in lower case.
  std::map<std::string, std::string> headers = {};
  std::string body = {};
};

/// A connection to a server on this machine. Its calls wait, for 20 seconds at most.
class HttpClient {
 public:
  explicit HttpClient(uint16_t port)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    TORCH_CHECK(socket_ >= 0, "no socket");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = ::connect(
                        socket_,
                        reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)) == 0;
  }
  HttpClient(HttpClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        is_connected_(other.is_connected_),
        received_(std::move(other.received_)) {}
  HttpClient& operator=(HttpClient&&) = delete;
  ~HttpClient() {
    if (socket_ >= 0) {
      ::close(socket_);
    }
  }

  bool is_connected() const {
    return is_connected_;
  }

  /// Returns whether the server still takes bytes.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent =
          ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  void end_sending() {
    ::shutdown(socket_, SHUT_WR);
  }

  /// The next response, or one with status 0 if the server has closed the connection.
  HttpReply read(bool has_body = true) {
    size_t end = 0;
    while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
      if (!receive()) {
        return {};
      }
    }
    HttpReply reply = parse(received_.substr(0, end + 2));
    received_.erase(0, end + 4);
    const auto length = reply.headers.find("content-length");
    const size_t size = !has_body || length == reply.headers.end()
        ? 0
        : std::strtoull(length->second.c_str(), nullptr, 10);
    while (received_.size() < size) {
      if (!receive()) {
        return {};
      }
    }
    reply.body = received_.substr(0, size);
    received_.erase(0, size);
    return reply;
  }

  HttpReply get(const std::string& path) {
    send("GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
    return read();
  }
  HttpReply post(const std::string& path, const std::string& body) {
    send(post_text(path, body));
    return read();
  }
  static std::string post_text(
      const std::string& path,
      const std::string& body) {
    return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  /// Waits until the server closes the connection. What it still sends is lost.
  bool waits_for_close() {
    while (receive()) {
    }
    return !has_timed_out_;
  }

 private:
  bool receive() {
    constexpr int kMilliseconds = 20'000;
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    if (::poll(&waiting, 1, kMilliseconds) == 0) {
      has_timed_out_ = true;
      return false;
    }
    std::array<char, 65536> bytes;
    const ssize_t size = ::recv(socket_, bytes.data(), bytes.size(), 0);
    if (size <= 0) {
      return false;
    }
    received_.append(bytes.data(), static_cast<size_t>(size));
    return true;
  }

  static HttpReply parse(std::string_view head) {
    HttpReply reply;
    // Otherwise the body of the response before was longer than expected.
    TORCH_CHECK(head.starts_with("HTTP/1.1 "), "no status line: ", head);
    const size_t space = head.find(' ');
    reply.status = std::atoi(std::string(head.substr(space + 1, 3)).c_str());
    head.remove_prefix(head.find("\r\n") + 2);
    while (!head.empty()) {
      const std::string_view line = head.substr(0, head.find("\r\n"));
      const size_t colon = line.find(": ");
      std::string name(line.substr(0, colon));
      std::transform(name.begin(), name.end(), name.begin(), [](char letter) {
        return static_cast<char>(
            std::tolower(static_cast<unsigned char>(letter)));
      });
      reply.headers[name] = std::string(line.substr(colon + 2));
      head.remove_prefix(line.size() + 2);
    }
    return reply;
  }

  int socket_ = -1;
  bool is_connected_ = false;
  bool has_timed_out_ = false;
  std::string received_;
};

}  // namespace tessera::test
