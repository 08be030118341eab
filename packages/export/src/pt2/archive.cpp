// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/archive.h"

#include <tessera/common/json_text.h>
#include <tessera/common/shorten.h>

#include "packages/export/src/pt2/graph_json.h"
#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"
#include "src/common/checksum.h"

#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

namespace tessera::pt2 {

namespace {

// The records of torch.export's archive.
// Source:  torch/csrc/export/pt2_archive_constants.h
constexpr const char* kModel = "models/model.json";
constexpr const char* kWeights = "data/weights/model_weights_config.json";
constexpr const char* kConstants = "data/constants/model_constants_config.json";
constexpr const char* kSample = "data/sample_inputs/model.pt";
// The library's own records.
constexpr const char* kValues = "extra/tessera.json";
constexpr const char* kValuesChecksum = "extra/tessera.checksum";
constexpr int64_t kValuesVersion = 1;

// Short records that every file has.
struct FixedRecord {
  const char* name;
  const char* text;
};
constexpr std::array<FixedRecord, 3> kFixedRecords = {{
    {"archive_format", "pt2"},
    {"archive_version", "0"},
    {"byteorder", "little"},
}};

// The bytes of a file that torch.load(weights_only=True) reads as ((tensors...), {}):
// the arguments and keyword arguments of a call. AOTInductor needs this file.
// Source:  torch/serialization.py. LibTorch's pickle_save() writes a dict that
//          torch.load refuses.
std::string sample_inputs_file(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::IValue> tensors;
  for (const at::Tensor& input : inputs) {
    // Copied, because a view would be written with the whole memory of its tensor.
    tensors.emplace_back(input.detach().clone(at::MemoryFormat::Contiguous));
  }
  std::string code;
  torch::jit::Pickler pickler(
      [&](const char* data, size_t size) { code.append(data, size); },
      /*tensor_table=*/nullptr,
      /*type_renamer=*/nullptr,
      /*memoized_class_types=*/nullptr,
      /*get_tensor_id=*/nullptr,
      /*tag_aggregates=*/false);  // torch.load refuses the tag of a dict
  pickler.protocol();
  pickler.startTuple();
  pickler.pushIValue(c10::ivalue::Tuple::create(std::move(tensors)));
  pickler.pushDict(c10::Dict<std::string, at::Tensor>());
  pickler.endTuple();
  pickler.stop();

  std::string file;
  caffe2::serialize::PyTorchStreamWriter writer(
      [&](const void* data, size_t size) {
        file.append(static_cast<const char*>(data), size);
        return size;
      });
  writer.writeRecord("data.pkl", code.data(), code.size());
  writer.writeRecord("byteorder", "little", 6);
  size_t record = 0;
  for (const at::Tensor& tensor : pickler.tensorData()) {
    writer.writeRecord(
        fmt::format("data/{}", record++),
        tensor.const_data_ptr(),
        tensor.nbytes());
  }
  writer.writeEndOfFile();
  return file;
}

// A value of the signature as JSON for the file.
Json value_json(const Pt2Value& value) {
  const auto shape = converted(value.shape, [](const auto& size) {
    return size ? Json(*size) : Json(nullptr);
  });
  return {
      {"name", value.name},
      {"path", value.path},
      {"part", value.part},
      {"dtype", c10::toString(value.dtype)},
      {"shape", shape}};
}

// Writes records and collects their checksums.
class RecordWriter {
 public:
  template <class Write>
  explicit RecordWriter(const Write& write) : writer_(write) {}

  void add(const std::string& name, const void* data, size_t size) {
    writer_.writeRecord(name, data, size);
    checksums_[name] = checksum_of({static_cast<const char*>(data), size});
  }
  void add(const std::string& name, std::string_view text) {
    add(name, text.data(), text.size());
  }

  const Json& checksums() const {
    return checksums_;
  }
  void finish() {
    writer_.writeEndOfFile();
  }

 private:
  caffe2::serialize::PyTorchStreamWriter writer_;
  Json checksums_ = Json::object();
};

void write_records(
    RecordWriter& writer,
    const Archive& archive,
    const std::vector<at::Tensor>& sample) {
  Json weights = Json::object();
  for (size_t i = 0; i < archive.weights.size(); ++i) {
    const Weight& weight = archive.weights[i];
    TORCH_INTERNAL_ASSERT(!weights.contains(weight.name));
    const std::string file = fmt::format("weight_{}", i);
    weights[weight.name] = {
        {"path_name", file},
        {"is_param", weight.is_parameter},
        {"use_pickle", false},
        {"tensor_meta", to_json(weight.tensor, weight.is_parameter)}};
    const at::Tensor source = weight.make ? weight.make() : weight.tensor;
    const at::Tensor tensor = source.detach().resolve_neg().contiguous();
    writer.add(
        "data/weights/" + file, tensor.const_data_ptr(), tensor.nbytes());
  }
  writer.add(kWeights, Json{{"config", std::move(weights)}}.dump());
  writer.add(kConstants, Json{{"config", Json::object()}}.dump());
  writer.add(kModel, to_json(archive.graph, archive.weights).dump());
  writer.add(kSample, sample_inputs_file(sample));
  for (const FixedRecord& record : kFixedRecords) {
    writer.add(record.name, record.text);
  }
  const Json values = {
      {"version", kValuesVersion},
      {"inputs", converted(archive.signature.inputs, value_json)},
      {"outputs", converted(archive.signature.outputs, value_json)},
      {"checksums", writer.checksums()}};
  const std::string text = values.dump();
  writer.add(kValues, text);
  writer.add(kValuesChecksum, checksum_of(text));
  writer.finish();
}

// Lets LibTorch's reader of zip files read mapped memory.
class MemoryAdapter : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MemoryAdapter(std::shared_ptr<MappedFile> file)
      : file_(std::move(file)) {}

  size_t size() const override {
    return file_->size();
  }
  size_t read(uint64_t position, void* buffer, size_t n, const char* /*what*/)
      const override {
    if (position >= file_->size()) {
      return 0;
    }
    n = std::min<size_t>(n, file_->size() - position);
    std::memcpy(buffer, file_->data() + position, n);
    return n;
  }

 private:
  std::shared_ptr<MappedFile> file_;
};

// Finds and checks the records of a file.
class RecordReader {
 public:
  RecordReader(std::shared_ptr<MappedFile> file, std::string where)
      : where_(std::move(where)), file_(std::move(file)) {
    try {
      zip_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(
          std::make_shared<MemoryAdapter>(file_));
    } catch (const std::exception& error) {
      refuse(fmt::format("a zip file ({})", reason_of(error)));
    }
    TESSERA_CHECK_VALUE(
        !has("constants.pkl"),
        "{} the file is TorchScript, which only torch::jit::load runs. Export the model with export_pt2(), or its dense part with export_dense_pt2().",
        where_);
    if (!has(kValues) || !has(kValuesChecksum)) {
      refuse(fmt::format(
          "the record '{}', which export_pt2() writes. Read other files with torch.export.load",
          kValues));
    }
    const std::string_view values = bytes(kValues);
    check_checksum(kValues, values, bytes(kValuesChecksum));
    values_ = parse_json(values, where_);
  }

  const Json& values() const {
    return values_;
  }
  const std::string& where() const {
    return where_;
  }

  // The bytes of a record, without a check of its checksum.
  std::string_view bytes(const std::string& name) {
    if (!has(name)) {
      refuse(fmt::format("a record '{}'", shorten(name)));
    }
    size_t offset = 0;
    size_t size = 0;
    try {
      offset = zip_->getRecordOffset(name);
      size = zip_->getRecordSize(name);
    } catch (const std::exception& error) {
      refuse(fmt::format(
          "a readable record '{}' ({})", shorten(name), reason_of(error)));
    }
    if (offset > file_->size() || size > file_->size() - offset) {
      refuse(fmt::format(
          "a record '{}' of {} bytes inside the file", shorten(name), size));
    }
    return file_->text().substr(offset, size);
  }

  // The bytes of a record, whose checksum must be right.
  std::string_view checked_bytes(const std::string& name) {
    const std::string_view data = bytes(name);
    check_checksum(
        name, data, values_.at("checksums").at(name).get<std::string>());
    return data;
  }

  at::Tensor tensor(const std::string& name, const StoredType& type) {
    const std::string_view data = checked_bytes(name);
    const auto size = num_bytes(type.sizes, type.dtype);
    if (type.sizes.size() > kMaxRank || !size || *size != data.size()) {
      refuse(fmt::format(
          "a record '{}' that has the size of its tensor", shorten(name)));
    }
    return tensor_in(
        file_,
        {.dtype = type.dtype,
         .shape = type.sizes,
         .offset = static_cast<size_t>(data.data() - file_->data())},
        where_);
  }

  [[noreturn]] void refuse(const std::string& expected) const {
    TESSERA_CHECK_VALUE(
        false,
        "{} expected {}. The file is damaged, or another program wrote it.",
        where_,
        expected);
    std::terminate();
  }

  /// Checks the records whose content differs in a file of another version.
  void check_versions() {
    const int64_t version = integer_from_json(values_.at("version"), where_);
    TESSERA_CHECK_VALUE(
        version == kValuesVersion,
        "{} '{}' must have the version {}, but has {}. Read the file with the release of Tessera that wrote it.",
        where_,
        kValues,
        kValuesVersion,
        version);
    for (const FixedRecord& record : kFixedRecords) {
      const std::string_view text = bytes(record.name);
      TESSERA_CHECK_VALUE(
          text == record.text,
          "{} the record '{}' must be '{}', but is '{}'. Export the model again with export_pt2(), on a machine with this byte order.",
          where_,
          record.name,
          record.text,
          shorten(text));
    }
  }

 private:
  bool has(const std::string& name) {
    try {
      return zip_->hasRecord(name);
    } catch (const std::exception&) {
      return false;
    }
  }

  void check_checksum(
      const std::string& name,
      std::string_view data,
      std::string_view expected) const {
    TESSERA_CHECK_VALUE(
        checksum_of(data) == expected,
        "{} the record '{}' does not agree with its checksum. The file is damaged. Use another copy.",
        where_,
        shorten(name));
  }

  std::string where_;
  std::shared_ptr<MappedFile> file_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> zip_;
  Json values_;
};

// Reads the values of the signature under `key`, which must have these names.
std::vector<Pt2Value> read_values(
    const char* key,
    const std::vector<std::string>& names,
    const Graph& graph,
    const RecordReader& reader) {
  const Json& list = reader.values().at(key);
  if (list.size() != names.size()) {
    reader.refuse(fmt::format("a description of {} values", names.size()));
  }
  std::vector<Pt2Value> values;
  for (size_t i = 0; i < names.size(); ++i) {
    const Json& json = list.at(i);
    const auto name = json.at("name").get<std::string>();
    if (name != names[i]) {
      reader.refuse(fmt::format(
          "a value '{}', but got '{}'", shorten(names[i]), shorten(name)));
    }
    values.push_back(
        {.name = name,
         .path = json.at("path").get<std::string>(),
         .part = json.at("part").get<std::string>()});
    const bool has_type = graph.tensors.contains(name);
    if (has_type) {
      add_type(values[i], graph);
    }
    const Json expected = value_json(values[i]);
    if (!has_type || json.at("dtype") != expected["dtype"] ||
        json.at("shape") != expected["shape"]) {
      reader.refuse(fmt::format(
          "a description of '{}' with the type and the shape that the graph has",
          shorten(name)));
    }
  }
  return values;
}

}  // namespace

void add_type(Pt2Value& value, const Graph& graph) {
  const TensorMeta& meta = graph.tensors.at(value.name);
  value.dtype = meta.dtype;
  value.shape = converted(meta.sizes, [](const Polynomial& size) {
    return size.is_constant() ? std::make_optional(size.constant())
                              : std::nullopt;
  });
}

void write_archive(
    AtomicFile& file,
    const Archive& archive,
    const std::vector<at::Tensor>& sample) {
  try {
    file.write_by([&](auto write) {
      RecordWriter writer(write);
      write_records(writer, archive, sample);
    });
  } catch (const Json::type_error&) {
    TESSERA_CHECK_VALUE(
        false,
        "[export_pt2] names and paths of features must be UTF-8. Encode them as UTF-8.");
  }
}

Archive read_archive(
    std::shared_ptr<MappedFile> file,
    const std::string& place) {
  RecordReader reader(std::move(file), place);
  try {
    reader.check_versions();
    NamedGraph named =
        graph_from_json(parse_json(reader.checked_bytes(kModel), place), place);
    Archive archive{.graph = std::move(named.graph)};
    const Json config =
        parse_json(reader.checked_bytes(kWeights), place).at("config");
    for (const auto& [record, checksum] :
         reader.values().at("checksums").items()) {
      reader.checked_bytes(record);
    }
    for (const std::string& name : named.weights) {
      const Json& entry = config.at(name);
      const StoredType type =
          stored_type_from_json(entry.at("tensor_meta"), place);
      archive.weights.push_back(
          {.name = name,
           .tensor = reader.tensor(
               "data/weights/" + entry.at("path_name").get<std::string>(),
               type),
           .is_parameter = entry.at("is_param").get<bool>()});
    }
    const Graph& graph = archive.graph;
    archive.signature = {
        .inputs = read_values("inputs", graph.inputs, graph, reader),
        .outputs = read_values("outputs", graph.outputs, graph, reader)};
    return archive;
  } catch (const Json::exception& error) {
    reader.refuse(fmt::format(
        "JSON with the fields that export_pt2() writes, but got an error: {}",
        error.what()));
  }
}

}  // namespace tessera::pt2
