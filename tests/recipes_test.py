# SPDX-License-Identifier: Apache-2.0
"""Follows the recipes of CONTRIBUTING.md in a copy of the sources, then builds and runs a program that uses the result.

    python3 tests/recipes_test.py FOLDER

The copy and its build are in FOLDER. What is added is a copy of an optimizer, a layer and a data format under another
name. A recipe must not need more files of the product than it names; the numbers are printed. The build takes as long
as that of the libraries, so ctest does not run this.
"""

import argparse
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

PROGRAM = """\
#include <tessera/tessera.h>

#include <iostream>

int main(int, char** argv) {
  tessera::limit_thread_spins(argv);
  using namespace tessera;
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = FeatureConfig{.table = make_table({.vocabulary_size = 9, .dim = 2})},
      .optimizer = optim::RecipeDelta{.learning_rate = 0.1}});
  const at::Tensor ids = at::tensor({1, 2}, at::kLong);
  const at::Tensor before = embedding->forward(ids).leaf().detach().clone();
  embedding->forward(ids).leaf().sum().backward();
  const bool moves = !at::equal(embedding->forward(ids).leaf(), before);
  register_models();
  const auto layer = layer_from_json({{"class_name", "RecipeDice"}});
  const bool refuses = [] {
    try {
      data::make_recipe_source({});
    } catch (const c10::Error&) {
      return true;
    }
    return false;
  }();
  std::cout << "moves " << moves << ", layer " << to_json(*layer)["class_name"] << ", refuses " << refuses << "\\n";
}
"""
EXPECTED = 'moves 1, layer "RecipeDice", refuses 1\n'


class Tree:
    """A copy of the sources, and the files of the product that a recipe has touched."""

    def __init__(self, folder):
        self.folder = folder
        self.touched = set()

    def copy(self, source, target, names):
        """Adds `target`, which is `source` with other names."""
        text = (self.folder / source).read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        (self.folder / target).write_text(text)
        self.touched.add(target)

    def after(self, path, line, added):
        """Adds lines after the first one that contains `line`."""
        lines = (self.folder / path).read_text().splitlines(keepends=True)
        places = [number for number, text in enumerate(lines) if line in text]
        if not places:
            raise SystemExit(f"{path}: expected a line with '{line}'. Correct the recipe and this test.")
        lines.insert(places[0] + 1, added)
        (self.folder / path).write_text("".join(lines))
        self.touched.add(path)

    def excerpt(self, path, begin, end):
        text = (self.folder / path).read_text()
        start = text.index(begin)
        return text[start : text.index(end, start) + len(end)]


def add_optimizer(tree):
    names = {"Adadelta": "RecipeDelta", "adadelta": "recipe_delta"}
    headers = "include/tessera/optim/optimizers"
    tree.copy(f"{headers}/adadelta.h", f"{headers}/recipe_delta.h", names)
    tree.copy("optim/optimizers/adadelta.cpp", "optim/optimizers/recipe_delta.cpp", names)
    tree.after(f"{headers}.h", "adadelta.h", "#include <tessera/optim/optimizers/recipe_delta.h>\n")
    tree.after(f"{headers}.h", "    Adadelta,", "    RecipeDelta,\n")
    for path, kind in (("src/kernels/row_rules.h", "Rule"), ("src/kernels/row_rules-inl.h", "Row")):
        code = tree.excerpt(path, f"struct Adadelta{kind}", "\n};\n")
        tree.after(path, f"    Adadelta{kind},", f"    RecipeDelta{kind},\n")
        text = (tree.folder / path).read_text()
        (tree.folder / path).write_text(text.replace(code, code + "\n" + code.replace(*next(iter(names.items())))))


def add_layer(tree):
    names = {"Dice": "RecipeDice", "dice": "recipe_dice"}
    package = "packages/models"
    tree.copy(f"{package}/include/tessera/models/dice.h", f"{package}/include/tessera/models/recipe_dice.h", names)
    tree.copy(f"{package}/src/dice.cpp", f"{package}/src/recipe_dice.cpp", names)
    registration = f"{package}/src/register_models.cpp"
    tree.after(registration, "models/dice.h", "#include <tessera/models/recipe_dice.h>\n")
    tree.after(registration, "register_layer<Dice>", "  register_layer<RecipeDice>();\n")


def add_format(tree):
    names = {"Int96Unit": "RecipeUnit", "parquet_source": "recipe_source", "ParquetOptions": "RecipeOptions", "Parquet": "Recipe"}
    package = "packages/data"
    tree.copy(
        f"{package}/include/tessera/data/parquet_source.h", f"{package}/include/tessera/data/recipe_source.h", names
    )
    tree.copy(
        f"{package}/src/arrow/parquet_source.cpp",
        f"{package}/src/arrow/recipe_source.cpp",
        {"make_parquet_source": "make_recipe_source", "parquet_source.h": "recipe_source.h", "ParquetOptions": "RecipeOptions",
         "ParquetSource": "RecipeSource", "ParquetReader": "RecipeReader", "ParquetFile": "RecipeFile",
         # A unity source has both files, so names in unnamed namespaces must differ.
         "kReader": "kRecipeReader", "GroupRange": "RecipeRange", "GroupDecoder": "RecipeDecoder",
         "without_exceptions": "without_recipe_exceptions", "collect_leaves": "collect_recipe_leaves", "Int96Column": "RecipeInt96Column", "count_units": "count_recipe_units",
         "date_of": "recipe_date_of", "values_of": "recipe_values_of", "kNanosecondsPerSecond": "kRecipeNanoseconds",
         "Int96Unit": "RecipeUnit", "kBatchExamples": "kRecipeExamples", "DecodedExamples": "RecipeExamples"},
    )
    without_arrow = f"{package}/src/arrow_unavailable.cpp"
    tree.after(without_arrow, "parquet_source.h", "#include <tessera/data/recipe_source.h>\n")
    code = tree.excerpt(without_arrow, "std::unique_ptr<ExampleSource> make_parquet_source", "\n}\n")
    code = code.replace("parquet", "recipe").replace("Parquet", "Recipe")
    tree.after(without_arrow, "}  // namespace", "\n" + code)
    known = '    {.bytes = "RECIPE", .name = "a recipe file", .advice = "Use make_recipe_source()."},\n'
    tree.after(f"{package}/src/reader_checks.cpp", "BinaryFormat kFormats[]", known)
    tree.after(f"{package}/src/file_source.cpp", "parquet_source.h", "#include <tessera/data/recipe_source.h>\n")


RECIPES = {add_optimizer: 5, add_layer: 3, add_format: 5}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} must be a new or empty folder, because its files would be replaced")
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    if (ROOT / ".deps").exists():
        (folder / ".deps").symlink_to((ROOT / ".deps").resolve())

    for recipe, most in RECIPES.items():
        tree = Tree(folder)
        recipe(tree)
        print(f"{recipe.__name__}: {len(tree.touched)} files: {', '.join(sorted(tree.touched))}")
        if len(tree.touched) > most:
            raise SystemExit(f"{recipe.__name__}: expected at most {most} files")

    (folder / "examples/recipe.cpp").write_text(PROGRAM)
    with (folder / "examples/CMakeLists.txt").open("a") as lists:
        lists.write("\ntessera_example(recipe)\n")
    jobs = str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--preset", "release", "-D", "TESSERA_BUILD_TESTS=OFF"], cwd=folder, check=True)
    subprocess.run(["cmake", "--build", "build/release", "-j", jobs, "--target", "recipe"], cwd=folder, check=True)
    output = subprocess.run([folder / "build/release/examples/recipe"], check=True, capture_output=True, text=True).stdout
    if output != EXPECTED:
        raise SystemExit(f"expected {EXPECTED!r}, but got {output!r}")
    print("passed")


if __name__ == "__main__":
    main()
