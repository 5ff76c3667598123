package deliver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

const (
	secretPrefix = "whsec_"
	minSecret    = 24 // bytes
)

// readSecrets reads the secrets of a target, one per line: "whsec_" and at least 24 bytes in base64. If there are
// several, each signs: a receiver accepts the old or the new one, so that the old one can be removed.
func readSecrets(name string) (secrets [][]byte, err error) {
	text, err := secretfile.Read(name)
	if err != nil {
		return nil, fmt.Errorf("secretFile: %w", err)
	}
	for i, line := range strings.Fields(string(text)) {
		encoded, ok := strings.CutPrefix(line, secretPrefix)
		secret, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(secret) < minSecret {
			return nil, fmt.Errorf("secretFile %s: line %d: want %s and at least %d bytes in base64", name, i+1, secretPrefix,
				minSecret)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("secretFile %s: no secret in it", name)
	}
	return secrets, nil
}

// sign adds the headers of Standard Webhooks: an ID (the same in every attempt), the time of this attempt, and the
// HMAC-SHA256 of both and the body, one for each secret.
func sign(header http.Header, secrets [][]byte, id string, at time.Time, body []byte) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	var signatures []string
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", timestamp)
	header.Set("Webhook-Signature", strings.Join(signatures, " "))
}
