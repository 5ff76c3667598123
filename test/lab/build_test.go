package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newCheckout is one whose modules have no sources, and whose cache has all programs of both.
func newCheckout(t *testing.T) string {
	t.Helper()
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOFLAGS", "-mod=mod")
	repo := t.TempDir()
	for _, m := range []module{kubernetes(), containerd2()} {
		content := "module example.com/m\n\ngo 1.26\n\nrequire " + m.source + " v1.9.9\n"
		files := map[string]string{filepath.Join(m.dir(repo), "go.mod"): content}
		sum := sha256.Sum256([]byte(content))
		for _, p := range m.programs {
			program := filepath.Join(repo, ".cache", m.name+"-v1.9.9", p.name)
			files[program], files[program+".go.mod.sha256"] = "program", hex.EncodeToString(sum[:])+"\n"
		}
		for name, text := range files {
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755),
				os.WriteFile(name, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return repo
}

// What the cache has is not built again; what is missing is, and an error carries what the compiler said.
func TestBuild(t *testing.T) {
	repo, log := newCheckout(t), &strings.Builder{}
	if err := Build(t.Context(), Options{Repo: repo, Log: log}); err != nil || log.String() != "" {
		t.Errorf("all is there: %v\n%s", err, log)
	}
	if err := os.Remove(filepath.Join(repo, ".cache/kubernetes-v1.9.9/kubectl")); err != nil {
		t.Fatal(err)
	}
	err := Build(t.Context(), Options{Repo: repo, Log: log})
	why := "module lookup disabled"
	if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(log.String(), "building kubectl") {
		t.Errorf("no sources: %v\n%s", err, log)
	}
}

// Two do not build at once: the second waits until the first has ended, or until it is told to.
func TestBuildWaits(t *testing.T) {
	repo := newCheckout(t)
	unlock, err := lock(t.Context(), buildLock(repo), "", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	log := &strings.Builder{}
	if err := Build(ctx, Options{Repo: repo, Log: log}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another builds: %v", err)
	}
	if !strings.Contains(log.String(), "another command is building the lab's programs; waiting") {
		t.Errorf("it does not say for what it waits: %s", log)
	}
	done := make(chan error, 1)
	go func() { done <- Build(t.Context(), Options{Repo: repo}) }()
	unlock()
	if err := <-done; err != nil {
		t.Errorf("after it: %v", err)
	}
}
