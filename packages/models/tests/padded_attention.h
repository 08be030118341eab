// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/models/transformer_block.h>

namespace tessera::test {

/// The lengths of sequences with every case: empty, short, and several blocks of queries.
inline const std::vector<int64_t> kLengths{3, 0, 1, 70, 32, 33, 2, 0};

inline int64_t sum_of(const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (const int64_t length : lengths) {
    sum += length;
  }
  return sum;
}

inline at::Tensor splits_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> splits{0};
  for (const int64_t length : lengths) {
    splits.push_back(splits.back() + length);
  }
  return at::tensor(splits, at::kLong);
}

/// [batch, longest, ...] with zeros at the end of each sequence.
inline at::Tensor padded(
    const at::Tensor& packed,
    const std::vector<int64_t>& lengths) {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<at::Tensor> rows;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    std::vector<int64_t> shape = packed.sizes().vec();
    shape[0] = longest - length;
    rows.push_back(at::cat(
        {packed.narrow(0, begin, length), at::zeros(shape, packed.options())}));
    begin += length;
  }
  return at::stack(rows);
}

/// The inverse of padded().
inline at::Tensor packed(
    const at::Tensor& padded,
    const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    rows.push_back(
        padded.select(0, static_cast<int64_t>(i)).narrow(0, 0, lengths[i]));
  }
  return at::cat(rows);
}

/// CausalSelfAttention by LibTorch's attention on a padded batch, with the layer's
/// parameters. `prefix` is the path of the layer in the module.
inline at::Tensor attention_on_padded(
    const torch::nn::Module& module,
    const std::string& prefix,
    int64_t num_heads,
    const at::Tensor& x) {
  const auto parameters = module.named_parameters();
  const auto linear = [&](const at::Tensor& input, const std::string& name) {
    return at::linear(
        input,
        parameters[prefix + name + ".weight"],
        parameters[prefix + name + ".bias"]);
  };
  const int64_t batch = x.size(0);
  const int64_t length = x.size(1);
  const int64_t dim = x.size(2);
  const at::Tensor heads =
      linear(x, "in_projection")
          .view({batch, length, 3, num_heads, dim / num_heads})
          .permute({2, 0, 3, 1, 4});
  const at::Tensor attended = at::scaled_dot_product_attention(
      heads[0], heads[1], heads[2], {}, 0.0, /*is_causal=*/true);
  return linear(
      attended.transpose(1, 2).reshape({batch, length, dim}), "out_projection");
}

/// The first `count` frequencies of each column, for sequences after which zeros follow.
inline at::Tensor low_on_padded(
    const at::Tensor& x,  // [batch, longest, columns]
    int64_t length,
    int64_t count) {
  at::Tensor frequencies = at::fft_rfft(x, length, 1);
  const int64_t others = frequencies.size(1) - count;
  frequencies = at::cat(
      {frequencies.narrow(1, 0, count),
       at::zeros_like(frequencies.narrow(1, count, others))},
      1);
  return at::fft_irfft(frequencies, length, 1).narrow(1, 0, x.size(1));
}

/// The formula of TransformerBlock, by LibTorch's operators on a padded batch, with the
/// parameters of the block with this prefix.
inline at::Tensor block_on_padded(
    const torch::nn::Module& module,
    const std::string& prefix,
    const TransformerBlockOptions& options,
    const at::Tensor& x) {
  const auto parameters = module.named_parameters();
  const auto norm = [&](const at::Tensor& input, const std::string& name) {
    return at::layer_norm(
        input,
        {input.size(-1)},
        parameters[prefix + name + ".weight"],
        parameters[prefix + name + ".bias"]);
  };
  const auto attention = [&](const at::Tensor& input) {
    return attention_on_padded(
        module, prefix + "attention.", options.num_heads, input);
  };
  const auto linear = [&](const at::Tensor& input, const std::string& name) {
    return at::linear(
        input,
        parameters[prefix + name + ".weight"],
        parameters.contains(prefix + name + ".bias")
            ? parameters[prefix + name + ".bias"]
            : at::Tensor());
  };
  const bool gated = options.gated;
  const auto gate = [&](const at::Tensor& input, const std::string& name) {
    return gated ? at::sigmoid(linear(input, name)) : at::ones({1});
  };
  const auto feed_forward = [&](const at::Tensor& input) {
    if (gated) {
      const at::Tensor both = linear(input, "hidden");
      const int64_t half = both.size(-1) / 2;
      return linear(
          at::silu(both.narrow(-1, 0, half)) * both.narrow(-1, half, half),
          "output");
    }
    const at::Tensor hidden = linear(input, "feed_forward.linear_0");
    return linear(
        options.activation == Activation::kRelu       ? at::relu(hidden)
            : options.activation == Activation::kSilu ? at::silu(hidden)
                                                      : at::gelu(hidden),
        "feed_forward.linear_1");
  };
  if (options.norm == NormOrder::kPre) {
    const at::Tensor sum =
        x + gate(x, "attention_gate") * attention(norm(x, "attention_norm"));
    return sum +
        gate(sum, "feed_forward_gate") *
        feed_forward(norm(sum, "feed_forward_norm"));
  }
  at::Tensor sum =
      norm(x + gate(x, "attention_gate") * attention(x), "attention_norm");
  if (const auto& filter = options.filter) {
    const at::Tensor low =
        low_on_padded(x, filter->length, filter->num_frequencies);
    const at::Tensor scale = parameters[prefix + "filter_scale"];
    sum = (1.0 - filter->share) * sum +
        filter->share *
            norm(x + low + scale * scale * (x - low), "filter_norm");
  }
  return norm(
      sum + gate(sum, "feed_forward_gate") * feed_forward(sum),
      "feed_forward_norm");
}

}  // namespace tessera::test
