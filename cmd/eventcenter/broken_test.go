package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// With a broken control store, requests about subscriptions are answered with the reason; a backup has the journal, and
// names what it lacks. The center goes on when the file is put back, and creates none in its place before.
func TestBrokenControl(t *testing.T) {
	for name, from := range map[string]int{"all of it": 0, "the page of its records": 2 * 4096} {
		t.Run(name, func(t *testing.T) { brokenFrom(t, from) })
	}
}

func brokenFrom(t *testing.T, from int) {
	dir, archive := t.TempDir(), filepath.Join(t.TempDir(), "archive")
	p := start(t, dir)
	must(t, p.post(raised("node-1", 1)))
	p.stop(syscall.SIGTERM)
	file := filepath.Join(dir, "control.db")
	data, err := os.ReadFile(file)
	must(t, err)
	must(t, os.Rename(file, file+".good"))
	must(t, os.WriteFile(file, append(data[:from:from], bytes.Repeat([]byte("x"), len(data)-from)...), 0o600))
	p = start(t, dir)
	check := func(want int, text string, args ...string) {
		t.Helper()
		if out, code := cli(t, args...); code != want || !strings.Contains(out, text) {
			t.Errorf("%v: %d, want %d and %q: %s", args, code, want, text, out)
		}
	}
	check(exitCouldNotTell, "delivers no events, and people cannot sign in: ", "subscriptions", "list", "--dir", dir)
	check(exitProblems, "UNREAD: control.db: ", "backup", archive, "--dir", dir)
	restored := filepath.Join(t.TempDir(), "restored")
	check(exitFine, "up to offset 1", "restore", archive, "--dir", restored)

	shows := func(want string) {
		t.Helper()
		var status int
		var answer []byte
		if !eventually(patience, func() bool {
			status, answer, _ = p.do(http.MethodGet, "/v1/subscriptions", "", nil)
			return strings.Contains(string(answer), want)
		}) {
			t.Errorf("without %q: %d %s", want, status, answer)
		}
	}
	p.stop(syscall.SIGTERM)
	must(t, os.Rename(file+".good", file))
	p = start(t, dir)
	shows(`"subscriptions":[]`)
	if status, answer, err := p.do(http.MethodGet, "/readyz", "", nil); err != nil || status != http.StatusOK ||
		strings.Contains(string(answer), "problem") {
		t.Errorf("%d %s %v", status, answer, err)
	}
}
