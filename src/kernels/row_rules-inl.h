// SPDX-License-Identifier: Apache-2.0
// The update of a row by each rule. There is no include guard, because this file is
// included once per instruction set, inside the target namespace of update_kernels.cpp.
//
// Step() updates one vector of columns, stores the new slots of these columns, and returns
// the new weight. Begin() runs first and gets the whole row, for rules that need a norm. It
// returns the learning rate of the row for each Step(). A slot that a rule may lack is used
// only after SlotColumns::Has(), or if the rule says that it is there.

template <class Row>
inline constexpr bool kHasOneSlotPerRow =
    std::is_same_v<typename Row::Rule, RowWiseAdagradRule>;

// The slots of one row.
struct RowSlots {
  // Each [dim]. nullptr if there is no such slot, or if it has one number per row.
  float* first[kMaxSlots] = {};
};

template <class Row>
HWY_INLINE RowSlots SlotsOf(const UpdateArgs& args, int64_t row) {
  RowSlots slots;
  const int64_t offset =
      args.narrow_slots == nullptr ? row * args.table.dim : 0;
  for (size_t i = 0; i < Row::kSlots && !kHasOneSlotPerRow<Row>; ++i) {
    if (args.slots[i] != nullptr) {
      slots.first[i] = args.slots[i] + offset;
    }
  }
  return slots;
}

// The slots of one row, from one column on.
struct SlotColumns {
  const RowSlots& row;
  int64_t column;

  HWY_INLINE bool Has(size_t slot) const {
    return row.first[slot] != nullptr;
  }

  // Has(slot) must be true.
  HWY_INLINE float* operator[](size_t slot) const {
    return row.first[slot] + column;
  }
};

// What Step() gets, for one vector of columns.
template <class V>
struct RowColumns {
  V weight;
  V gradient;
  SlotColumns slots;
  float rate;  // from Begin()
};

// The base of rules whose Step() needs only its own columns.
template <class RuleType>
struct ColumnRow {
  using Rule = RuleType;

  static HWY_INLINE float Begin(
      const UpdateArgs&,
      const Rule&,
      int64_t,
      const float*,
      const float*) {
    return 0.0F;
  }
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Blend(D d, const MovingAverage& average, V old, V value) {
  return hn::MulAdd(
      hn::Set(d, average.decay),
      old,
      hn::Mul(hn::Set(d, average.one_minus_decay), value));
}

// mean + (1 - rho) * deviation, where the deviation is value - mean. A step that is smaller
// than the spacing of float32 numbers becomes one such spacing. Otherwise, the moving mean
// of equal values would stop 0.5 / (1 - rho) spacings away from the value.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V MoveMean(D d, const MovingAverage& rho, V mean, V deviation) {
  const V step = hn::Mul(hn::Set(d, rho.one_minus_decay), deviation);
  // More than half of the spacing, and less than 1.5 of it.
  const V least = hn::Mul(
      hn::Set(d, rho.one_minus_decay > 0.0F ? 0x1.03p-24F : 0.0F),
      hn::Abs(mean));
  const V distance = hn::Abs(deviation);
  const V limited = hn::IfThenElse(hn::Lt(distance, least), distance, least);
  // A comparison with NaN is false, so a NaN stays.
  return hn::Add(
      mean,
      hn::IfThenElse(
          hn::Lt(hn::Abs(step), least),
          hn::CopySign(limited, deviation),
          step));
}

// x^power for x >= 0, or x > 0 if the power is negative. 0^0 is 1. Only the common powers
// use vector instructions.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Power(D d, V x, float power) {
  if (power == 0.5F) {
    return hn::Sqrt(x);
  }
  if (power == -0.5F) {
    return hn::Div(hn::Set(d, 1.0F), hn::Sqrt(x));
  }
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::StoreU(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    lanes[i] = ::powf(lanes[i], power);
  }
  return hn::LoadU(d, lanes);
}

struct SgdRow : ColumnRow<SgdRule> {
  static constexpr size_t kSlots = 0;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const V rate = hn::Set(d, rule.learning_rate);
    return hn::NegMulAdd(rate, row.gradient, row.weight);
  }
};

struct AdagradRow : ColumnRow<AdagradRule> {
  static constexpr size_t kSlots = 1;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V accumulator =
        hn::MulAdd(gradient, gradient, hn::LoadU(d, slots[0]));
    hn::StoreU(accumulator, d, slots[0]);
    const V denominator = hn::Add(
        hn::Sqrt(hn::Add(accumulator, hn::Set(d, rule.epsilon_inside))),
        hn::Set(d, rule.epsilon_outside));
    const V scaled = hn::Mul(hn::Set(d, rule.learning_rate), gradient);
    return hn::Sub(weight, hn::Div(scaled, denominator));
  }
};

struct AdagradMomentumRow : ColumnRow<AdagradMomentumRule> {
  static constexpr size_t kSlots = 2;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V old = hn::LoadU(d, slots[0]);
    const V square = hn::Mul(gradient, gradient);
    const V accumulator = rule.beta_2.decay == 1.0F
        ? hn::Add(old, square)
        : Blend(d, rule.beta_2, old, square);
    hn::StoreU(accumulator, d, slots[0]);
    const V scaled = hn::Mul(
        gradient,
        Power(
            d,
            hn::Add(accumulator, hn::Set(d, rule.epsilon)),
            -1.0F / rule.exponent));
    const V mu = hn::Set(d, rule.momentum);
    const V momentum = hn::MulAdd(mu, hn::LoadU(d, slots[1]), scaled);
    hn::StoreU(momentum, d, slots[1]);
    const V step =
        rule.use_nesterov ? hn::MulAdd(mu, momentum, scaled) : momentum;
    return hn::NegMulAdd(hn::Set(d, rule.learning_rate), step, weight);
  }
};

struct FtrlRow : ColumnRow<FtrlRule> {
  static constexpr size_t kSlots = 2;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    // The formula of the weight needs a learning rate > 0.
    if (rule.learning_rate == 0.0F) {
      return weight;
    }
    // If the linear slot is multiplied by the learning rate, gradient, l1 and l2 are,
    // too. Otherwise, the terms with the accumulator and beta are divided by it.
    const bool is_multiplied = rule.multiply_linear_by_learning_rate;
    const float rate = is_multiplied ? rule.learning_rate : 1.0F;
    const V inverse =
        hn::Set(d, is_multiplied ? 1.0F : 1.0F / rule.learning_rate);
    const V l1 = hn::Set(d, rate * rule.l1);
    const V two_l2 = hn::Set(d, rate * 2.0F * rule.l2);
    const V beta = hn::Set(d, rule.beta);
    const V zero = hn::Zero(d);

    const V old = hn::LoadU(d, slots[0]);
    const V accumulator = hn::MulAdd(gradient, gradient, old);
    hn::StoreU(accumulator, d, slots[0]);
    const V old_power = Power(d, old, -rule.learning_rate_power);
    const V power = Power(d, accumulator, -rule.learning_rate_power);

    V linear = hn::LoadU(d, slots[1]);
    if (rule.keep_initial_weight) {
      // If the linear slot is 0 and the weight is not, the row was never updated.
      const V slope = hn::MulAdd(hn::Add(old_power, beta), inverse, two_l2);
      const V size = hn::MulAdd(hn::Abs(weight), slope, l1);
      const V first = hn::Neg(hn::CopySign(size, weight));
      const auto is_first = hn::And(hn::Eq(linear, zero), hn::Ne(weight, zero));
      linear = hn::IfThenElse(is_first, first, linear);
    }
    const V shrunk =
        hn::MulAdd(hn::Set(d, 2.0F * rule.l2_shrinkage), weight, gradient);
    const V sigma = hn::Mul(hn::Sub(power, old_power), inverse);
    linear = hn::MulAdd(hn::Set(d, rate), shrunk, linear);
    linear = hn::NegMulAdd(sigma, weight, linear);
    hn::StoreU(linear, d, slots[1]);
    const V clipped = hn::Min(l1, hn::Max(hn::Neg(l1), linear));
    const V slope = hn::MulAdd(hn::Add(power, beta), inverse, two_l2);
    return hn::Div(hn::Sub(clipped, linear), slope);
  }
};

struct AdamRow : ColumnRow<AdamRule> {
  static constexpr size_t kSlots = 3;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V momentum = Blend(d, rule.beta_1, hn::LoadU(d, slots[0]), gradient);
    V velocity = Blend(
        d, rule.beta_2, hn::LoadU(d, slots[1]), hn::Mul(gradient, gradient));
    hn::StoreU(momentum, d, slots[0]);
    hn::StoreU(velocity, d, slots[1]);
    if (rule.use_amsgrad) {
      velocity = hn::Max(hn::LoadU(d, slots[2]), velocity);
      hn::StoreU(velocity, d, slots[2]);
    }
    const V denominator = hn::Add(
        hn::Sqrt(hn::Add(velocity, hn::Set(d, rule.epsilon_inside))),
        hn::Set(d, rule.epsilon_outside));
    const V scaled = hn::Mul(hn::Set(d, rule.learning_rate), momentum);
    return hn::Sub(weight, hn::Div(scaled, denominator));
  }
};

struct MomentumRow : ColumnRow<MomentumRule> {
  static constexpr size_t kSlots = 1;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V mu = hn::Set(d, rule.momentum);
    const V rate = hn::Set(d, rule.learning_rate);
    const V old = hn::LoadU(d, slots[0]);
    if (rule.is_scaled) {
      const V step = hn::Mul(rate, gradient);
      const V momentum = hn::MulSub(mu, old, step);
      hn::StoreU(momentum, d, slots[0]);
      return hn::Add(
          weight,
          rule.use_nesterov ? hn::MulSub(mu, momentum, step) : momentum);
    }
    const V momentum = hn::MulAdd(mu, old, gradient);
    hn::StoreU(momentum, d, slots[0]);
    const V step =
        rule.use_nesterov ? hn::MulAdd(mu, momentum, gradient) : momentum;
    return hn::NegMulAdd(rate, step, weight);
  }
};

struct RmspropRow : ColumnRow<RmspropRule> {
  static constexpr size_t kSlots = 3;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    V square = hn::Mul(gradient, gradient);
    if (rule.is_centered) {
      // The variance is the moving mean of rho * (gradient - mean)^2. It equals the
      // difference of the mean square and the squared mean, but that difference could
      // be negative or consist of rounding errors.
      const V mean = hn::LoadU(d, slots[2]);
      const V deviation = hn::Sub(gradient, mean);
      hn::StoreU(MoveMean(d, rule.rho, mean, deviation), d, slots[2]);
      square =
          hn::Mul(hn::Set(d, rule.rho.decay), hn::Mul(deviation, deviation));
    }
    square = Blend(d, rule.rho, hn::LoadU(d, slots[0]), square);
    hn::StoreU(square, d, slots[0]);
    const V denominator = hn::Add(
        hn::Sqrt(hn::Add(square, hn::Set(d, rule.epsilon_inside))),
        hn::Set(d, rule.epsilon_outside));
    const V scaled = hn::Mul(hn::Set(d, rule.learning_rate), gradient);
    V step = hn::Div(scaled, denominator);
    if (slots.Has(1)) {
      step =
          hn::MulAdd(hn::Set(d, rule.momentum), hn::LoadU(d, slots[1]), step);
      hn::StoreU(step, d, slots[1]);
    }
    return hn::Sub(weight, step);
  }
};

struct AdadeltaRow : ColumnRow<AdadeltaRule> {
  static constexpr size_t kSlots = 2;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V epsilon = hn::Set(d, rule.epsilon);
    const V accumulator =
        Blend(d, rule.rho, hn::LoadU(d, slots[0]), hn::Mul(gradient, gradient));
    hn::StoreU(accumulator, d, slots[0]);
    const V updates = hn::LoadU(d, slots[1]);
    const V ratio = hn::Div(
        hn::Sqrt(hn::Add(updates, epsilon)),
        hn::Sqrt(hn::Add(accumulator, epsilon)));
    const V delta = hn::Mul(ratio, gradient);
    hn::StoreU(Blend(d, rule.rho, updates, hn::Mul(delta, delta)), d, slots[1]);
    return hn::NegMulAdd(hn::Set(d, rule.learning_rate), delta, weight);
  }
};

struct ProximalAdagradRow : ColumnRow<ProximalAdagradRule> {
  static constexpr size_t kSlots = 1;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V accumulator =
        hn::MulAdd(gradient, gradient, hn::LoadU(d, slots[0]));
    hn::StoreU(accumulator, d, slots[0]);
    const V rate =
        hn::Div(hn::Set(d, rule.learning_rate), hn::Sqrt(accumulator));
    const V moved = hn::NegMulAdd(rate, gradient, weight);
    const V size = hn::Max(
        hn::Zero(d), hn::NegMulAdd(rate, hn::Set(d, rule.l1), hn::Abs(moved)));
    const V shrink = hn::MulAdd(hn::Set(d, rule.l2), rate, hn::Set(d, 1.0F));
    return hn::CopySign(hn::Div(size, shrink), moved);
  }
};

struct LionRow : ColumnRow<LionRule> {
  static constexpr size_t kSlots = 1;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V old = hn::LoadU(d, slots[0]);
    const V direction = Blend(d, rule.beta_1, old, gradient);
    hn::StoreU(Blend(d, rule.beta_2, old, gradient), d, slots[0]);
    const V zero = hn::Zero(d);
    // The sign of 0 is 0, and the sign of a NaN is a NaN.
    const V sign = hn::IfThenElse(
        hn::Or(hn::Lt(direction, zero), hn::Gt(direction, zero)),
        hn::CopySign(hn::Set(d, 1.0F), direction),
        direction);
    return hn::NegMulAdd(hn::Set(d, rule.learning_rate), sign, weight);
  }
};

struct AdamaxRow : ColumnRow<AdamaxRule> {
  static constexpr size_t kSlots = 2;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V momentum = Blend(d, rule.beta_1, hn::LoadU(d, slots[0]), gradient);
    const V decayed = hn::Mul(hn::Set(d, rule.beta_2), hn::LoadU(d, slots[1]));
    const V size = hn::Abs(gradient);
    // Max() is not used here because its result for NaN differs between targets.
    const V norm = hn::IfThenElse(hn::Lt(size, decayed), decayed, size);
    hn::StoreU(momentum, d, slots[0]);
    hn::StoreU(norm, d, slots[1]);
    const V rate = hn::Set(d, rule.learning_rate * rule.correction_1);
    const V denominator = hn::Add(norm, hn::Set(d, rule.epsilon));
    return hn::Sub(weight, hn::Div(hn::Mul(rate, momentum), denominator));
  }
};

struct NadamRow : ColumnRow<NadamRule> {
  static constexpr size_t kSlots = 2;

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule& rule, const RowColumns<V>& row) {
    const auto& [weight, gradient, slots, row_rate] = row;
    const V momentum = Blend(d, rule.beta_1, hn::LoadU(d, slots[0]), gradient);
    const V velocity = Blend(
        d, rule.beta_2, hn::LoadU(d, slots[1]), hn::Mul(gradient, gradient));
    hn::StoreU(momentum, d, slots[0]);
    hn::StoreU(velocity, d, slots[1]);
    const V direction = hn::MulAdd(
        hn::Set(d, rule.momentum_factor),
        momentum,
        hn::Mul(hn::Set(d, rule.gradient_factor), gradient));
    const V root = hn::Sqrt(hn::Mul(velocity, hn::Set(d, rule.correction_2)));
    const V denominator = hn::Add(root, hn::Set(d, rule.epsilon));
    const V scaled = hn::Mul(hn::Set(d, rule.learning_rate), direction);
    return hn::Sub(weight, hn::Div(scaled, denominator));
  }
};

template <class F>
struct AddUp {
  const F& f;
  float& total;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    total += hn::GetLane(hn::SumOfLanes(d, f(d, column)));
  }
};

// Sums f(columns) over a row. The order of the sum depends on the instruction set, but
// not on the number of threads.
template <class F>
HWY_INLINE float SumOverRow(int64_t dim, const F& f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t column = 0;
  for (; column + lanes <= dim; column += lanes) {
    sum = hn::Add(sum, f(d, column));
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  ForLastColumns(dim, column, AddUp<F>{f, total});
  return total;
}

struct SquaresOf {
  const float* values;

  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, int64_t column) const {
    const auto value = hn::LoadU(d, values + column);
    return hn::Mul(value, value);
  }
};

struct RowWiseAdagradRow {
  using Rule = RowWiseAdagradRule;
  static constexpr size_t kSlots = 1;

  static HWY_INLINE float Begin(
      const UpdateArgs& args,
      const Rule& rule,
      int64_t row,
      const float* /*weights*/,
      const float* gradient) {
    const float squares = SumOverRow(args.table.dim, SquaresOf{gradient});
    float& accumulator = args.slots[0][row];
    accumulator += squares / static_cast<float>(args.table.dim);
    return rule.learning_rate / (::sqrtf(accumulator) + rule.epsilon);
  }

  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule&, const RowColumns<V>& row) {
    return hn::NegMulAdd(hn::Set(d, row.rate), row.gradient, row.weight);
  }
};

struct LambRow {
  using Rule = LambRule;
  static constexpr size_t kSlots = 2;

  // Writes the direction before the trust ratio to `out`.
  struct Direction {
    Rule rule;
    RowSlots slots;
    const float* weights;
    const float* gradient;
    float* out;

    template <class D>
    HWY_INLINE hn::Vec<D> operator()(D d, int64_t column) const {
      using V = hn::Vec<D>;
      float* momenta = slots.first[0] + column;
      float* velocities = slots.first[1] + column;
      const V g = hn::LoadU(d, gradient + column);
      const V momentum = Blend(d, rule.beta_1, hn::LoadU(d, momenta), g);
      const V velocity =
          Blend(d, rule.beta_2, hn::LoadU(d, velocities), hn::Mul(g, g));
      hn::StoreU(momentum, d, momenta);
      hn::StoreU(velocity, d, velocities);
      const V root = hn::Sqrt(hn::Mul(velocity, hn::Set(d, rule.correction_2)));
      const V ratio = hn::Div(
          hn::Mul(momentum, hn::Set(d, rule.correction_1)),
          hn::Add(root, hn::Set(d, rule.epsilon)));
      const V direction = hn::MulAdd(
          hn::Set(d, rule.weight_decay), hn::LoadU(d, weights + column), ratio);
      hn::StoreU(direction, d, out + column);
      return hn::Mul(direction, direction);
    }
  };

  static HWY_INLINE float Begin(
      const UpdateArgs& args,
      const Rule& rule,
      int64_t row,
      const float* weights,
      const float* gradient) {
    const int64_t dim = args.table.dim;
    const float direction = ::sqrtf(SumOverRow(
        dim,
        Direction{
            rule,
            SlotsOf<LambRow>(args, row),
            weights,
            gradient,
            args.direction}));
    const float weight = ::sqrtf(SumOverRow(dim, SquaresOf{weights}));
    const float trust_ratio =
        weight > 0.0F && direction > 0.0F ? weight / direction : 1.0F;
    return rule.learning_rate * trust_ratio;
  }

  // GradientOf() passes the direction instead of the gradient.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Step(D d, const Rule&, const RowColumns<V>& row) {
    return hn::NegMulAdd(hn::Set(d, row.rate), row.gradient, row.weight);
  }
};

template <class... Rows>
struct RowList {};

// In the order of RowRule.
using AllRows = RowList<
    SgdRow,
    AdagradRow,
    AdagradMomentumRow,
    FtrlRow,
    AdamRow,
    MomentumRow,
    RmspropRow,
    AdadeltaRow,
    ProximalAdagradRow,
    LionRow,
    RowWiseAdagradRow,
    LambRow,
    AdamaxRow,
    NadamRow>;

// The row that Step() gets as the gradient.
template <class Row>
HWY_INLINE const float* GradientOf(
    const UpdateArgs& args,
    const float* gradient) {
  return std::is_same_v<Row, LambRow> ? args.direction : gradient;
}
