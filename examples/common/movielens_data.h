// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// The contents of the MovieLens 100K folder, with ids counted from 0.
struct MovieLens {
  struct Rating {
    int64_t user = 0;
    int64_t movie = 0;
    float stars = 0.0F;  // 1 to 5
    int64_t seconds = 0;  // since 1970
  };
  struct Movie {
    std::string title = {};
    int64_t year = 0;  // year of release; 0: unknown
    std::vector<int64_t> genres = {};
  };
  struct User {
    int64_t age = 0;  // years
    int64_t gender = 0;  // 0: M, 1: F
    int64_t occupation = 0;  // index into occupations
  };

  std::vector<Rating> ratings = {};
  std::vector<Movie> movies = {};
  std::vector<User> users = {};
  std::vector<std::string> genres = {};
  std::vector<std::string> occupations = {};
};

/// Reads u.data, u.item, u.user, u.genre and u.occupation from `folder`.
/// Errors:  c10::ValueError naming file and line if a file is missing or damaged.
MovieLens load_movielens(const std::string& folder);
