/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what a published model has, the first number of each row that belongs to the raw values of two users, and an
 * item for one of them: c_client DIRECTORY */
#include <tessera/serving/tessera_serving.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int has_succeeded) {
  if (!has_succeeded) {
    fprintf(stderr, "%s\n", tessera_error());
    exit(1);
  }
}

static void print_info(const tessera_version* version) {
  tessera_version_info* info = tessera_version_describe(version);
  size_t i;
  check(info != NULL);
  printf(
      "version %" PRId64 " of base %" PRId64 ", step %" PRId64 "\n",
      tessera_version_number(version),
      info->base,
      tessera_version_step(version));
  for (i = 0; i < info->num_metrics; ++i) {
    printf("%s: %.9g\n", info->metrics[i].name, info->metrics[i].value);
  }
  for (i = 0; i < info->num_dense_weights; ++i) {
    printf(
        "%s: %s, %zu bytes\n",
        info->dense_weights[i].name,
        info->dense_weights[i].dtype,
        info->dense_weights[i].num_bytes);
  }
  tessera_version_info_release(info);
}

static void print_rows(
    const tessera_version* version,
    const tessera_column* ids) {
  const int64_t feature = tessera_version_feature(version, ids->name);
  const int64_t dim = tessera_version_feature_dim(version, feature);
  size_t size, i;
  float* out;
  check(feature >= 0 && dim >= 0);
  size = ids->num_examples * (size_t)dim;
  out = malloc(size * sizeof(float));
  check(
      tessera_version_lookup(
          version,
          feature,
          ids->integers,
          ids->num_values,
          ids->row_splits,
          ids->num_examples,
          NULL,
          out,
          size) >= 0);
  for (i = 0; i < size; i += (size_t)dim) {
    printf("%s: %.9g\n", ids->name, (double)out[i]);
  }
  free(out);
}

/* Prints the best film that a user has not watched. `watched` has the films of two users. */
static void print_recommendation(
    const tessera_version* version,
    const tessera_column* watched) {
  // snippet: recommend
  const int64_t begin = watched->row_splits[1]; /* of the second user */
  const tessera_recommend_request request = {
      .items = &watched->integers[begin],
      .num_items = (size_t)(watched->row_splits[2] - begin),
      .k = 1,
      .exclude_seen = 1};
  tessera_recommendation* found = tessera_version_recommend(version, &request);
  check(found != NULL);
  for (size_t i = 0; i < found->num_items; ++i) {
    printf("item %" PRId64 ": %.9g\n", found->ids[i], found->scores[i]);
  }
  tessera_recommendation_release(found);
  // end snippet
}

static void print_rows_of_two_users(const tessera_version* version) {
  // snippet: columns
  /* The first user has watched one film, and the second one two. The age of the first one is
   * missing. */
  const char* films[] = {"Heat", "Alien", "Fargo"};
  const int64_t row_splits[] = {0, 1, 3};
  const float ages[] = {NAN, 30.0F};
  const tessera_column columns[] = {
      {.name = "watched",
       .texts = films,
       .num_values = 3,
       .row_splits = row_splits,
       .num_examples = 2},
      {.name = "age", .floats = ages, .num_values = 2, .num_examples = 2}};
  tessera_pipeline* pipeline = tessera_version_pipeline(version);
  check(pipeline != NULL);
  tessera_pipeline_result* inputs =
      tessera_pipeline_apply(pipeline, columns, 2);
  check(inputs != NULL);
  for (size_t i = 0; i < inputs->num_features; ++i) {
    print_rows(version, &inputs->features[i]);
  }
  printf("age: %.9g and %.9g\n", inputs->dense[0], inputs->dense[1]);
  print_recommendation(version, &inputs->features[0]);
  tessera_pipeline_result_release(inputs);
  tessera_pipeline_release(pipeline);
  // end snippet
}

int main(int argc, char** argv) {
  tessera_reader* reader = NULL;
  tessera_version* version;
  if (argc != 2) {
    fprintf(stderr, "expected a directory\n");
    return 2;
  }
  check(tessera_reader_open(argv[1], NULL, &reader) == 0);
  version = tessera_reader_version(reader);
  check(version != NULL);
  print_info(version);
  print_rows_of_two_users(version);
  tessera_version_release(version);
  tessera_reader_close(reader);
  return 0;
}
