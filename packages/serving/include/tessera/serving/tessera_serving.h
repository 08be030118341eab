/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESSERA_SERVING_H
#define TESSERA_SERVING_H

/* The C interface of tessera_serving. reader.h and pipeline.h document the same in C++.
 *
 *   tessera_reader* reader = NULL;
 *   if (tessera_reader_open("published", NULL, &reader) != 0) {
 *     fprintf(stderr, "%s\n", tessera_error());
 *   }
 *   tessera_version* version = tessera_reader_version(reader);
 *   int64_t movie = tessera_version_feature(version, "movie");
 *
 * Functions that fail return a negative number or NULL. tessera_error() then says why. No
 * exception leaves a function.
 *
 * Close or release each object that a function gives you once, in any order. What its pointers
 * point to is valid until then. NULL is ignored. No function keeps a pointer to your memory.
 *
 * Any number of threads may use the same object at the same time, until one releases it. */

#include <tessera/serving/export.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tessera_reader tessera_reader;
typedef struct tessera_version tessera_version;

/* See ReaderOptions. {0} has its defaults, but the reader does not follow new versions. If
 * the options are NULL, the reader follows. */
typedef struct tessera_reader_options {
  int follow; /* 1: a thread takes new versions */
  double poll_seconds; /* 0: one second */
  int copy_to_memory;
} tessera_reader_options;

/* A dense weight or buffer of the model. See Version::DenseWeight. */
typedef struct tessera_dense_weight {
  const char* name;
  const char* dtype; /* "float32", "int64", ... */
  const int64_t* shape;
  size_t num_dims;
  const void* bytes; /* the numbers in order, without gaps */
  size_t num_bytes;
} tessera_dense_weight;

typedef struct tessera_metric {
  const char* name;
  double value;
} tessera_metric;

typedef struct tessera_version_info {
  int64_t base; /* the version with all rows that this one builds on */
  double time; /* of publication, in seconds since 1970 */
  const tessera_metric* metrics;
  size_t num_metrics;
  const tessera_dense_weight* dense_weights;
  size_t num_dense_weights;
} tessera_version_info;

/* Values of several examples: a column that a pipeline reads, or a feature that it gives.
 * One of `integers`, `floats` and `texts` has the values, and the others are NULL. This also
 * holds for a column without values, whose type is that of the one that is not NULL. INT64_MIN,
 * NaN, and a text that is empty or NULL are missing values. Texts end with a zero byte. */
typedef struct tessera_column {
  const char* name;
  const int64_t* integers;
  const float* floats;
  const char* const* texts;
  size_t num_values;
  const int64_t* row_splits; /* as in tessera_version_lookup() */
  size_t num_examples;
} tessera_column;

/* A column that a pipeline reads. Its type is "int64", "float32", "text", "uint64_bits",
 * "numbers" or "unknown". See PipelineColumn::Type. */
typedef struct tessera_column_info {
  const char* name;
  const char* type;
  int takes_lists; /* 1: the column may have row_splits */
} tessera_column_info;

typedef struct tessera_pipeline {
  const tessera_column_info* columns; /* that it reads */
  size_t num_columns;
} tessera_pipeline;

/* See PipelineResult. */
typedef struct tessera_pipeline_result {
  const tessera_column* features; /* in the order of their names */
  size_t num_features;
  const float* dense; /* [num_examples, num_dense], row by row */
  size_t num_examples;
  size_t num_dense;
  const char* warning; /* usually empty */
} tessera_pipeline_result;

/* A user for whom tessera_version_recommend() finds items. See RecommendRequest. {0} has its
 * defaults, but k and, with a diverse_column, max_per_value must be set. */
typedef struct tessera_recommend_request {
  const int64_t* user; /* one id, or NULL */
  const int64_t* items; /* that the user has seen, or NULL */
  size_t num_items;
  const float* vector; /* of the user, or NULL */
  size_t dim;
  int64_t k;
  int exclude_seen;
  const char* where; /* NULL: all items */
  const int64_t* exclude;
  size_t num_exclude;
  const int64_t* choose_from; /* NULL: all items */
  size_t num_choose_from;
  const char* diverse_column; /* NULL: any number of a value */
  int64_t max_per_value;
} tessera_recommend_request;

/* How the items were found. See RecommendedFrom. */
typedef enum tessera_recommended_from {
  TESSERA_FROM_QUERY,
  TESSERA_FROM_FOLD_IN,
  TESSERA_FROM_POPULARITY
} tessera_recommended_from;

/* Items, best first. See RecommendResult. */
typedef struct tessera_recommendation {
  const int64_t* ids;
  const float* scores;
  size_t num_items;
  tessera_recommended_from from;
  int64_t
      passed; /* the number of items that `where` and `choose_from` let through */
  int has_history;
} tessera_recommendation;

/* The message of the last failed call of this thread. The pointer is never NULL, and it is
 * valid until the next call of this thread. */
TESSERA_SERVING_API const char* tessera_error(void);

/* Opens a directory and writes the reader to `out`. `options` may be NULL.
 * Returns 0, or -1. */
TESSERA_SERVING_API int tessera_reader_open(
    const char* directory,
    const tessera_reader_options* options,
    tessera_reader** out);
TESSERA_SERVING_API void tessera_reader_close(tessera_reader* reader);
/* Takes the newest version. Returns 1 if it is another one than before, 0 if not, or -1. */
TESSERA_SERVING_API int tessera_reader_refresh(tessera_reader* reader);
/* Reader::rollback() and Reader::unpin(). Both return 0, or -1. */
TESSERA_SERVING_API int tessera_reader_rollback(
    tessera_reader* reader,
    int64_t version);
TESSERA_SERVING_API int tessera_reader_unpin(tessera_reader* reader);

/* The version that serves now, or NULL after an error. Release it after the request. */
TESSERA_SERVING_API tessera_version* tessera_reader_version(
    tessera_reader* reader);
TESSERA_SERVING_API void tessera_version_release(tessera_version* version);
/* The number of the version, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_number(const tessera_version* version);
/* The step of the training, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_step(const tessera_version* version);
/* Metrics, dense weights, ... of the version, or NULL. */
TESSERA_SERVING_API tessera_version_info* tessera_version_describe(
    const tessera_version* version);
TESSERA_SERVING_API void tessera_version_info_release(
    tessera_version_info* info);

/* The number of a feature or table, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_feature(const tessera_version* version, const char* name);
TESSERA_SERVING_API int64_t
tessera_version_table(const tessera_version* version, const char* name);
/* The number of floats in a row of the feature or the table, or -1. */
TESSERA_SERVING_API int64_t
tessera_version_feature_dim(const tessera_version* version, int64_t feature);
TESSERA_SERVING_API int64_t
tessera_version_table_dim(const tessera_version* version, int64_t table);

/* Version::lookup(). `row_splits` has num_examples + 1 numbers. If it is NULL, each id is an
 * example, and num_examples is num_ids. `weights` has one number per id, or is NULL. `out`
 * has out_size floats, enough for all examples. Returns the number of floats that were
 * written, or -1. */
TESSERA_SERVING_API int64_t tessera_version_lookup(
    const tessera_version* version,
    int64_t feature,
    const int64_t* ids,
    size_t num_ids,
    const int64_t* row_splits,
    size_t num_examples,
    const float* weights,
    float* out,
    size_t out_size);

/* Version::lookup_rows(). `out` has at least num_ids * tessera_version_table_dim() floats.
 * Returns 0, or -1. */
TESSERA_SERVING_API int tessera_version_lookup_rows(
    const tessera_version* version,
    int64_t table,
    const int64_t* ids,
    size_t num_ids,
    float* out,
    size_t out_size);

/* Version::recommend() for one request, or NULL. */
TESSERA_SERVING_API tessera_recommendation* tessera_version_recommend(
    const tessera_version* version,
    const tessera_recommend_request* request);
TESSERA_SERVING_API void tessera_recommendation_release(
    tessera_recommendation* recommendation);

/* The Pipeline that was published with the version, or NULL. Each call reads all
 * vocabularies, so keep the pipeline for all versions with the same base. */
TESSERA_SERVING_API tessera_pipeline* tessera_version_pipeline(
    const tessera_version* version);
TESSERA_SERVING_API void tessera_pipeline_release(tessera_pipeline* pipeline);
/* Pipeline::apply(), or NULL. */
TESSERA_SERVING_API tessera_pipeline_result* tessera_pipeline_apply(
    const tessera_pipeline* pipeline,
    const tessera_column* columns,
    size_t num_columns);
TESSERA_SERVING_API void tessera_pipeline_result_release(
    tessera_pipeline_result* result);

#ifdef __cplusplus
}
#endif

#endif
