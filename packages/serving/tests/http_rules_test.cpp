// SPDX-License-Identifier: Apache-2.0
// The rules of RFC 9112 that a server can break: one row for each MUST of its sections 2, 3,
// 6, 7 and 9, and some rules beside them. The name of a row begins with its section.
#include <tessera/serving/publisher.h>
#include <tessera/serving/server.h>

#include "packages/serving/tests/http_client.h"
#include "packages/serving/tests/published_model.h"

namespace tessera::serving::http_rules_test {

// What a client sends, and the statuses of all answers that it gets.
struct Rule {
  std::string name = {};
  std::string text = {};
  std::vector<int> statuses = {};
  /// Whether the server answers another request afterwards.
  bool stays_open = true;
  /// The first answer has no body.
  bool is_head = false;
};

void PrintTo(const Rule& rule, std::ostream* out) {
  *out << rule.name;
}

constexpr bool kCloses = false;
const std::string kBody = R"({"feature":"movie","ids":[3]})";  // 29 bytes
const std::string kBodyAsChunk = "1d\r\n" + kBody + "\r\n0\r\n\r\n";
const std::string kGet = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";

std::string get_with(const std::string& fields) {
  return "GET /healthz HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
}
std::string get_of(const std::string& target) {
  return "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n";
}
std::string get_from(const std::string& hosts) {
  return "GET /healthz HTTP/1.1\r\n" + hosts + "\r\n";
}
std::string post_with(
    const std::string& fields,
    const std::string& rest,
    const std::string& version = "1.1") {
  return "POST /lookup HTTP/" + version + "\r\nHost: a\r\n" + fields + "\r\n" +
      rest;
}
std::string chunked(const std::string& rest) {
  return post_with("Transfer-Encoding: chunked\r\n", rest);
}
std::string with_length(const std::string& length) {
  return post_with("Content-Length: " + length + "\r\n", kBody);
}

// One answer. The connection stays open unless the request is refused, or closed.
Rule answered(std::string name, std::string text) {
  return {std::move(name), std::move(text), {200}};
}
Rule closed(std::string name, std::string text) {
  return {std::move(name), std::move(text), {200}, kCloses};
}
Rule refused(std::string name, std::string text, int status = 400) {
  return {std::move(name), std::move(text), {status}, kCloses};
}

std::vector<Rule> message_rules() {
  return {
      answered("S2_2_OctetsBeyondAscii", get_with("X: \xc3\xa9\xff\r\n")),
      refused("S2_2_BareCrInAField", get_with("X: a\rb\r\n")),
      refused("S2_2_BareCrInTheRequestLine", get_of("/healthz\r")),
      refused("S2_2_BareCrBehindTheHeader", get_with("\rX: a\r\n")),
      refused("S2_2_SpaceBeforeTheFirstField", get_from(" Host: a\r\n")),
      refused("S2_2_NotHttp", "hello\r\n\r\n"),
      answered("S2_2_EmptyLineBeforeARequest", "\r\n" + kGet),
      {"S2_2_EmptyLinesBetweenRequests", kGet + "\r\n\r\n" + kGet, {200, 200}},
      {"S2_2_EmptyLineBehindABody",
       with_length("29") + "\r\n" + kGet,
       {200, 200}},
      refused(
          "S2_3_TheVersionHasCapitals",
          "GET /healthz http/1.1\r\nHost: a\r\n\r\n"),
      refused(
          "S2_3_AnotherMajorVersion",
          "GET /healthz HTTP/2.0\r\nHost: a\r\n\r\n"),
      refused("S3_WhitespaceInTheTarget", get_of("/healthz x")),
      refused("S3_NoTarget", get_of("")),
      refused(
          "S3_ATargetThatIsTooLong",
          get_of("/" + std::string(20000, 'x')),
          414),
      refused(
          "S3_AFieldThatIsTooLong",
          get_with("X: " + std::string(20000, 'x') + "\r\n"),
          431),
      {"S3_1_MethodsHaveCapitals",
       "get /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
       {405}},
      refused("S3_2_NoHost", get_from("")),
      closed("S3_2_NoHostInHttp10", "GET /healthz HTTP/1.0\r\n\r\n"),
      refused("S3_2_TwoHosts", get_from("Host: a\r\nHost: b\r\n")),
      refused("S3_2_TheSameHostTwice", get_from("Host: a\r\nhost: a\r\n")),
      refused(
          "S3_2_TwoHostsInHttp10",
          "GET /healthz HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"),
      refused("S3_2_HostWithASpace", get_from("Host: a b\r\n")),
      refused("S3_2_HostWithAPath", get_from("Host: a/b\r\n")),
      refused("S3_2_HostWithAUser", get_from("Host: u@a\r\n")),
      refused("S3_2_HostWithoutADigitInItsPort", get_from("Host: a:b\r\n")),
      refused("S3_2_HostWithTwoPorts", get_from("Host: a:1:2\r\n")),
      refused("S3_2_HostWithHalfAnEscape", get_from("Host: a%4\r\n")),
      refused("S3_2_HostWithAnOpenBracket", get_from("Host: [::1\r\n")),
      refused("S3_2_HostWithAWrongAddress", get_from("Host: [::g]\r\n")),
      answered("S3_2_EmptyHost", get_from("Host:\r\n")),
      answered("S3_2_HostWithAPort", get_from("Host: A-b_c.example:80\r\n")),
      answered("S3_2_HostOfVersion6", get_from("Host: [::1]:8080\r\n")),
      answered("S3_2_HostWithAnEscape", get_from("Host: a%2Db\r\n")),
      answered("S3_2_1_OriginForm", get_of("/healthz?a=/b?c")),
      refused("S3_2_1_NoOriginForm", get_of("healthz")),
      answered("S3_2_2_AbsoluteForm", get_of("http://other:80/healthz?x")),
      answered("S3_2_2_AbsoluteFormOfAnyCase", get_of("HTTP://A/healthz")),
      answered("S3_2_2_AbsoluteFormWithoutAPath", get_of("http://a?x")),
      answered(
          "S3_2_2_AbsoluteFormOfAPost",
          "POST http://b/lookup HTTP/1.1\r\nHost: a\r\nContent-Length: 29\r\n\r\n" +
              kBody),
      refused(
          "S3_2_2_AbsoluteFormWithoutAHost",
          "GET http://a/healthz HTTP/1.1\r\n\r\n"),
      refused("S3_2_2_AbsoluteFormOfNoHost", get_of("http:///healthz")),
      refused("S3_2_2_AbsoluteFormOfAUser", get_of("http://u@a/healthz")),
      refused("S3_2_2_AbsoluteFormOfAnotherScheme", get_of("ftp://a/healthz")),
      refused("S3_2_3_AuthorityFormOfAGet", get_of("a:80")),
      refused("S3_2_4_AsteriskFormOfAGet", get_of("*")),
      refused("S5_NoColon", get_with("no colon\r\n")),
      refused("S5_1_SpaceBeforeTheColon", get_with("X : a\r\n")),
      answered("S5_2_FoldedLines", get_with("X: a\r\n b\r\n")),
      refused(
          "R9110_5_5_ZeroByteInAField",
          get_with(std::string("X: a\0b\r\n", 8))),
      {"R9110_10_1_1_Expect",
       post_with("Expect: 100-Continue\r\nContent-Length: 29\r\n", kBody),
       {100, 200}},
      closed(
          "R9110_10_1_1_NoContinueInHttp10",
          post_with(
              "Expect: 100-continue\r\nContent-Length: 29\r\n", kBody, "1.0"))};
}

std::vector<Rule> body_rules() {
  // The second request is in the body of the first one.
  const std::string hidden = "0\r\n\r\n" + kGet;
  return {
      answered("S6_1_Chunked", chunked(kBodyAsChunk)),
      answered(
          "S6_1_ChunkedOfAnyCase",
          post_with("transfer-encoding:  cHuNkEd \r\n", kBodyAsChunk)),
      refused(
          "S6_1_ChunkedTwice",
          post_with("Transfer-Encoding: chunked, chunked\r\n", hidden)),
      refused(
          "S6_1_ChunkedTwiceInTwoFields",
          post_with(
              "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
              hidden)),
      refused(
          "S6_1_ChunkedBehindAnEmptyField",
          post_with(
              "Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n", hidden)),
      refused(
          "S6_1_FoldedChunkedTwice",
          post_with("Transfer-Encoding: chunked\r\n ,chunked\r\n", hidden)),
      refused(
          "S6_1_AnotherCoding",
          post_with("Transfer-Encoding: gzip, chunked\r\n", kBodyAsChunk),
          501),
      refused(
          "S6_1_AnotherCodingInAField",
          post_with(
              "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
              kBodyAsChunk),
          501),
      refused(
          "S6_1_CodingInHttp10",
          post_with("Transfer-Encoding: chunked\r\n", kBodyAsChunk, "1.0")),
      refused(
          "S6_1_CodingBeforeALength",
          post_with(
              "Transfer-Encoding: chunked\r\nContent-Length: 29\r\n",
              kBodyAsChunk)),
      refused(
          "S6_1_CodingBehindALength",
          post_with(
              "Content-Length: 29\r\nTransfer-Encoding: chunked\r\n",
              kBodyAsChunk)),
      {.name = "S6_3_1_HeadHasNoBody",
       .text = "HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
       .statuses = {200},
       .is_head = true},
      {.name = "S6_3_1_RefusedHeadHasNoBody",
       .text = "HEAD /healthz HTTP/1.1\r\n\r\n",
       .statuses = {400},
       .stays_open = kCloses,
       .is_head = true},
      refused(
          "S6_3_4_ChunkedIsNotTheLast",
          post_with("Transfer-Encoding: chunked, gzip\r\n", hidden)),
      refused(
          "S6_3_4_NotChunked",
          post_with("Transfer-Encoding: gzip\r\n", hidden)),
      refused("S6_3_4_NoCoding", post_with("Transfer-Encoding:\r\n", hidden)),
      refused(
          "S6_3_4_ChunkedWithAParameter",
          post_with("Transfer-Encoding: chunked;x=y\r\n", hidden)),
      refused("S6_3_5_NegativeLength", with_length("-1")),
      refused("S6_3_5_LengthWithASign", with_length("+29")),
      refused("S6_3_5_TwoLengthsInAField", with_length("29 29")),
      refused("S6_3_5_HexLength", with_length("0x1d")),
      refused("S6_3_5_EmptyLength", with_length("")),
      refused("S6_3_5_LengthBeyond64Bits", with_length("18446744073709551645")),
      refused("S6_3_5_OtherLengths", with_length("29, 30")),
      refused(
          "S6_3_5_OtherLengthsInTwoFields",
          post_with("Content-Length: 29\r\nContent-Length: 30\r\n", kBody)),
      answered("S6_3_5_EqualLengths", with_length("29, 29")),
      {"S6_3_6_HalfABody", with_length("40"), {}, kCloses},
      {"S6_3_7_NoLength", post_with("", ""), {400}},
      answered(
          "S7_1_CapitalsInASize", chunked("1D\r\n" + kBody + "\r\n0\r\n\r\n")),
      refused(
          "S7_1_SizeBeyond64Bits",
          chunked("1000000000000001d\r\n" + kBody + "\r\n0\r\n\r\n")),
      refused(
          "S7_1_SizeBeyondTheLimit",
          chunked("ffffffffffffffff\r\n" + kBody),
          413),
      refused("S7_1_NegativeSize", chunked("-1\r\n" + kBody)),
      refused("S7_1_NoHexSize", chunked("xyz\r\n")),
      refused("S7_1_SizeWithAPrefix", chunked("0x1d\r\n" + kBody + "\r\n\r\n")),
      refused(
          "S7_1_MoreDataThanTheSize",
          chunked("1c\r\n" + kBody + "\r\n0\r\n\r\n")),
      {"S7_1_HalfAChunk", chunked("1e\r\n" + kBody), {}, kCloses},
      answered(
          "S7_1_1_UnknownExtensions",
          chunked("1d;a=b;c=\"d;\\\"\"\r\n" + kBody + "\r\n0;e\r\n\r\n")),
      refused(
          "S7_1_1_ExtensionsWithoutAnEnd",
          chunked("1d;" + std::string(200000, 'x')),
          431),
      answered(
          "S7_1_2_TrailersAreNoHeader",
          chunked(
              "1d\r\n" + kBody +
              "\r\n0\r\nConnection: close\r\nHost: b\r\nContent-Encoding: gzip\r\n\r\n")),
      refused(
          "S7_1_2_TrailersWithoutAnEnd",
          chunked("0\r\nX: " + std::string(200000, 'x')),
          431)};
}

std::vector<Rule> connection_rules() {
  return {
      {"S9_3_Persists", kGet + kGet, {200, 200}},
      closed("S9_3_Close", get_with("Connection: close\r\n")),
      closed(
          "S9_3_CloseAmongOthers",
          get_with("Connection: x, CLOSE ,keep-alive\r\n")),
      closed(
          "S9_3_CloseInASecondField",
          get_with("Connection: keep-alive\r\nConnection: close\r\n")),
      closed("S9_3_Http10", "GET /healthz HTTP/1.0\r\nHost: a\r\n\r\n"),
      answered(
          "S9_3_Http10KeepsAlive",
          "GET /healthz HTTP/1.0\r\nConnection: x\r\nConnection: Keep-Alive\r\n\r\n"),
      closed(
          "S9_3_Http10CloseCounts",
          "GET /healthz HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n"),
      refused(
          "S9_3_ABodyThatIsNotRead",
          post_with("Content-Length: 999999999\r\n", kGet),
          413),
      {"S9_3_ABodyOfAGet",
       get_with("Content-Length: 29\r\n") + kBody + kGet,
       {200, 200}},
      {"S9_3_2_AnswersInOrder",
       kGet + with_length("29") + get_of("/nope") + get_of("/lookup"),
       {200, 200, 404, 405}},
      closed(
          "S9_6_NothingBehindClose", get_with("Connection: close\r\n") + kGet)};
}

class HttpRulesTest : public ::testing::TestWithParam<Rule> {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    const std::string directory = *folder_ / "published";
    Publisher(std::make_shared<PublishedModel>(), directory).publish();
    server_ = std::make_unique<Server>(
        std::make_shared<Reader>(directory, ReaderOptions{.follow = false}),
        ServerOptions{.port = 0});
  }
  static void TearDownTestSuite() {
    server_.reset();
    folder_.reset();
  }

  static std::unique_ptr<TemporaryFolder> folder_;
  static std::unique_ptr<Server> server_;
};
std::unique_ptr<TemporaryFolder> HttpRulesTest::folder_;
std::unique_ptr<Server> HttpRulesTest::server_;

// The rules of section 6 about answers, and those of RFC 9110 about their header.
void expect_right_header(const HttpReply& reply, bool closes) {
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0U);
  const bool is_final = reply.status >= 200;
  EXPECT_EQ(reply.headers.count("content-length"), is_final ? 1U : 0U);
  if (!is_final) {
    return;
  }
  EXPECT_EQ(reply.headers.at("connection"), closes ? "close" : "keep-alive");
  EXPECT_EQ(reply.headers.count("allow"), reply.status == 405 ? 1U : 0U);
  ASSERT_EQ(reply.headers.count("date"), 1U);
  const std::string& date = reply.headers.at("date");
  EXPECT_EQ(date.size(), 29U) << date;  // Sun, 06 Nov 1994 08:49:37 GMT
  EXPECT_TRUE(date.ends_with(" GMT")) << date;
}

TEST_P(HttpRulesTest, Holds) {
  const Rule& rule = GetParam();
  HttpClient client(server_->port());
  client.send(rule.text);
  if (rule.stays_open) {
    client.send(kGet);
  } else {
    client.end_sending();
  }
  for (size_t i = 0; i < rule.statuses.size(); ++i) {
    const HttpReply reply = client.read(/*has_body=*/i > 0 || !rule.is_head);
    ASSERT_EQ(reply.status, rule.statuses[i]) << "answer " << i;
    if (reply.status >= 400 && !rule.is_head) {
      EXPECT_TRUE(reply.body.starts_with(R"({"error":")")) << reply.body;
    }
    expect_right_header(
        reply, !rule.stays_open && i + 1 == rule.statuses.size());
  }
  if (rule.stays_open) {
    const HttpReply reply = client.read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, R"({"status":"ok","version":1})");
  } else {
    EXPECT_EQ(client.read().status, 0);  // no more answers
    EXPECT_TRUE(client.waits_for_close());
  }
}

std::string name_of(const ::testing::TestParamInfo<Rule>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Messages,
    HttpRulesTest,
    ::testing::ValuesIn(message_rules()),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Bodies,
    HttpRulesTest,
    ::testing::ValuesIn(body_rules()),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Connections,
    HttpRulesTest,
    ::testing::ValuesIn(connection_rules()),
    name_of);

}  // namespace tessera::serving::http_rules_test
