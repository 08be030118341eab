// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/learning_curves.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "packages/training/src/display_text.h"
#include "src/common/check.h"
#include "src/common/names.h"

namespace tessera::training {

namespace {

constexpr const char* kTrainingColor = "#2563eb";
constexpr const char* kValidationColor = "#ea580c";
constexpr const char* kTextColor = "#1f2937";
constexpr const char* kGridColor = "#e5e7eb";
constexpr const char* kAxisColor = "#9ca3af";
constexpr const char* kBestColor = "#059669";

// The margins of a panel, in pixels.
constexpr double kLeftMargin = 64.0;
constexpr double kRightMargin = 18.0;
constexpr double kTopMargin = 40.0;
constexpr double kBottomMargin = 44.0;
constexpr double kTitleHeight = 40.0;  // above all panels

constexpr double kLegendWidth = 210.0;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

struct Point {
  double x;
  double y;
};

struct Curve {
  std::string name;
  const char* color;
  std::vector<Point> points;
};

struct Axis {
  double low = 0.0;
  double high = 1.0;
  double step = 1.0;
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Returns 1, 2 or 5 times a power of ten, so that `span` has about `count` steps.
double tick_step(double span, double count) {
  const double exact_step = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(exact_step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (exact_step <= factor * power * (1.0 + 1e-9)) {
      return factor * power;
    }
  }
  return 10.0 * power;
}

// An axis that begins and ends at a tick and contains all values.
Axis value_axis(const std::vector<Curve>& curves) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) {
      if (std::isfinite(point.y)) {
        low = std::min(low, point.y);
        high = std::max(high, point.y);
      }
    }
  }
  if (low > high) {
    return {};
  }
  // Widens the range if the values are nearly equal.
  const double min_span = std::max(1e-9 * std::max(-low, high), 1e-300);
  if (!(high - low > min_span)) {
    const double margin = std::max(std::abs(low) * 0.1, 1e-3);
    low -= margin;
    high += margin;
  }
  if (!std::isfinite(high - low)) {
    return {low, high, high / 4.0 - low / 4.0};
  }
  const double step = tick_step(high - low, 5.0);
  const Axis axis{
      std::floor(low / step) * step, std::ceil(high / step) * step, step};
  // Rounding up to the next tick may overflow.
  return std::isfinite(axis.high - axis.low) ? axis : Axis{low, high, step};
}

double value_of(const Logs& logs, const std::string& name) {
  const double* value = logs.find(name);
  return value == nullptr ? kNotANumber : *value;
}

// The number of an epoch, counted from 1.
double shown_epoch(const History::Record& record) {
  return static_cast<double>(record.epoch) + 1.0;
}

// An axis of epochs or steps.
Axis count_axis(double low, double high) {
  // Beyond 2^53, neighbouring doubles are further apart than 1.
  const double min_span = std::max(1.0, 1e-15 * std::max(-low, high));
  if (!(low < high)) {
    return {low - min_span, low + min_span, min_span};
  }
  return {low, high, std::max(min_span, tick_step(high - low, 7.0))};
}

// What the horizontal axis counts, and the values at each place.
class Timeline {
 public:
  Timeline(const History& history, LearningCurvesOptions::Axis axis)
      : history_(history) {
    using Choice = LearningCurvesOptions::Axis;
    has_steps_ = !history.steps.empty() &&
        (axis == Choice::kSteps ||
         (axis == Choice::kAutomatic && history.epochs.size() < 2));
  }

  const char* label() const {
    return has_steps_ ? "step" : "epoch";
  }

  Axis axis() const {
    const auto& records = has_steps_ ? history_.steps : history_.epochs;
    return records.empty()
        ? Axis()
        : count_axis(count_of(records.front()), count_of(records.back()));
  }

  // Returns all names, those of epochs first.
  std::vector<std::string> names() const {
    std::vector<std::string> names = history_.names();
    for (const std::string& name : history_.step_names()) {
      if (has_steps_ && !contains(names, name)) {
        names.push_back(name);
      }
    }
    return names;
  }

  // On an axis of steps, an epoch is at its last logged step; NaN if there is none.
  double place_of(const History::Record& record) const {
    if (!has_steps_) {
      return shown_epoch(record);
    }
    double place = kNotANumber;
    for (const History::Record& step : history_.steps) {
      if (step.epoch == record.epoch) {
        place = static_cast<double>(step.step);
      }
    }
    return place;
  }

  std::vector<Point> points_of(const std::string& name) const {
    const bool is_of_steps =
        has_steps_ && contains(history_.step_names(), name);
    std::vector<Point> points;
    for (const History::Record& record :
         is_of_steps ? history_.steps : history_.epochs) {
      const double place =
          is_of_steps ? static_cast<double>(record.step) : place_of(record);
      if (!std::isnan(place)) {
        points.push_back({place, value_of(record.logs, name)});
      }
    }
    return points;
  }

 private:
  double count_of(const History::Record& record) const {
    return has_steps_ ? static_cast<double>(record.step) : shown_epoch(record);
  }

  const History& history_;
  bool has_steps_ = false;
};

// Averages neighbouring points of a long curve. A group with a number that is not finite
// stays a gap.
std::vector<Point> thinned(const std::vector<Point>& points) {
  constexpr size_t kMaxPoints = 1000;
  const size_t group = (points.size() + kMaxPoints - 1) / kMaxPoints;
  if (group <= 1) {
    return points;
  }
  std::vector<Point> means;
  for (size_t begin = 0; begin < points.size(); begin += group) {
    const size_t end = std::min(points.size(), begin + group);
    const auto count = static_cast<double>(end - begin);
    Point mean{0.0, 0.0};
    for (size_t i = begin; i < end; ++i) {
      mean.x += points[i].x / count;
      mean.y += points[i].y / count;
    }
    means.push_back(mean);
  }
  return means;
}

// Escapes text for XML.
std::string escaped(std::string_view text) {
  constexpr std::array kEntities{"&amp;", "&lt;", "&gt;", "&quot;"};
  std::string xml;
  for (const char character : display_text(text)) {
    const size_t entity = std::string_view("&<>\"").find(character);
    xml += entity < kEntities.size() ? kEntities[entity]
                                     : std::string(1, character);
  }
  return xml;
}

// The columns of text that fit into some pixels. A column of a bold font is about 0.6
// times as wide as the font is high.
int64_t columns_in(double pixels, int font_size) {
  return std::max<int64_t>(2, static_cast<int64_t>(pixels / (0.6 * font_size)));
}

struct Label {
  double x;
  double y;
  const char* anchor;
  int size;
  const char* extra = "";
};

std::string text_at(const Label& label, const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" "
      "fill=\"{}\"{}>{}</text>\n",
      label.x,
      label.y,
      label.anchor,
      label.size,
      kTextColor,
      label.extra,
      escaped(text));
}

std::string line(
    Point from,
    Point to,
    const char* color,
    const char* extra = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
      "stroke=\"{}\"{}/>\n",
      from.x,
      from.y,
      to.x,
      to.y,
      color,
      extra);
}

// The position of a panel, and its mapping from values to pixels.
struct Frame {
  double left;
  double top;
  double width;
  double height;
  Axis x;
  Axis y;

  double right() const {
    return left + width;
  }
  double bottom() const {
    return top + height;
  }
  Point to_pixels(const Point& point) const {
    return {
        left + width * fraction(x, point.x),
        bottom() - height * fraction(y, point.y)};
  }

 private:
  // Halves the numbers first, because their difference may overflow.
  static double fraction(const Axis& axis, double value) {
    return (value / 2.0 - axis.low / 2.0) / (axis.high / 2.0 - axis.low / 2.0);
  }
};

template <class Visit>
void for_each_tick(const Axis& axis, Visit visit) {
  const double first = std::ceil(axis.low / axis.step - 1e-6);
  const double last = std::floor(axis.high / axis.step + 1e-6);
  // An integer counts the ticks, since adding 1 does not change a large double.
  const auto ticks = static_cast<int>(last - first) + 1;
  for (int i = 0; i < ticks; ++i) {
    const double value = (first + i) * axis.step;
    // Rounding errors would print 0 as 1e-17.
    visit(std::abs(value) < axis.step * 1e-6 ? 0.0 : value);
  }
}

// Writes many epochs or steps as "50k" or "1.5M", because longer numbers would overlap.
std::string count_text(double value, double step) {
  constexpr double kThousand = 1e3;
  constexpr double kMillion = 1e6;
  if (value >= 1e10 || step < kThousand || value < kThousand) {
    return fmt::format("{:.0f}", value);
  }
  return value >= kMillion ? fmt::format("{:.5g}M", value / kMillion)
                           : fmt::format("{:.5g}k", value / kThousand);
}

std::string draw_axes(const Frame& frame, const char* label) {
  std::string svg;
  for_each_tick(frame.y, [&](double value) {
    const Point at = frame.to_pixels({frame.x.low, value});
    svg += line(at, {frame.right(), at.y}, kGridColor);
    svg += text_at(
        {at.x - 8.0, at.y + 4.0, "end", 11}, fmt::format("{:.5g}", value));
  });
  for_each_tick(frame.x, [&](double value) {
    const Point at = frame.to_pixels({value, frame.y.low});
    svg += line(at, {at.x, at.y + 4.0}, kAxisColor);
    svg += text_at(
        {at.x, at.y + 17.0, "middle", 11}, count_text(value, frame.x.step));
  });
  svg +=
      line({frame.left, frame.top}, {frame.left, frame.bottom()}, kAxisColor);
  svg += line(
      {frame.left, frame.bottom()},
      {frame.right(), frame.bottom()},
      kAxisColor);
  svg += text_at(
      {frame.left + frame.width / 2.0, frame.bottom() + 34.0, "middle", 11},
      label);
  return svg;
}

// Draws lines between neighbouring finite values, and a dot for a value without such a
// neighbour. Short curves have dots at all values.
std::string draw_curve(const Frame& frame, const Curve& curve) {
  std::string svg;
  std::vector<Point> run;
  const auto end_run = [&] {
    if (run.size() > 1) {
      std::string points;
      for (const Point& point : run) {
        points += fmt::format(
            "{}{:.2f},{:.2f}", points.empty() ? "" : " ", point.x, point.y);
      }
      svg += fmt::format(
          "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" "
          "stroke-width=\"2\" stroke-linejoin=\"round\"/>\n",
          points,
          curve.color);
    }
    constexpr size_t kMaxDots = 30;
    if (run.size() == 1 || curve.points.size() <= kMaxDots) {
      for (const Point& point : run) {
        svg += fmt::format(
            "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"2.5\" fill=\"{}\"/>\n",
            point.x,
            point.y,
            curve.color);
      }
    }
    run.clear();
  };
  for (const Point& point : curve.points) {
    if (std::isfinite(point.y)) {
      run.push_back(frame.to_pixels(point));
    } else {
      end_run();
    }
  }
  end_run();
  return svg;
}

// Draws the legend above the panel, aligned to the right.
std::string draw_legend(const Frame& frame, const std::vector<Curve>& curves) {
  std::string svg;
  double right = frame.right();
  for (auto curve = curves.rbegin(); curve != curves.rend(); ++curve) {
    const double y = frame.top - 12.0;
    svg += text_at({right, y + 4.0, "end", 11}, curve->name);
    const double end = right - 6.5 * static_cast<double>(curve->name.size());
    svg += line(
        {end - 24.0, y}, {end - 6.0, y}, curve->color, " stroke-width=\"2.5\"");
    right = end - 38.0;
  }
  return svg;
}

constexpr std::string_view kPrefix = "val_";

std::vector<Curve> curves_of(
    const Timeline& timeline,
    const std::string& name) {
  const std::vector<std::string> logged = timeline.names();
  std::vector<Curve> curves;
  const auto add = [&](const std::string& logged_name,
                       const char* shown,
                       const char* color) {
    if (contains(logged, logged_name)) {
      curves.push_back(
          {shown, color, thinned(timeline.points_of(logged_name))});
    }
  };
  add(name, "training", kTrainingColor);
  add(std::string(kPrefix) + name, "validation", kValidationColor);
  return curves;
}

// The names of the panels: each logged name once, without the prefix "val_".
std::vector<std::string> panels_of(
    const Timeline& timeline,
    const LearningCurvesOptions& options) {
  std::vector<std::string> panels;
  for (std::string name :
       options.names.empty() ? timeline.names() : options.names) {
    if (name.rfind(kPrefix, 0) == 0) {
      name.erase(0, kPrefix.size());
    }
    if (!contains(panels, name)) {
      panels.push_back(name);
    }
  }
  return panels;
}

// The epoch that is marked; nullptr if there is none.
const History::Record* best_epoch(
    const History& history,
    const LearningCurvesOptions& options) {
  if (history.epochs.size() < 2) {
    return nullptr;
  }
  if (options.monitor.empty() && history.restored) {
    const auto found = std::ranges::find(
        history.epochs, history.restored->epoch, &History::Record::epoch);
    return found == history.epochs.end() ? nullptr : &*found;
  }
  std::string name = options.monitor;
  if (name.empty()) {
    name = contains(history.names(), "val_loss") ? "val_loss" : "loss";
  }
  const bool is_higher = options.better == Better::kHigher;
  const History::Record* best = nullptr;
  double best_value = kNotANumber;
  for (const History::Record& record : history.epochs) {
    const double value = value_of(record.logs, name);
    const bool is_better = is_higher ? value > best_value : value < best_value;
    if (std::isfinite(value) && (best == nullptr || is_better)) {
      best = &record;
      best_value = value;
    }
  }
  return best;
}

// Draws a dashed line at the best epoch, its number, and rings around its values.
std::string draw_best(
    const Frame& frame,
    const std::vector<Curve>& curves,
    const History::Record& best,
    double place) {
  const Point top = frame.to_pixels({place, frame.y.high});
  std::string svg = line(
      {top.x, frame.top},
      {top.x, frame.bottom()},
      kBestColor,
      " stroke-dasharray=\"4 3\"");
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) {
      if (point.x == place && std::isfinite(point.y)) {
        const Point at = frame.to_pixels(point);
        svg += fmt::format(
            "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"4.5\" fill=\"none\" "
            "stroke=\"{}\" stroke-width=\"2\"/>\n",
            at.x,
            at.y,
            kBestColor);
      }
    }
  }
  const bool is_left = top.x < frame.left + frame.width / 2.0;
  const std::string text = fmt::format("best: {:.0f}", shown_epoch(best));
  // A white outline below the text makes it readable on curves.
  for (const char* outline :
       {" stroke=\"#ffffff\" stroke-width=\"4\" aria-hidden=\"true\"", ""}) {
    svg += text_at(
        {top.x + (is_left ? 6.0 : -6.0),
         frame.top + 10.0,
         is_left ? "start" : "end",
         10,
         outline},
        text);
  }
  return svg;
}

// Makes a long title smaller, and then cuts it.
std::string draw_title(const std::string& title, double full_width) {
  constexpr int kSize = 17;
  constexpr int kMinSize = 11;
  const double width = full_width - 24.0;
  const std::string text = display_text(title);
  int size = kSize;
  while (size > kMinSize && display_width(text) > columns_in(width, size)) {
    --size;
  }
  return text_at(
      {full_width / 2.0, 27.0, "middle", size, " font-weight=\"bold\""},
      cut_to_width(text, columns_in(width, size)));
}

void check(const LearningCurvesOptions& options) {
  constexpr int64_t kMaxSize = 10'000;
  TESSERA_CHECK_VALUE(
      options.width >= 200 && options.height >= 150 &&
          options.width <= kMaxSize && options.height <= kMaxSize,
      "[LearningCurves] width must be in [200, 10000] and height in [150, 10000], but got {} and {}.",
      options.width,
      options.height);
}

}  // namespace

std::string learning_curves_svg(
    const History& history,
    const LearningCurvesOptions& options) {
  check(options);
  const Timeline timeline(history, options.axis);
  const std::vector<std::string> panels = panels_of(timeline, options);
  const History::Record* best = best_epoch(history, options);
  const size_t columns = std::clamp<size_t>(panels.size(), 1, 2);
  const size_t rows = std::max<size_t>(1, (panels.size() + 1) / 2);
  const auto width = static_cast<double>(options.width);
  const auto height = static_cast<double>(options.height);
  const double title_height = options.title.empty() ? 0.0 : kTitleHeight;
  const double full_width = width * static_cast<double>(columns);
  const double full_height = title_height + height * static_cast<double>(rows);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      full_width,
      full_height);
  if (!options.title.empty()) {
    svg += draw_title(options.title, full_width);
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    const std::vector<Curve> curves = curves_of(timeline, panels[i]);
    const Frame frame{
        .left = width * static_cast<double>(i % columns) + kLeftMargin,
        .top = title_height + height * static_cast<double>(i / columns) +
            kTopMargin,
        .width = width - kLeftMargin - kRightMargin,
        .height = height - kTopMargin - kBottomMargin,
        .x = timeline.axis(),
        .y = value_axis(curves)};
    svg += text_at(
        {frame.left, frame.top - 8.0, "start", 13, " font-weight=\"bold\""},
        cut_to_width(
            display_text(panels[i]),
            columns_in(frame.width - kLegendWidth, 13)));
    svg += draw_axes(frame, timeline.label());
    for (const Curve& curve : curves) {
      svg += draw_curve(frame, curve);
    }
    if (const double place =
            best == nullptr ? kNotANumber : timeline.place_of(*best);
        !std::isnan(place)) {
      svg += draw_best(frame, curves, *best, place);
    }
    svg += draw_legend(frame, curves);
  }
  return svg + "</svg>\n";
}

LearningCurves::LearningCurves(std::string path, LearningCurvesOptions options)
    : HistoryFile("[LearningCurves]", std::move(path)),
      options_(std::move(options)),
      better_(options_.better) {
  check(options_);
}

void LearningCurves::on_train_begin(Training& training) {
  const std::vector<std::string> names = training.log_names();
  for (const std::string& name : options_.names) {
    TESSERA_CHECK_VALUE(
        contains(names, name),
        "[LearningCurves] '{}' is not logged. Set LearningCurvesOptions::names to some of {}.",
        name,
        join_names(names));
  }
  if (!options_.monitor.empty()) {
    TESSERA_CHECK_VALUE(
        contains(names, options_.monitor),
        "[LearningCurves] '{}' is not logged. Set LearningCurvesOptions::monitor to one of {}.",
        options_.monitor,
        join_names(names));
    better_ = options_.better == Better::kUnknown
        ? training.better(options_.monitor)
        : options_.better;
    TESSERA_CHECK_VALUE(
        better_ != Better::kUnknown,
        "[LearningCurves] it is not known whether '{}' should rise or fall. Set LearningCurvesOptions::better.",
        options_.monitor);
  }
  HistoryFile::on_train_begin(training);
}

std::string LearningCurves::text_of(const History& history) const {
  LearningCurvesOptions options = options_;
  options.better = better_;
  return learning_curves_svg(history, options);
}

}  // namespace tessera::training
