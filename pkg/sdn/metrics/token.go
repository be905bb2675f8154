package metrics

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// clockSkew is the difference between this node's clock and that of the API server for which a token is not refused.
const clockSkew = 5 * time.Minute

// hasExpired reports whether the token is a JWT with an expiry in the past. It does not verify the token. Those of authenticators other than the API
// server's own can have any form: only the API server knows whether they are valid.
func hasExpired(token string, now time.Time) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var claims struct {
		Expiry *float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Expiry == nil {
		return false
	}
	return *claims.Expiry < float64(now.Add(-clockSkew).Unix())
}
