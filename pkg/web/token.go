package web

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

// Token returns the token in a file, and creates the file if it is missing. Only the owner may read the file.
func Token(name string) (string, error) {
	token, err := ReadToken(name)
	if !errors.Is(err, os.ErrNotExist) {
		return token, err
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	token = hex.EncodeToString(random[:])
	return token, atomicfile.WriteData(name, []byte(token+"\n"))
}

// ReadToken reads a token from a file.
func ReadToken(name string) (string, error) {
	if err := secretfile.CheckOwn(name); err != nil {
		return "", err
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if len(token) < 32 {
		return "", fmt.Errorf("%s: no token: it has fewer than 32 characters", name)
	}
	return token, nil
}
