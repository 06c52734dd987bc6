#include "zht/support/service.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "novoht/base/bytes.h"
#include "zht/support/paths.h"

namespace support {
namespace {

using base::Code;
using base::fail;
using base::Result;

std::string folder_of(const std::string& data_folder) { return data_folder + "/services"; }
std::string file_of(const std::string& data_folder, const std::string& name, const char* kind) {
  return folder_of(data_folder) + "/" + name + kind;
}

Result<void> check_name(const std::string& name) {
  const bool fine =
      !name.empty() && name.size() <= 100 && name[0] != '.' &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (!fine)
    return fail(Code::invalid, "service name '", base::escape(name),
                "'; 1 to 100 letters, digits, '.', '_' or '-', no dot first");
  return {};
}

Result<Service> read_service(const std::string& path, const std::string& name) {
  TRY_LET(text, read_file(path, 1 << 20));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("argv") || !json["argv"].is_array() || json["argv"].empty())
    return fail(Code::corrupt, path, ": not of the form {\"argv\":[...]}");
  Service service{name, {}};
  for (const auto& word : json["argv"]) {
    if (!word.is_string()) return fail(Code::corrupt, path, ": argv holds something that is not a string");
    service.argv.push_back(word.get<std::string>());
  }
  return service;
}

std::vector<std::string> names_with(const std::string& data_folder, const std::string& ending) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_of(data_folder), error), end; !error && at != end;
       at.increment(error)) {
    const std::string file = at->path().filename().string();
    if (file.size() > ending.size() && file.ends_with(ending))
      names.push_back(file.substr(0, file.size() - ending.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<void> register_service(const std::string& data_folder, const Service& service) {
  TRY(check_name(service.name));
  if (service.argv.empty() || service.argv[0].empty() || service.argv[0][0] != '/')
    return fail(Code::invalid, "service ", service.name, ": its program must be an absolute path");
  TRY(make_private_folder(folder_of(data_folder)));
  const nlohmann::json json{{"argv", service.argv}};
  return write_file_atomically(file_of(data_folder, service.name, ".json"),
                               json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Result<void> unregister_service(const std::string& data_folder, const std::string& name) {
  TRY(check_name(name));
  const std::string path = file_of(data_folder, name, ".json");
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return base::fail_errno(errno, path);
  return {};
}

Result<std::vector<Service>> list_services(const std::string& data_folder, std::vector<std::string>* broken) {
  std::vector<Service> services;
  for (const std::string& name : names_with(data_folder, ".json")) {
    auto service = check_name(name) ? read_service(file_of(data_folder, name, ".json"), name)
                                    : Result<Service>(fail(Code::invalid, name));
    if (service)
      services.push_back(*std::move(service));
    else if (broken != nullptr)
      broken->push_back(name);
  }
  return services;
}

Result<LockFile> hold_service(const std::string& data_folder, const std::string& name) {
  TRY(check_name(name));
  TRY(make_private_folder(folder_of(data_folder)));
  return LockFile::acquire(file_of(data_folder, name, ".lock"));
}

std::optional<pid_t> service_pid(const std::string& data_folder, const std::string& name) {
  return held_by(file_of(data_folder, name, ".lock"));
}

std::vector<std::string> running_services(const std::string& data_folder) {
  std::vector<std::string> running;
  for (const std::string& name : names_with(data_folder, ".lock"))
    if (service_pid(data_folder, name)) running.push_back(name);
  return running;
}

}  // namespace support
