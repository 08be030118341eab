// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/size_solver.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace tessera::exporting {

using pt2::Polynomial;

namespace {

// The number of points at which all symbols change, with Changes::kSeparate.
constexpr int kJointPoints = 8;
// The same with Changes::kJoint. A polynomial then has at most four coefficients, so
// the other points confirm it.
constexpr int kOnlyJointPoints = 12;

double product_at(
    const Polynomial::Product& product,
    const std::vector<int64_t>& point) {
  double value = 1.0;
  for (const size_t symbol : product) {
    value *= static_cast<double>(point[symbol]);
  }
  return value;
}

// Solves the least squares problem of `rows` by Gaussian elimination of its normal
// equations. Empty if they are singular.
std::vector<double> least_squares(
    const std::vector<std::vector<double>>& rows,
    const std::vector<double>& values) {
  const size_t count = rows[0].size();
  // Columns are scaled, because products of symbols differ by orders of magnitude.
  std::vector<double> scale(count, 0.0);
  for (const auto& row : rows) {
    for (size_t j = 0; j < count; ++j) {
      scale[j] = std::max(scale[j], std::abs(row[j]));
    }
  }
  std::vector<std::vector<double>> equations(
      count, std::vector<double>(count + 1, 0.0));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < count; ++j) {
      for (size_t k = 0; k < count; ++k) {
        equations[j][k] += rows[i][j] / scale[j] * (rows[i][k] / scale[k]);
      }
      equations[j][count] += rows[i][j] / scale[j] * values[i];
    }
  }
  for (size_t j = 0; j < count; ++j) {
    const auto pivot = std::max_element(
        equations.begin() + static_cast<std::ptrdiff_t>(j),
        equations.end(),
        [j](const auto& a, const auto& b) {
          return std::abs(a[j]) < std::abs(b[j]);
        });
    if (std::abs((*pivot)[j]) < 1e-12) {
      return {};
    }
    std::swap(equations[j], *pivot);
    for (size_t i = 0; i < count; ++i) {
      if (i == j) {
        continue;
      }
      const double factor = equations[i][j] / equations[j][j];
      for (size_t k = j; k <= count; ++k) {
        equations[i][k] -= factor * equations[j][k];
      }
    }
  }
  std::vector<double> result(count);
  for (size_t j = 0; j < count; ++j) {
    result[j] = equations[j][count] / equations[j][j] / scale[j];
  }
  return result;
}

}  // namespace

SizeSolver::SizeSolver(
    std::vector<int64_t> base,
    std::vector<bool> is_fixed,
    Changes changes)
    : is_fixed_(std::move(is_fixed)), changes_(changes) {
  points_.push_back(std::move(base));
  changed_.emplace_back();
  const std::vector<int64_t> first = points_[0];
  const auto add = [&](const auto& size_of) {
    std::vector<int64_t> point = first;
    for (size_t i = 0; i < point.size(); ++i) {
      if (!is_fixed_[i]) {
        point[i] = size_of(i);
      }
    }
    points_.push_back(std::move(point));
  };
  const bool is_separate = changes_ == Changes::kSeparate;
  for (size_t changed = 0; changed < first.size(); ++changed) {
    for (const int64_t step : {2, 5}) {
      if (is_separate && !is_fixed_[changed]) {
        add([&](size_t i) { return first[i] + (i == changed ? step : 0); });
        changed_.emplace_back(changed);
      }
    }
  }
  std::mt19937 random(
      1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): always the same
  const int joint = is_separate ? kJointPoints : kOnlyJointPoints;
  for (int i = 0; i < joint; ++i) {
    add([&](size_t symbol) {
      return first[symbol] + 1 + static_cast<int64_t>(random() % 12);
    });
    changed_.emplace_back();
  }
}

std::optional<Polynomial> SizeSolver::solve(
    const std::vector<int64_t>& values) {
  const auto known = known_.find(values);
  if (known != known_.end()) {
    return known->second;
  }
  const auto found = known_.emplace(values, find(values)).first;
  has_failed_ = has_failed_ || !found->second;
  return found->second;
}

std::optional<Polynomial> SizeSolver::find(
    const std::vector<int64_t>& values) const {
  return changes_ == Changes::kSeparate ? find_by_separate_changes(values)
                                        : find_by_joint_changes(values);
}

std::optional<Polynomial> SizeSolver::find_by_joint_changes(
    const std::vector<int64_t>& values) const {
  if (auto found = fit({{}}, values)) {
    return found;
  }
  const size_t count = points_[0].size();
  for (size_t i = 0; i < count; ++i) {
    if (auto found = fit({{}, {i}}, values)) {
      return found;
    }
  }
  if (auto found = fit({{}, {0}, {0, 0}}, values)) {  // 0 is the batch size
    return found;
  }
  for (size_t i = 1; i < count; ++i) {
    if (auto found = fit({{}, {0}, {i}, {0, i}}, values)) {
      return found;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 1; j < i; ++j) {
      if (auto found = fit({{}, {j}, {i}}, values)) {
        return found;
      }
    }
  }
  return std::nullopt;
}

std::optional<Polynomial> SizeSolver::find_by_separate_changes(
    const std::vector<int64_t>& values) const {
  // The symbols that change the value when they change alone.
  std::vector<size_t> symbols;
  for (size_t k = 0; k < points_.size(); ++k) {
    if (changed_[k] && values[k] != values[0] &&
        (symbols.empty() || symbols.back() != *changed_[k])) {
      symbols.push_back(*changed_[k]);
    }
  }
  std::vector<Polynomial::Product> products{{}};
  std::vector<Polynomial::Product> last = products;
  for (int degree = 0; degree <= 3; ++degree) {
    if (products.size() > points_.size()) {
      return std::nullopt;
    }
    if (auto found = fit(products, values)) {
      return found;
    }
    std::vector<Polynomial::Product> next;
    for (const Polynomial::Product& product : last) {
      for (const size_t symbol : symbols) {
        if (product.empty() || product.back() <= symbol) {
          next.push_back(product);
          next.back().push_back(symbol);
        }
      }
    }
    products.insert(products.end(), next.begin(), next.end());
    last = std::move(next);
  }
  return std::nullopt;
}

std::optional<Polynomial> SizeSolver::fit(
    const std::vector<Polynomial::Product>& products,
    const std::vector<int64_t>& values) const {
  std::vector<std::vector<double>> rows;
  std::vector<double> right;
  for (size_t k = 0; k < points_.size(); ++k) {
    std::vector<double> row;
    for (const Polynomial::Product& product : products) {
      row.push_back(product_at(product, points_[k]));
    }
    rows.push_back(std::move(row));
    right.push_back(static_cast<double>(values[k]));
  }
  Polynomial polynomial;
  const std::vector<double> factors = least_squares(rows, right);
  for (size_t i = 0; i < factors.size(); ++i) {
    polynomial.add(products[i], std::llround(factors[i]));
  }
  for (size_t k = 0; k < points_.size(); ++k) {
    if (factors.empty() || polynomial.at(points_[k]) != values[k]) {
      return std::nullopt;
    }
  }
  return polynomial;
}

}  // namespace tessera::exporting
