// Links between servers, on real sockets.
#include "zht/net/peer_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "zht/net/frame_server.h"

namespace zht::net {
namespace {

using namespace std::chrono_literals;

wire::Gathered message(const std::string& value, bool gathered = false) {
  wire::Gathered out;
  const std::size_t start = wire::begin_node_frame(out.bytes, wire::FrameType::peer, 1);
  if (gathered) {
    auto owner = std::make_shared<std::string>(value);
    out.gather(*owner, owner);
  } else {
    out.bytes += value;
  }
  wire::end_node_frame(out.bytes, start, out.pieces_size);
  return out;
}

// Server and link on one loop, which runs until what is waited for has come.
class PeerLinkTest : public testing::Test, public FrameHandler {
 protected:
  std::size_t on_frames(ConnectionNumber, std::span<const wire::Frame> frames, std::string&) override {
    for (const wire::Frame& frame : frames) got_.emplace_back(frame.value);
    if (got_.size() >= wanted_) loop_.stop();
    return frames.size();
  }
  void listen(const std::string& address = "127.0.0.1:0") {
    server_ = std::make_unique<FrameServer>(loop_, *this);
    address_ = server_->listen_tcp(address).value();
  }
  void run_until(std::size_t count) {
    wanted_ = count;
    if (got_.size() < count) loop_.run();
  }
  EventLoop loop_;
  std::unique_ptr<FrameServer> server_;
  std::string address_;
  std::vector<std::string> got_;
  std::size_t wanted_ = 0;
};

TEST_F(PeerLinkTest, MessagesArriveWholeAndInOrderTheGatheredOnesToo) {
  listen();
  PeerLink link(loop_);
  link.lead_to(address_);
  std::vector<std::string> sent;
  for (int i = 0; i < 300; i++) {
    sent.push_back(std::to_string(i) + std::string(static_cast<std::size_t>(i) * 997 % 60'000, static_cast<char>('a' + i % 26)));
    link.send(message(sent.back(), i % 3 == 0));
  }
  run_until(sent.size());
  EXPECT_EQ(got_, sent);
  EXPECT_EQ(link.counts().messages, 300u);
  EXPECT_EQ(link.counts().dropped, 0u);
}

TEST_F(PeerLinkTest, ConnectsAgainWhenTheOtherSideIsBack) {
  listen();
  bool gone = false;
  PeerLink link(loop_);
  link.lead_to(address_);
  link.send(message("one"));
  loop_.every(5ms, [&] {
    if (got_.empty()) return;
    if (!std::exchange(gone, true)) {
      server_.reset();  // its connections and its port are gone
      listen(address_);
    }
    link.send(message("two"));  // the first ones are lost
  });
  run_until(2);
  EXPECT_EQ(got_.back(), "two");
  EXPECT_EQ(link.counts().connections, 2u);
}

TEST_F(PeerLinkTest, WhatFindsTheQueueFullIsDropped) {
  Listening listening = listen_tcp("127.0.0.1:0").value();  // connected to by the kernel, and never read from
  PeerLink link(loop_, {.queue_size = 1 << 20});
  link.lead_to(listening.address);
  loop_.every(1ms, [&] {
    link.send(message(std::string(400'000, 'x')));
    if (link.counts().dropped > 5) loop_.stop();
  });
  loop_.run();
  EXPECT_TRUE(link.up()) << "slow is not gone";
  EXPECT_GT(link.counts().dropped, 5u);
  ::close(listening.descriptor);
}

TEST_F(PeerLinkTest, GoesWhereItIsToldToAndNamesAreLookedUp) {
  listen();
  PeerLink link(loop_);
  link.lead_to("127.0.0.1:1");  // nobody there
  loop_.after(20ms, [&] { link.lead_to("localhost" + address_.substr(address_.rfind(':'))); });
  loop_.every(5ms, [&] { link.send(message("here")); });
  run_until(1);
  EXPECT_EQ(got_.at(0), "here");
}

}  // namespace
}  // namespace zht::net
