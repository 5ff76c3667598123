package web

import (
	"os"
	"path/filepath"
	"testing"
)

// The token is created once, readable only by its owner; a token that others may read is refused.
func TestTokenFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "token")
	first, err := Token(name)
	if err != nil || len(first) < 32 {
		t.Fatal(first, err)
	}
	again, err := Token(name)
	info, err2 := os.Stat(name)
	if err != nil || err2 != nil || again != first || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v %v", err, err2, info)
	}
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Token(name); err == nil {
		t.Error("a token that others may read is used")
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil || os.Chmod(name, 0o600) != nil {
		t.Fatal(err)
	}
	if _, err := Token(name); err == nil {
		t.Error("an empty token is used")
	}
}
