// The JSON of files that are right, as a tree. Enough to find things by name: escapes in strings are not decoded.
#pragma once
#include <cctype>
#include <map>
#include <string>
#include <vector>

struct Json {
  std::string text;  // of a string, a number or a word
  std::vector<Json> items;
  std::map<std::string, Json> members;

  const Json& operator[](const std::string& key) const { return members.at(key); }
  bool has(const std::string& key) const { return members.count(key) > 0; }
  explicit operator double() const { return std::stod(text); }
  explicit operator long() const { return std::stol(text); }

  static Json parse(const char* at) { return next(at); }

 private:
  static Json next(const char*& at) {
    Json made;
    auto mark = [&at] { while (std::isspace(*at) || *at == ',' || *at == ':') ++at; return *at; };
    if (mark() == '{') {
      for (++at; mark() != '}';) {
        std::string key = next(at).text;
        made.members[key] = next(at);
      }
      ++at;
    } else if (*at == '[') {
      for (++at; mark() != ']';) made.items.push_back(next(at));
      ++at;
    } else if (*at == '"') {
      for (++at; *at != '"'; ++at) made.text += *at == '\\' ? *++at : *at;
      ++at;
    } else {
      while (std::isalnum(*at) || *at == '-' || *at == '+' || *at == '.') made.text += *at++;
    }
    return made;
  }
};
