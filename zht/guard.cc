#include "zht/guard.h"

#include "zht/support/paths.h"

namespace zht {

base::Result<Opener> link_opener(base::Bytes purpose, const std::function<base::Result<std::string>()>& otherwise) {
  TRY_LET(found, security::credentials_from_environment(security::End::client, {}));
  security::Credentials credentials;
  if (found) credentials = *found;
  if (credentials.munge) {
    credentials.munge = credentials.munge->for_purpose(purpose);
    return Opener(std::make_shared<const security::Credentials>(std::move(credentials)));
  }
  TRY_LET(text, otherwise());
  TRY_LET(secret, security::Secret::from_text(text, std::string(purpose)));
  credentials.key.reset();
  credentials.secret = std::move(secret);
  return Opener(std::make_shared<const security::Credentials>(std::move(credentials)));
}

base::Result<std::string> absolute_credential(const std::string& value) {
  return value.empty() || security::is_word(value) ? base::Result<std::string>(value) : support::absolute_path(value);
}

}  // namespace zht
