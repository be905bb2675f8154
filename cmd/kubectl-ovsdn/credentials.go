package main

import "regexp"

// removedCredential replaces a credential.
const removedCredential = "<removed>"

// credentials are patterns of what must not leave a cluster: private keys in PEM, also in JSON, where line breaks are escaped; tokens (JWT, of
// which a ServiceAccount's is one); and values after "Bearer" or "Authorization".
type credentials []*regexp.Regexp

func newCredentials() credentials {
	return credentials{
		regexp.MustCompile(`(?i)\b(bearer|authorization:)\s+[^\s"\\]{8,}`),
		regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\\\s]*(-----END [A-Z ]*PRIVATE KEY-----)?`),
		regexp.MustCompile(`LS0tLS1CRUdJTiB[QFSPE][A-Za-z0-9+/=]*`), // the first one in base64, as in the data of a Secret; certificates have D
		regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`),
	}
}

// remove returns the content with each credential replaced, and their number.
func (c credentials) remove(content []byte) (clean []byte, removed int) {
	for _, p := range c {
		content = p.ReplaceAllFunc(content, func([]byte) []byte {
			removed++
			return []byte(removedCredential)
		})
	}
	return content, removed
}
