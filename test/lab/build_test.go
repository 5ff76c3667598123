package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// newCheckout returns a checkout whose modules have no sources, and whose cache has all programs of both.
func newCheckout(t *testing.T) string {
	t.Helper()
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOFLAGS", "-mod=mod")
	repo := t.TempDir()
	for _, m := range []module{kubernetes(), containerd2()} {
		content := "module example.com/m\n\ngo 1.26\n\nrequire " + m.source + " v1.9.9\n"
		files := map[string]string{filepath.Join(m.dir(repo), "go.mod"): content}
		sum := sha256.Sum256([]byte(content))
		cache := filepath.Join(repo, ".cache", m.name+"-v1.9.9")
		files[filepath.Join(cache, "go.mod.sha256")] = hex.EncodeToString(sum[:]) + "\n"
		for _, name := range m.programs {
			files[filepath.Join(cache, name)] = "program"
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

// Cached programs are not built again; missing ones are built, and an error contains the compiler's output.
func TestBuild(t *testing.T) {
	repo, log := newCheckout(t), &strings.Builder{}
	if err := Build(t.Context(), Options{Repo: repo, Log: log}); err != nil || log.String() != "" {
		t.Errorf("all programs are cached: %v\n%s", err, log)
	}
	if err := os.Remove(filepath.Join(repo, ".cache/kubernetes-v1.9.9/kubectl")); err != nil {
		t.Fatal(err)
	}
	err := Build(t.Context(), Options{Repo: repo, Log: log})
	why := "module lookup disabled"
	if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(log.String(), "building kubernetes") {
		t.Errorf("no sources: %v\n%s", err, log)
	}
}

// A download that fails is tried again.
func TestBuildDownloadsAgain(t *testing.T) {
	repo, log := newCheckout(t), &strings.Builder{}
	var requests atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		http.NotFound(w, r)
	}))
	defer proxy.Close()
	t.Setenv("GOPROXY", proxy.URL)
	t.Setenv("GONOSUMDB", "*")
	if err := os.Remove(filepath.Join(repo, ".cache/kubernetes-v1.9.9/kubectl")); err != nil {
		t.Fatal(err)
	}
	err := Build(t.Context(), Options{Repo: repo, Log: log})
	if err == nil || !strings.Contains(err.Error(), "404") || requests.Load() < 2 ||
		!strings.Contains(log.String(), "a download failed") {
		t.Errorf("after %d requests: %v\n%s", requests.Load(), err, log)
	}
}

// No two builds run at once: the second waits until the first or its own context has ended.
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
		t.Errorf("the log does not say what it waits for: %s", log)
	}
	done := make(chan error, 1)
	go func() { done <- Build(t.Context(), Options{Repo: repo}) }()
	unlock()
	if err := <-done; err != nil {
		t.Errorf("after it: %v", err)
	}
}
