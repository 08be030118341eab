// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/data_sets.h"

#include "examples/movielens/published.h"

#include <c10/util/Exception.h>
#include <openssl/evp.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <sstream>

namespace {

constexpr const char* kS3Rec =
    "github.com/RUCAIBox/CIKM2020-S3Rec, folder data";
constexpr const char* kLightGcn =
    "github.com/gusye1234/LightGCN-PyTorch, folder data/gowalla: train.txt and test.txt, as gowalla_train.txt and gowalla_test.txt";

// Where published results stand.
constexpr const char* kS3RecPaper = "S3-Rec, CIKM 2020";
constexpr const char* kTransformers = "blondered/transformer_benchmark";
constexpr const char* kBars = "BARS-Match, gowalla_m1";
// The public logs of the authors, each of one seed.
constexpr const char* kBsaRec = "log of one seed, arXiv 2312.10325";
constexpr const char* kWeaRec = "log of one seed, arXiv 2511.07028";
constexpr const char* kTvRec = "log of one seed, arXiv 2510.25259";
constexpr const char* kFiclRec = "log of one seed, syf1844803351/FICLRec";
constexpr const char* kKeRec = "log of one seed, yyt-1219/KERec";
// Trainings of other models by the authors of FICLRec.
constexpr const char* kOfFiclRec = "rerun in syf1844803351/FICLRec";
constexpr const char* kIcsRec = "README of QinHsiu/ICSRec";

DataSet next_item(
    std::string name,
    DataFile file,
    std::vector<Published> published) {
  return {
      .name = std::move(name),
      .task = Task::kNextItem,
      .files = {file},
      .source = kS3Rec,
      .metrics = {"recall@10", "NDCG@10"},
      .published = std::move(published)};
}

std::vector<Published> published_rmse() {
  std::vector<Published> all;
  for (const PublishedRmse& published : kPublishedRmse) {
    all.push_back({published.model, {published.rmse}, published.source});
  }
  return all;
}

std::vector<DataSet> make_data_sets() {
  return {
      {.name = "ML-100K",
       .task = Task::kRatings,
       .files =
           {{"u.data",
             "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"}},
       .source = "./run train downloads it",
       .metrics = {"RMSE"},
       .published = published_rmse()},
      next_item(
          "Beauty",
          {"Beauty.txt",
           "226cce9c3105299ca0db9615d7d3fb32b3175e90da43100ae352599f0f0107b8"},
          {{"SASRec", {0.0605, 0.0318}, kS3RecPaper},
           {"S3-Rec", {0.0647, 0.0327}, kS3RecPaper},
           {"TIGER", {0.0648, 0.0384}, kTransformers},
           {"ActionPiece", {0.0775, 0.0424}, kTransformers},
           {"HSTU", {0.0788, 0.0439}, kTransformers},
           {"eSASRec", {0.0928, 0.0523}, kTransformers},
           {"SASRec, sampled softmax", {0.0921, 0.0531}, kTransformers},
           {"DuoRec", {0.0844, 0.0439}, kOfFiclRec},
           {"ICSRec", {0.0959, 0.0578}, kIcsRec},
           {"BSARec, rerun", {0.0987, 0.0595}, kOfFiclRec},
           {"FICLRec", {0.1007, 0.0606}, kFiclRec},
           {"TV-Rec", {0.1017, 0.0608}, kTvRec},
           {"BSARec", {0.1008, 0.0611}, kBsaRec},
           {"WEARec", {0.1041, 0.0614}, kWeaRec},
           {"KERec", {0.1050, 0.0623}, kKeRec}}),
      next_item(
          "Sports",
          {"Sports_and_Outdoors.txt",
           "2a095e0648872beb9982408958290f5d655db5be2911c3756b5446de9f0b8de2"},
          {{"SASRec", {0.0350, 0.0192}, kS3RecPaper},
           {"S3-Rec", {0.0385, 0.0204}, kS3RecPaper},
           {"HSTU", {0.0437, 0.0243}, kTransformers},
           {"ActionPiece", {0.0500, 0.0264}, kTransformers},
           {"SASRec, sampled softmax", {0.0569, 0.0314}, kTransformers},
           {"eSASRec", {0.0560, 0.0323}, kTransformers},
           {"DuoRec", {0.0456, 0.0240}, kOfFiclRec},
           {"ICSRec", {0.0565, 0.0335}, kIcsRec},
           {"BSARec, rerun", {0.0589, 0.0342}, kOfFiclRec},
           {"FICLRec", {0.0623, 0.0359}, kFiclRec},
           {"TV-Rec", {0.0635, 0.0363}, kTvRec},
           {"WEARec", {0.0631, 0.0367}, kWeaRec},
           {"KERec", {0.0643, 0.0369}, kKeRec}}),
      next_item(
          "Toys",
          {"Toys_and_Games.txt",
           "176c680c688d497598c4a89a03b402c0fe78d795e5db335c2e78dd5f2d778a3f"},
          {{"SASRec", {0.0675, 0.0374}, kS3RecPaper},
           {"S3-Rec", {0.0700, 0.0376}, kS3RecPaper},
           {"TIGER", {0.0712, 0.0432}, kTransformers},
           {"HSTU", {0.0778, 0.0450}, kTransformers},
           {"eSASRec", {0.0939, 0.0538}, kTransformers},
           {"SASRec, sampled softmax", {0.0970, 0.0580}, kTransformers},
           {"DuoRec", {0.0929, 0.0476}, kOfFiclRec},
           {"ICSRec", {0.1055, 0.0657}, kIcsRec},
           {"BSARec, rerun", {0.1062, 0.0663}, kOfFiclRec},
           {"FICLRec", {0.1092, 0.0679}, kFiclRec},
           {"KERec", {0.1154, 0.0701}, kKeRec}}),
      next_item(
          "Yelp",
          {"Yelp.txt",
           "724b219106b81dd2349027da997334ddb6da9fe2f152ad6e0d97a93170f7caed"},
          {{"HGN", {0.0326, 0.0159}, kS3RecPaper},
           {"S3-Rec", {0.0341, 0.0168}, kS3RecPaper},
           {"BSARec, rerun", {0.0426, 0.0217}, kOfFiclRec},
           {"DuoRec", {0.0445, 0.0227}, kOfFiclRec},
           {"TV-Rec", {0.0474, 0.0245}, kTvRec},
           {"FICLRec", {0.0521, 0.0266}, kFiclRec},
           {"KERec", {0.0534, 0.0272}, kKeRec}}),
      next_item(
          "LastFM",
          {"LastFM.txt",
           "9ded486adb5b0fe9dc761950afa0a9a05e93ff018992e0c52bf11afec529f802"},
          {{"SASRec", {0.0688, 0.0390}, kS3RecPaper},
           {"S3-Rec", {0.0743, 0.0427}, kS3RecPaper},
           {"DuoRec", {0.0587, 0.0348}, kOfFiclRec},
           {"BSARec", {0.0807, 0.0435}, kBsaRec},
           {"WEARec", {0.0899, 0.0465}, kWeaRec},
           {"TV-Rec", {0.0853, 0.0484}, kTvRec},
           {"KERec", {0.0899, 0.0501}, kKeRec},
           {"FICLRec", {0.0853, 0.0503}, kFiclRec},
           {"WEARec, sequences of 200",
            {0.0972, 0.0556},
            "README of xhy963319431/WEARec"}}),
      {.name = "Gowalla",
       .task = Task::kNewItems,
       .files =
           {{.name = "gowalla_train.txt",
             .sha256 =
                 "0f086326b28a56c2e6dcb81d86ee72d4ccb7eed3a8d26788392356d8f51111cc",
             .ignores_order = true},
            {.name = "gowalla_test.txt",
             .sha256 =
                 "099a2a73924e4b754dc6efd730d764f492321b53c38eb93298850c83acf57be3"}},
       .source = kLightGcn,
       .metrics = {"recall@20", "NDCG@20"},
       .published = {
           {"ItemCF", {0.1570, 0.1214}, kBars},
           {"MF, BPR loss", {0.1627, 0.1378}, kBars},
           {"SLIM", {0.1699, 0.1382}, kBars},
           {"YoutubeDNN", {0.1754, 0.1473}, kBars},
           {"EASE", {0.1765, 0.1467}, kBars},
           {"LightGCN", {0.1820, 0.1547}, kBars},
           {"MF, cosine contrastive loss", {0.1837, 0.1493}, kBars},
           {"UltraGCN", {0.1862, 0.1580}, kBars},
           {"SimpleX", {0.1872, 0.1557}, kBars},
           {"GF-CF", {0.1849, 0.1518}, "arXiv 2108.07567"},
           {"BSPM-EM", {0.1920, 0.1597}, "arXiv 2211.09324"},
           {"ChebyCF", {0.1941, 0.1616}, "arXiv 2505.00552"},
           {"NESCL", {0.1917, 0.1617}, "arXiv 2402.11523"}}}};
}

// Calls use(data, size) for each part of a text or gzip file's text.
template <class Use>
void read_parts(const std::string& path, Use use) {
  const auto close = [](gzFile_s* file) { gzclose(file); };
  const std::unique_ptr<gzFile_s, decltype(close)> file(
      gzopen(path.c_str(), "rb"), close);
  TORCH_CHECK_VALUE(
      file, "[leaderboard] ", path, " can't be read. Check its permissions.");
  std::array<char, size_t{1} << 16> buffer;
  int size = 0;
  while ((size = gzread(file.get(), buffer.data(), buffer.size())) > 0) {
    use(buffer.data(), static_cast<size_t>(size));
  }
  TORCH_CHECK_VALUE(
      size == 0,
      "[leaderboard] ",
      path,
      " is damaged or can't be read. Download it again.");
}

std::string sorted_lines(const std::string& text) {
  std::istringstream lines(text);
  std::string sorted;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    int64_t first = 0;
    numbers >> first;
    std::vector<int64_t> items;
    for (int64_t item = 0; numbers >> item;) {
      items.push_back(item);
    }
    std::sort(items.begin(), items.end());
    sorted += std::to_string(first);
    for (const int64_t item : items) {
      sorted += ' ';
      sorted += std::to_string(item);
    }
    sorted += "\n";
  }
  return sorted;
}

}  // namespace

const std::vector<DataSet>& known_data_sets() {
  static const std::vector<DataSet> sets = make_data_sets();
  return sets;
}

std::string sha256_of(const std::string& path, bool ignores_order) {
  const auto free = [](EVP_MD_CTX* context) { EVP_MD_CTX_free(context); };
  const std::unique_ptr<EVP_MD_CTX, decltype(free)> context(
      EVP_MD_CTX_new(), free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  std::string whole;
  read_parts(path, [&](const char* data, size_t size) {
    if (ignores_order) {
      whole.append(data, size);
    } else {
      EVP_DigestUpdate(context.get(), data, size);
    }
  });
  if (ignores_order) {
    const std::string sorted = sorted_lines(whole);
    EVP_DigestUpdate(context.get(), sorted.data(), sorted.size());
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &size);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] / 16];
    text += kDigits[digest[i] % 16];
  }
  return text;
}

std::optional<std::vector<std::string>> find_files(
    const DataSet& data,
    const std::string& folder) {
  std::vector<std::string> paths;
  if (folder.empty()) {
    return std::nullopt;
  }
  for (const DataFile& file : data.files) {
    std::string path = folder + "/" + file.name;
    if (!std::filesystem::exists(path)) {
      path += ".gz";
    }
    if (!std::filesystem::exists(path)) {
      return std::nullopt;
    }
    const std::string found = sha256_of(path, file.ignores_order);
    TORCH_CHECK_VALUE(
        found == file.sha256,
        "[leaderboard] ",
        path,
        ": expected the SHA-256 ",
        file.sha256,
        file.ignores_order ? " of the lines with ascending items"
                           : " of the text",
        ", but got ",
        found,
        ". Download it again from ",
        data.source,
        ".");
    paths.push_back(path);
  }
  return paths;
}
